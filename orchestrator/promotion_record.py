"""What the registry knows of a promotion: its record, its last step, its end and the aliases."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from orchestrator.core.codec import to_plain
from orchestrator.core.takeover import Kind, Mode, PromotionStep, TakeOver
from orchestrator.errors import ConfigError, TransientError
from orchestrator.ports import Clock, Registry, Version
from orchestrator.version_tags import read_tag, record_of, version_number_of

CHAMPION = "champion"
CHALLENGER = "challenger"
PREVIOUS = "previous"
RECORD_TAG = "specpilot.promotion"
STEP_TAG = "specpilot.promotion_step"
NEXT_TAG = "specpilot.promotion_next"
"""On the champion: the version that was to follow it last, by which its record is found."""
REASON_TAG = "specpilot.promotion_reason"
SINCE_TAG = "specpilot.serving_since"
OUTAGE_BEGAN_TAG = "specpilot.promotion_outage_began_utc_s"
OUTAGE_TAG = "specpilot.promotion_outage_s"
OUTAGE_NOT_KNOWN = "not known"
"""Instead of its seconds, where the clock was set back between two processes."""
GATE_PREFIX = "specpilot.gate."
GATE_REASON_PREFIX = "specpilot.gate_reason."
PROMISE_TAG = f"{GATE_PREFIX}promise"
"""What came of the comparison with the study's interval."""
SOAK_TAG = f"{GATE_PREFIX}soak"
LIVE_GATES = (PROMISE_TAG, SOAK_TAG)
"""Tags of gates that a promotion asks itself, beside the gates of the study."""
BOOT_TIME_TAG = "specpilot.boot_time_s"
"""Median seconds of the study's boots of the version."""
THROUGHPUT_TAG = "specpilot.production_output_throughput"
CANARY_TAG = "specpilot.canary"
CELLS_TAG = "specpilot.cells"
"""What the version's study lets one expect in every cell, and its weights, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A promotion as its version tells it."""

    version: Version
    record: TakeOver
    step: PromotionStep


class PromotionRecord:
    """Reads and writes promotions of one registered model."""

    def __init__(self, registry: Registry, clock: Clock, model_name: str) -> None:
        self._registry = registry
        self._clock = clock
        self._name = model_name

    @property
    def model_name(self) -> str:
        """The registered model."""
        return self._name

    def holder(self, alias: str) -> Version | None:
        """Return the version that has the alias."""
        return self._registry.by_alias(self._name, alias)

    def version(self, number: int) -> Version | None:
        """Return one version."""
        return self._registry.by_number(self._name, number)

    def open(self, numbers: Iterable[int] = ()) -> Found | None:
        """Return the promotion that has not ended.

        Args:
            numbers: Versions whose engines production holds, besides those with an alias.

        Raises:
            ConfigError: A tag that leads to it was written by somebody else.
        """
        held = [self.holder(alias) for alias in (CHALLENGER, CHAMPION)]
        named = None if held[1] is None else next_number(held[1])
        numbers = [*([] if named is None else [named]), *numbers]
        for version in (*held, *(self.version(number) for number in numbers)):
            found = None if version is None else self.read(version)
            if found is not None and found.step.is_open:
                return found
        return None

    def read(self, version: Version) -> Found | None:
        """Return the version's last promotion; None where it never had one.

        Raises:
            ConfigError: The tags were written by somebody else.
        """
        remedy = f"remove {RECORD_TAG} and {STEP_TAG}, then `sync`"
        record = read_tag(
            version, RECORD_TAG, record_of(TakeOver), noun="record of a promotion", remedy=remedy
        )
        step = read_tag(version, STEP_TAG, PromotionStep, noun="step of a promotion", remedy=remedy)
        if record is None or step is None:
            return None
        if record.version != version.version or step not in (*record.steps, PromotionStep.FAILED):
            raise ConfigError(
                f"version {version.version} of '{self._name}'",
                f"its tags {RECORD_TAG} and {STEP_TAG} do not belong together, or to it",
                remedy,
            )
        return Found(version=version, record=record, step=step)

    def is_taken(self, record: TakeOver) -> bool:
        """Return whether somebody else has ended the promotion, or begun another of its version.

        Args:
            record: Of a promotion that has begun and that this process has not ended.
        """
        version = self.version(record.version)
        found = None if version is None else self.read(version)
        return found is None or found.record != record or not found.step.is_open

    def draft(self, version: Version, *, kind: Kind, mode: Mode, champion_served: bool) -> TakeOver:
        """Return the record of a promotion that is about to begin; nothing is written."""
        numbers = {
            alias: None if (found := self.holder(alias)) is None else found.version
            for alias in (CHAMPION, PREVIOUS, CHALLENGER)
        }
        return TakeOver(
            version=version.version,
            champion=numbers[CHAMPION],
            champion_served=champion_served,
            previous=numbers[PREVIOUS],
            challenger=numbers[CHALLENGER],
            kind=kind,
            mode=mode,
            began_utc_s=self._clock.utc_s(),
        )

    def begin(self, record: TakeOver) -> None:
        """Write a promotion down before its first act, and name the challenger.

        What leads to the record comes first, so that none is ever open and not found.
        """
        if record.champion is not None:
            self._registry.set_tag(self._name, record.champion, NEXT_TAG, str(record.version))
        else:
            self._registry.set_alias(self._name, CHALLENGER, record.version)
        self.note(record, RECORD_TAG, json.dumps(to_plain(record)))
        self.note(record, REASON_TAG, "under way")
        if record.mode == "swap":
            self.note(record, OUTAGE_BEGAN_TAG, "not yet")  # and not when an earlier one's did
        self.done(record, PromotionStep.CHALLENGER)
        self._registry.set_alias(self._name, CHALLENGER, record.version)

    def done(self, record: TakeOver, step: PromotionStep) -> None:
        """Write down that a step is done."""
        self.note(record, STEP_TAG, step.value)

    def note(self, record: TakeOver, tag: str, text: str) -> None:
        """Write one tag of the version that is promoted."""
        self._registry.set_tag(self._name, record.version, tag, text)

    def crown(self, record: TakeOver) -> None:
        """Make the version the champion; the second call is the point of no return."""
        if record.champion is not None:
            self._registry.set_alias(self._name, PREVIOUS, record.champion)
        self._registry.set_alias(self._name, CHAMPION, record.version)

    def settle_crown(self, record: TakeOver) -> None:
        """Write what follows from the version's being the champion; safe to repeat."""
        waiting = record.challenger
        if waiting in (None, record.version, record.champion):
            self._registry.delete_alias(self._name, CHALLENGER)
        else:
            self._put(CHALLENGER, waiting)
        if (old := record.champion) is not None:
            how = "replaced by" if record.kind == "promote" else "rolled back to"
            text = f"{how} version {record.version}"
            self._unless_deleted(
                old, lambda: self._registry.set_tag(self._name, old, REASON_TAG, text)
            )
        self.note(record, SINCE_TAG, utc_text(self._clock.utc_s()))
        self.note(record, REASON_TAG, "it serves")

    def uncrown(self, record: TakeOver, reason: str) -> None:
        """Write down that the version did not take over; the champion was never another."""
        self._put(PREVIOUS, record.previous)
        self._put(CHALLENGER, record.challenger)
        self.forget(record, reason)

    def forget(self, record: TakeOver, reason: str) -> None:
        """End the record and leave the aliases alone."""
        self.note(record, REASON_TAG, reason[:4000])
        self.done(record, PromotionStep.FAILED)

    def _put(self, alias: str, number: int | None) -> None:
        """Give the alias back; a version that was deleted meanwhile cannot have it any more."""
        if number is None or not self._unless_deleted(
            number, lambda: self._registry.set_alias(self._name, alias, number)
        ):
            self._registry.delete_alias(self._name, alias)

    def _unless_deleted(self, number: int, write: Callable[[], None]) -> bool:
        """Write to a version that may have been deleted meanwhile; return False where it was.

        Raises:
            TransientError: The registry does not take it, and the version is there.
        """
        try:
            write()
        except TransientError:
            if self.version(number) is not None:
                raise
            return False
        return True


def boot_time_s(version: Version) -> float | None:
    """Return the median seconds of the study's boots of the version; None where none was timed.

    Raises:
        ConfigError: The tag was written by somebody else.
    """
    remedy = "write the seconds that its study's boots took, or remove the tag"
    return read_tag(version, BOOT_TIME_TAG, _seconds, noun="time in seconds", remedy=remedy)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(repr(text))
    return seconds


def next_number(champion: Version) -> int | None:
    """Return the version that was to follow the champion last; None where none was.

    Raises:
        ConfigError: The tag was written by somebody else.
    """
    remedy = "write the number of the version that was promoted last, or remove the tag"
    noun = "number of a version"
    return read_tag(champion, NEXT_TAG, version_number_of, noun=noun, remedy=remedy)


def utc_text(seconds: float) -> str:
    """Return a moment as text, for example ``2026-01-31 12:00:05 UTC``."""
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
