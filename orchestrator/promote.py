"""Bring a registered version into production: always fully the old or fully the new."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass

from orchestrator.core.takeover import Kind, Mode, PromotionStep, recovery
from orchestrator.errors import ConfigError, OrchestratorError, PromotionError
from orchestrator.events import Emit
from orchestrator.ports import Clock, Production, Registry, Version
from orchestrator.production_stage import POLL_S, PromotionSettings, Stage
from orchestrator.promotion_record import (
    BOOT_TIME_TAG,
    CHAMPION,
    LIVE_GATES,
    STEP_TAG,
    Found,
    PromotionRecord,
)
from orchestrator.promotion_steps import Act, Measure, Soak, Steps

BOARD_WAIT_S = 60.0
"""Longest wait for a board: one that a trial has just left takes Ray a moment to count as free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promoted:
    """What a promotion did."""

    version: int
    previous: int | None
    verified_throughput: float | None
    """Output tokens / s through the production path; None where nothing was measured."""
    outage_s: float | None = None
    """How long clients were answered 503; None where they were not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outset:
    """How a promotion would begin."""

    mode: Mode
    is_served: bool
    """Whether the champion answers clients now."""

    @property
    def has_outage(self) -> bool:
        """Whether clients who are answered now will not be for a while."""
        return self.mode == "swap" and self.is_served


class Promoter:
    """Runs promotions: each step is recorded when it is done, and a cut-off one is gone on with.

    Args:
        free_boards: Counts the boards that a production engine could take now.
    """

    def __init__(
        self,
        registry: Registry,
        production: Production,
        clock: Clock,
        settings: PromotionSettings,
        emit: Emit,
        free_boards: Callable[[], int],
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._emit = emit
        self._free_boards = free_boards
        self._settings = settings
        self._stage = Stage(production, clock, settings, emit)
        self._steps = Steps(self._stage, clock, settings, emit)

    def promote(
        self,
        version: Version,
        *,
        kind: Kind = "promote",
        measure: Measure | None = None,
        soak: Soak | None = None,
        allow_outage: bool = False,
    ) -> Promoted:
        """Make the version the champion, or leave everything as it was.

        One that was cut off is gone on with after its last step.

        Args:
            version: The registered challenger.
            kind: A rollback is not measured, soaked or given a canary: it has served before.
            measure: None measures nothing.
            soak: None leaves it out.
            allow_outage: Whether the old engine may be ended first where no board is free.

        Raises:
            ConfigError: It cannot begin; nothing was changed.
            PromotionError: It began and failed; production serves the old version.
        """
        book = self._book(version.model_name)
        found = book.open(self._numbers())
        if found is not None and self._goes_on(found, version, kind):
            self._emit(f"version {version.version}: going on after '{found.step.value}'")
            record, done = found.record, found.step
        else:
            self.settle(version.model_name)
            champion = book.holder(CHAMPION)
            if champion is not None and champion.version == version.version:
                raise PromotionError(
                    f"version {version.version} of {version.model_name} is the champion already"
                )
            outset = self.preflight(version, champion, allow_outage=allow_outage)
            if outset.has_outage:
                self._emit(self.outage_words(version, kind))
            record = book.draft(
                version, kind=kind, mode=outset.mode, champion_served=outset.is_served
            )
            done = None
        old = None if record.champion is None else book.version(record.champion)
        act = Act(book=book, record=record, version=version, old=old, measure=measure, soak=soak)
        return self._perform(act, done)

    def preflight(
        self,
        version: Version,
        champion: Version | None,
        *,
        allow_outage: bool,
        wait_s: float = BOARD_WAIT_S,
    ) -> Outset:
        """Return how the version would take over; reads only.

        Args:
            version: The challenger.
            champion: What production serves by the registry's word.
            allow_outage: Whether clients may be left without answers for a while.
            wait_s: Longest wait for a board.

        Raises:
            ConfigError: It may not, or cannot.
        """
        is_served = champion is not None and self._stage.serves(champion)
        failed = [
            tag.removeprefix("specpilot.gate.")
            for tag, text in version.tags.items()
            if tag.startswith("specpilot.gate.")
            and not tag.startswith(LIVE_GATES)
            and text not in ("passed", "not shown")
        ]
        if failed:
            raise ConfigError(
                f"version {version.version} of '{version.model_name}'",
                f"its study's gate {', '.join(failed)} failed",
                "promote a version that passed",
            )
        is_held = not is_served and bool(self._stage.apps())
        has_board = self._has_board(0.0 if is_held else wait_s)
        if champion is None and has_board:
            return Outset(mode="beside", is_served=False)
        # What is declared and answers nobody is ended first: nothing is lost, and it holds a board.
        if not is_served and (has_board or is_held):
            return Outset(mode="swap", is_served=False)
        if not is_served:
            raise ConfigError(
                "node.engine_token", "no board is free", "wait for what holds it, or stop that"
            )
        if has_board or allow_outage:
            return Outset(mode="beside" if has_board else "swap", is_served=True)
        raise ConfigError(
            "node.engine_token",
            "no board is free beside the one that serves",
            "free one, or accept an outage: --allow-outage, or policy.allow_outage=true",
        )

    def reapply(self, champion: Version) -> None:
        """Declare the champion and see that it answers, where Serve has lost it.

        Raises:
            PromotionError: It does not come up or does not answer.
        """
        self._emit(f"bringing version {champion.version} back")
        try:
            self._stage.declare_alone(champion)
            self._stage.wait_up(champion)
            self._stage.verify(None)
        except Exception as error:  # whatever it was, the champion does not serve
            raise PromotionError(
                f"version {champion.version} of {champion.model_name}: {error}"
            ) from error
        self._emit(f"version {champion.version} serves again")

    def sync(self, model_name: str) -> None:
        """Bring production back to what the registry says; changes no alias of a champion.

        A promotion that was cut off is ended first. Where the champion serves, nothing is declared.

        Raises:
            ConfigError: There is no champion, or production serves what is not this model's.
            PromotionError: The champion does not come up or does not answer.
        """
        self.settle(model_name)
        champion = self._book(model_name).holder(CHAMPION)
        if champion is None:
            raise ConfigError(
                "tracking.registered_model", f"'{model_name}' has no {CHAMPION}",
                "promote a version first",
            )  # fmt: skip
        if not self._stage.serves(champion):
            self.reapply(champion)
            return
        try:
            self._stage.verify(None)
        except OrchestratorError as error:
            raise PromotionError(
                f"version {champion.version} of {model_name} is up and does not answer: {error}"
            ) from error
        self._emit(f"version {champion.version} is the champion and serves already")

    def settle(self, model_name: str) -> None:
        """End a promotion that was cut off: go back, or on where its version is the champion.

        Raises:
            ConfigError: Production serves what this registered model has never promoted.
            PromotionError: Production cannot be put right.
        """
        book = self._book(model_name)
        found = book.open(self._numbers())
        champion = book.holder(CHAMPION)
        known = {None if champion is None else champion.version}
        if found is not None:
            known |= {found.record.version, found.record.champion}
        self._require_own(book, known)
        if found is not None:
            self._recover(book, found, champion)
        own = set() if champion is None else {self._stage.app(champion.version)}
        if others := self._stage.apps() - own:
            self._emit(f"ending {', '.join(sorted(others))}, which an earlier promotion left")
            self._stage.declare_alone(champion)
            self._stage.wait_gone(champion)

    def serves(self, version: Version) -> bool:
        """Return whether production carries this version's traffic now."""
        return self._stage.serves(version)

    def cut_off(self, model_name: str) -> Found | None:
        """Return the promotion that has not ended."""
        return self._book(model_name).open(self._numbers())

    def outage_words(self, version: Version, kind: Kind) -> str:
        """Return how long clients will be without answers if the version swaps in."""
        boot_s = version.tags.get(BOOT_TIME_TAG)
        if boot_s is None:
            return "an outage of unknown length: no boot of this version was timed"
        measure_s = self._settings.measure_s if kind == "promote" else 0.0
        total_s = float(boot_s) + measure_s
        return (
            f"expected outage: {total_s:.0f} s, {float(boot_s):.0f} s of it the version's boot as "
            f"its study timed it and {measure_s:.0f} s its measurement, after up to "
            f"{self._settings.drain_s:g} s in which only running answers are finished; if it "
            "fails, once more the boot of what serves now"
        )

    def _recover(self, book: PromotionRecord, found: Found, champion: Version | None) -> None:
        record, step = found.record, found.step
        needs = recovery(record, step, None if champion is None else champion.version)
        if needs == "forget":
            book.forget(record, f"cut off after '{step.value}'; another version was promoted since")
            return
        act = Act(book=book, record=record, version=found.version, old=champion)
        if needs == "finish":
            self._emit(f"version {record.version} is the champion; ending what was before it")
            self._steps.crowned(act)
            return
        self._emit(f"the {record.noun} of version {record.version} was cut off; going back")
        left = self._steps.go_back(act, f"cut off after '{step.value}'")
        if left:
            raise PromotionError(f"version {record.version} of {found.version.model_name}{left}")

    def _perform(self, act: Act, done: PromotionStep | None) -> Promoted:
        version, crowning = act.version, False
        try:
            if done is None:
                act.book.begin(act.record)
                done = PromotionStep.CHALLENGER
            else:
                self._steps.restage(act, done)
            for step in act.record.steps_after(done):
                if step is PromotionStep.ALIASED:
                    break
                self._steps.do(act, step)
                act.book.done(act.record, step)
            crowning = True
            act.book.crown(act.record)
        except BaseException as error:
            # Whatever ends it, an interrupt too: production goes back to what it was.
            is_champion = self._is_champion(act) if crowning else False
            if is_champion is None and isinstance(error, Exception):
                raise PromotionError(
                    f"version {version.version} of {version.model_name}: the registry does not say "
                    f"whether it is the champion ({error}); both are left as they are, and the "
                    "next command goes on or back"
                ) from error
            if is_champion is False:
                left = self._steps.go_back(act, str(error) or type(error).__name__)
                if not isinstance(error, Exception):
                    raise
                name = version.model_name
                raise PromotionError(
                    f"version {version.version} of {name}: {error}{left}"
                ) from error
            if not isinstance(error, Exception):
                raise
        try:
            self._steps.crowned(act)
        except OrchestratorError as error:
            self._emit(f"version {version.version} serves, but what was before it is left: {error}")
        return Promoted(
            version=version.version,
            previous=act.record.champion,
            verified_throughput=act.throughput,
            outage_s=act.outage_s,
        )

    def _goes_on(self, found: Found, version: Version, kind: Kind) -> bool:
        champion = self._book(version.model_name).holder(CHAMPION)
        number = None if champion is None else champion.version
        return (
            found.record.version == version.version
            and found.record.kind == kind
            and recovery(found.record, found.step, number) == "back"
        )

    def _is_champion(self, act: Act) -> bool | None:
        """Return whether the version holds the alias; None where the registry does not answer.

        An answer that was lost may have been one to a change that was made.
        """
        with contextlib.suppress(OrchestratorError):
            champion = act.book.holder(CHAMPION)
            return champion is not None and champion.version == act.record.version
        return None

    def _has_board(self, wait_s: float) -> bool:
        deadline = self._clock.monotonic() + wait_s
        while self._free_boards() < 1:
            if self._clock.monotonic() >= deadline:
                return False
            self._clock.sleep(POLL_S)
        return True

    def _require_own(self, book: PromotionRecord, known: Collection[int | None]) -> None:
        """Check that production holds nothing but versions that this model has promoted."""
        numbers = {app: self._stage.number(app) for app in self._stage.apps()}
        unknown = [
            app
            for app, number in numbers.items()
            if number is None or (number not in known and not _is_left(book.version(number)))
        ]
        if unknown:
            raise ConfigError(
                "production.name",
                f"'{self._settings.name}' serves {', '.join(sorted(unknown))}, which is no version "
                f"that '{book.model_name}' has promoted",
                "name the registered_model that it belongs to, or another production.name and "
                "production.route",
            )

    def _numbers(self) -> list[int]:
        numbers = [self._stage.number(app) for app in sorted(self._stage.apps())]
        return [number for number in numbers if number is not None]

    def _book(self, model_name: str) -> PromotionRecord:
        return PromotionRecord(self._registry, self._clock, model_name)


def _is_left(version: Version | None) -> bool:
    """Return whether the version's last promotion failed, or ended before its end."""
    ended = (None, PromotionStep.ALIASED, PromotionStep.RETIRED)
    return version is not None and version.tags.get(STEP_TAG) not in ended
