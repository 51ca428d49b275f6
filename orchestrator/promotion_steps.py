"""The steps of one promotion: what each does, how it is taken up again, and the way back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.core.promotion import Gate
from orchestrator.core.takeover import PromotionStep, TakeOver
from orchestrator.errors import OrchestratorError, PromotionError
from orchestrator.events import Emit
from orchestrator.ports import Clock, Version
from orchestrator.production_stage import PromotionSettings, Stage
from orchestrator.promotion_record import (
    CANARY_TAG,
    OUTAGE_BEGAN_TAG,
    OUTAGE_NOT_KNOWN,
    OUTAGE_TAG,
    PROMISE_TAG,
    SOAK_TAG,
    THROUGHPUT_TAG,
    PromotionRecord,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one block through the production path came to."""

    throughput: float | None
    """Output tokens / s."""
    gate: Gate
    """Whether the version keeps what its study promised."""


Measure = Callable[[Version], Measurement]
"""Measures a version under load through the production path, while no client reaches it."""

Soak = Callable[[Version], Gate]
"""Lets a version run as many requests as it may, while no client reaches it."""


@dataclass(slots=True, kw_only=True)
class Act:
    """One promotion under way in this process."""

    book: PromotionRecord
    record: TakeOver
    version: Version
    old: Version | None
    measure: Measure | None = None
    soak: Soak | None = None
    throughput: float | None = None
    outage_s: float | None = None
    outage_began_s: float | None = None
    """On this process's monotonic clock; None where it did not begin here."""
    has_begun: bool = False
    """Whether its record is written."""
    is_crowning: bool = False
    """Whether the alias may have moved."""


class Steps:
    """Does the steps on production; the caller decides which, and records them."""

    def __init__(self, stage: Stage, clock: Clock, settings: PromotionSettings, emit: Emit) -> None:
        self._stage = stage
        self._clock = clock
        self._settings = settings
        self._emit = emit

    def do(self, act: Act, step: PromotionStep) -> None:
        """Do one step before the point of no return."""
        steps: dict[PromotionStep, Callable[[Act], None]] = {
            PromotionStep.STOPPED: self._stop_old,
            PromotionStep.BOOTED: self._boot,
            PromotionStep.VERIFIED: self._verify,
            PromotionStep.MEASURED: self._measure,
            PromotionStep.SOAKED: self._soak,
            PromotionStep.CANARY: self._canary,
            PromotionStep.SHIFTED: self._shift,
            PromotionStep.DRAINED: self._drain,
        }
        steps[step](act)

    def restage(self, act: Act, done: PromotionStep) -> None:
        """Put production where the last recorded step had left it: it may have moved since."""
        if done is PromotionStep.CHALLENGER:
            return
        if done is PromotionStep.STOPPED:
            self._stage.declare([])
            self._stage.wait_gone(None)
            return
        versions, weights = self._beside(act)
        if done in (PromotionStep.SHIFTED, PromotionStep.DRAINED):
            weights = {act.version.version: 1.0}
        self._stage.declare(versions, weights)
        self._stage.wait_up(act.version)

    def crowned(self, act: Act) -> None:
        """Do what follows from the version's being the champion."""
        act.book.settle_crown(act.record)
        act.book.done(act.record, PromotionStep.ALIASED)
        self._say(act, "it is the champion")
        self._stage.declare_alone(act.version)
        self._stage.wait_gone(act.version)
        act.book.done(act.record, PromotionStep.RETIRED)
        self._say(act, "it serves alone")

    def go_back(self, act: Act, reason: str, *, ended: str = "failed") -> str:
        """Put production back, then the aliases; return in words what could not be put back.

        Args:
            act: What is ended.
            reason: Stands on the version.
            ended: How, as the log has it.

        While it is not known what production holds, or the registry is not put back, the record
        stays open and the next command tries again. An old version that is declared alone and does
        not answer ends the promotion all the same: another version may be all that can serve.
        """
        record, is_settled = act.record, False
        faults: list[str] = []
        self._say(act, f"it {ended}; putting production back")
        try:
            self._stage.declare_alone(act.old)
            if (silence := self._silence(act)) is not None:
                faults.append(silence)
            self._stage.wait_gone(act.old)
            if not faults:
                self._end_outage(act)
            is_settled = True
        except Exception as error:  # noqa: BLE001  whatever it was, the next command tries again
            faults.append(str(error) or type(error).__name__)
        left = f"; production could not be put back: {'; '.join(faults)}" if faults else ""
        try:
            if is_settled:
                act.book.uncrown(record, reason + left)
        except OrchestratorError as error:
            left += f"; the registry could not be put back: {error}"
        self._emit(left.removeprefix("; ") or _as_before(act))
        return left

    def _silence(self, act: Act) -> str | None:
        """Return in words why the old version does not answer; None where it does, or did not."""
        if act.old is None or not act.record.champion_served:
            return None
        try:
            self._stage.wait_up(act.old)
            self._stage.verify(None)
        except OrchestratorError as error:
            return f"version {act.old.version} is declared alone and does not answer: {error}"
        return None

    def _say(self, act: Act, text: str) -> None:
        self._emit(f"{act.record.noun} of version {act.record.version}: {text}")

    def _beside(self, act: Act) -> tuple[list[Version | None], dict[int, float]]:
        """Return what is declared while the old version has the traffic, if it runs at all."""
        if act.record.mode == "swap" or act.old is None:
            return [act.version], {}
        return [act.old, act.version], {act.old.version: 1.0}

    def _stop_old(self, act: Act) -> None:
        assert act.old is not None
        self._say(act, "the outage begins; draining and ending the old version")
        if self._outage_began(act) is None:
            act.outage_began_s = self._clock.monotonic()
            act.book.note(act.record, OUTAGE_BEGAN_TAG, f"{self._clock.utc_s():.1f}")
        self._stage.declare([act.old])
        if act.record.champion_served:
            self._stage.drain(act.old)
        self._stage.declare([])
        self._stage.wait_gone(None)

    def _boot(self, act: Act) -> None:
        is_beside = act.record.mode == "beside" and act.old is not None
        self._say(act, "booting it beside what serves now" if is_beside else "booting it")
        self._stage.declare(*self._beside(act))
        self._stage.wait_up(act.version)

    def _verify(self, act: Act) -> None:
        self._say(act, "verifying it through the production path")
        self._stage.verify(act.version)

    def _measure(self, act: Act) -> None:
        if act.measure is None:
            return
        self._say(act, "measuring it under load through the production path")
        found = act.measure(act.version)
        self._note_gate(act, PROMISE_TAG, found.gate)
        if found.gate.blocks:
            raise PromotionError(f"it does not keep its study's promise: {found.gate.reason}")
        act.throughput = found.throughput
        if found.throughput is not None:
            act.book.note(act.record, THROUGHPUT_TAG, f"{found.throughput:.2f}")

    def _soak(self, act: Act) -> None:
        if act.soak is None:
            return
        self._say(act, "giving it as many requests as it may run")
        gate = act.soak(act.version)
        self._note_gate(act, SOAK_TAG, gate)
        if gate.blocks:
            raise PromotionError(f"it does not stand full concurrency: {gate.reason}")

    def _note_gate(self, act: Act, tag: str, gate: Gate) -> None:
        words = {True: "passed", False: "failed", None: "not shown"}[gate.passed]
        act.book.note(act.record, tag, words)
        act.book.note(act.record, f"{tag}_reason", gate.reason)
        self._say(act, f"{gate.name} {words}: {gate.reason}")

    def _canary(self, act: Act) -> None:
        settings = self._settings
        if act.old is None or settings.canary_share <= 0:
            return
        until = f"{settings.canary_s:g} s"
        if settings.canary_requests is not None:
            until += f" or {settings.canary_requests} requests"
        self._say(act, f"giving it {settings.canary_share:.0%} of the traffic for {until}")
        share = self._stage.canary(act.old, act.version)
        answered = f"{share.answered} clients' requests answered, {share.failed} failed"
        act.book.note(act.record, CANARY_TAG, answered)
        self._say(act, f"canary: {answered}")

    def _shift(self, act: Act) -> None:
        self._say(act, "shifting all traffic to it")
        versions, _ = self._beside(act)
        self._stage.declare(versions, {act.version.version: 1.0})
        self._stage.wait_up(act.version)
        self._stage.verify(None)
        self._end_outage(act)

    def _drain(self, act: Act) -> None:
        assert act.old is not None
        self._say(act, "waiting for the old version's last answers")
        self._stage.drain(act.old)

    def _outage_began(self, act: Act) -> float | None:
        """Return when this promotion's outage began, also in a process before this one."""
        version = act.book.version(act.record.version)
        text = None if version is None else version.tags.get(OUTAGE_BEGAN_TAG)
        try:
            return None if text is None else float(text)
        except ValueError:
            return None  # a figure in a report, which must not keep production from its way back

    def _end_outage(self, act: Act) -> None:
        if act.record.mode != "swap" or not act.record.champion_served:
            return
        began = self._outage_began(act)
        if began is None:
            return
        now = self._clock.utc_s()
        if act.outage_began_s is not None:
            act.outage_s = self._clock.monotonic() - act.outage_began_s
        elif act.record.began_utc_s - 1 <= began <= now:
            act.outage_s = now - began
        if act.outage_s is None:
            act.book.note(act.record, OUTAGE_TAG, OUTAGE_NOT_KNOWN)
            self._say(act, "how long the outage took is not known: the clock was set back")
            return
        act.book.note(act.record, OUTAGE_TAG, f"{act.outage_s:.1f}")
        self._say(act, f"the outage took {act.outage_s:.0f} s")


def _as_before(act: Act) -> str:
    if act.old is None:
        return "no version serves, as before"
    if act.record.champion_served:
        return f"version {act.old.version} serves alone, as before"
    return f"version {act.old.version} is declared alone, as before, when it did not answer either"
