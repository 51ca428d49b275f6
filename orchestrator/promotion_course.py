"""What a command about a version comes to: decided here, for the command and for its dry run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from orchestrator.core.takeover import Kind, Mode, PromotionStep, Recovery, recovery
from orchestrator.errors import ConfigError
from orchestrator.ports import Clock, Version
from orchestrator.production_stage import POLL_S, PromotionSettings, Stage
from orchestrator.promotion_record import (
    CHAMPION,
    GATE_PREFIX,
    LIVE_GATES,
    STEP_TAG,
    Found,
    PromotionRecord,
    boot_time_s,
    next_number,
)

BOARD_WAIT_S = 60.0
"""Longest wait for a board: one that a trial has just left takes Ray a moment to count as free."""

Then = Literal["go on", "stand", "reapply", "begin", "refuse"]
"""go on: after the last step of a promotion that was cut off. stand: it is the champion and serves.
reapply: it is the champion, and production has lost it. begin: from the first step. refuse: it may
not, or cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outset:
    """How a promotion would begin."""

    mode: Mode
    is_served: bool
    """Whether the champion answers clients then."""

    @property
    def has_outage(self) -> bool:
        """Whether clients who are answered will not be for a while."""
        return self.mode == "swap" and self.is_served


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What a command about a version comes to."""

    version: Version
    kind: Kind
    champion: Version | None
    """What production serves by the registry's word."""
    found: Found | None
    """A promotion that was cut off."""
    first: Recovery = "none"
    """What is done about that one before anything else; ``none`` where it is gone on with."""
    ends: tuple[str, ...] = ()
    """Applications that an earlier promotion left, and that are ended first."""
    then: Then = "refuse"
    outset: Outset | None = None
    """How it begins; None where it does not."""
    refusal: ConfigError | None = None
    """Why it is refused; None where it is not."""

    @property
    def settles(self) -> bool:
        """Whether production is put right before the version's turn."""
        return self.first != "none" or bool(self.ends)

    def require_allowed(self) -> None:
        """See that something may be started.

        Raises:
            ConfigError: It is refused, and there is nothing to put right either.
        """
        if self.refusal is not None and not self.settles:
            raise self.refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settled:
    """Production once what an earlier promotion left is ended."""

    is_served: bool
    """Whether the champion answers clients."""
    is_held: bool
    """Whether its application holds a board, or waits for one."""
    num_freed: int
    """Boards that are free then and are not now; below 0 where the champion takes one back."""


class Navigator:
    """Decides what a command comes to; it reads and changes nothing.

    Args:
        admit: Raises ConfigError of a version that may not be promoted, whatever is free.
        free_boards: Counts the boards that a production engine could take now.
    """

    def __init__(
        self,
        stage: Stage,
        clock: Clock,
        settings: PromotionSettings,
        admit: Callable[[Version], object],
        free_boards: Callable[[], int],
    ) -> None:
        self._stage = stage
        self._clock = clock
        self._settings = settings
        self._admit = admit
        self._free_boards = free_boards

    def course(
        self, book: PromotionRecord, version: Version, *, kind: Kind, allow_outage: bool
    ) -> Course:
        """Return what a promotion or rollback of the version comes to now.

        Args:
            book: Of the version's registered model.
            version: What is to serve.
            kind: A rollback keeps no promise: what it leads to has served before.
            allow_outage: Whether clients may be left without answers for a while.

        Raises:
            ConfigError: A tag of the registry was written by somebody else.
        """
        found, champion = self.found(book), book.holder(CHAMPION)
        is_champion = champion is not None and champion.version == version.version
        first = "none" if found is None else recovery(found.record, found.step, _number(champion))
        goes_on = first == "back" and found is not None and _is_of(found, version, kind)
        course = Course(version=version, kind=kind, champion=champion, found=found)
        try:
            if not is_champion:
                self._require_admitted(version, kind)
        except ConfigError as error:
            # What was begun with it is undone: it will not be gone on with.
            return replace(course, first="back" if goes_on else "none", refusal=error)
        if goes_on:
            return replace(course, then="go on")
        try:
            self.require_own(book, found, champion)
        except ConfigError as error:
            return replace(course, refusal=error)
        course = replace(course, first=first, ends=self._leftovers(found, champion))
        settled = self._settled(course)
        if is_champion:
            return replace(course, then="stand" if settled.is_served else "reapply")
        try:
            outset = self._outset(champion, settled, allow_outage=allow_outage)
        except ConfigError as error:
            return replace(course, refusal=error)
        return replace(course, then="begin", outset=outset)

    def found(self, book: PromotionRecord) -> Found | None:
        """Return the promotion that has not ended."""
        numbers = [self._stage.number(app) for app in sorted(self._stage.apps())]
        return book.open(number for number in numbers if number is not None)

    def require_own(
        self, book: PromotionRecord, found: Found | None, champion: Version | None
    ) -> None:
        """Check that production holds nothing but versions that this model has promoted.

        Raises:
            ConfigError: It does, or the registry has lost the champion of a promotion that was cut
                off: nothing says then what may be ended.
        """
        lost = None if found is None or champion is not None else found.record.champion
        if found is not None and lost is not None:
            raise ConfigError(
                "tracking.registered_model",
                f"'{book.model_name}' has no {CHAMPION}, which was version {lost} when the "
                f"{found.record.noun} of version {found.record.version} began",
                "give the alias to the version that is to serve",
            )
        known = {_number(champion)}
        if champion is not None:
            known.add(next_number(champion))  # also where its own tags were removed
        if found is not None:
            known |= {found.record.version, found.record.champion}
        unknown: dict[str, Version | None] = {}
        for app in sorted(self._stage.apps()):
            number = self._stage.number(app)
            version = None if number is None else book.version(number)
            if number is None or (number not in known and not _is_left(version)):
                unknown[app] = version
        if unknown:
            problem, remedy = _stranger(book, list(unknown.values()))
            raise ConfigError(
                "production.name",
                f"'{self._settings.name}' serves {', '.join(unknown)}, {problem}",
                remedy,
            )

    def outage_words(self, version: Version, kind: Kind) -> str:
        """Return how long clients will be without answers if the version swaps in."""
        try:
            boot_s = boot_time_s(version)
        except ConfigError as error:  # a figure, which must not keep a version from serving
            return f"an outage of unknown length: {error}"
        if boot_s is None:
            return "an outage of unknown length: no boot of this version was timed"
        measure_s = self._settings.measure_s if kind == "promote" else 0.0
        return (
            f"expected outage: {boot_s + measure_s:.0f} s, {boot_s:.0f} s of it the version's boot "
            f"as its study timed it and {measure_s:.0f} s its measurement, after up to "
            f"{self._settings.drain_s:g} s in which only running answers are finished; if it "
            "fails, once more the boot of what serves now"
        )

    def _require_admitted(self, version: Version, kind: Kind) -> None:
        failed = [
            tag.removeprefix(GATE_PREFIX)
            for tag, text in version.tags.items()
            if tag.startswith(GATE_PREFIX)
            and not tag.startswith(LIVE_GATES)
            and text not in ("passed", "not shown")
        ]
        if failed:
            raise ConfigError(
                f"version {version.version} of '{version.model_name}'",
                f"its study's gate {', '.join(failed)} failed",
                "promote a version that passed",
            )
        if kind == "promote":
            self._admit(version)

    def _leftovers(self, found: Found | None, champion: Version | None) -> tuple[str, ...]:
        numbers = (_number(champion), None if found is None else found.record.version)
        known = {self._stage.app(number) for number in numbers if number is not None}
        return tuple(sorted(self._stage.apps() - known))

    def _settled(self, course: Course) -> _Settled:
        """Return what production will be once what is left of earlier promotions is ended."""
        champion, record = course.champion, None if course.found is None else course.found.record
        apps = self._stage.apps()
        own = set() if champion is None else {self._stage.app(champion.version)}
        comes_back = course.first == "back" and record is not None and record.champion_served
        is_declared = course.first in ("back", "finish") or bool(apps - own)
        left = own if is_declared else own & apps
        return _Settled(
            is_served=champion is not None and (comes_back or self._stage.serves(champion)),
            is_held=bool(left),
            num_freed=len(apps - left) - len(left - apps),
        )

    def _outset(self, champion: Version | None, settled: _Settled, *, allow_outage: bool) -> Outset:
        # Of what holds a board an answer counts, too: ending it would be an outage.
        is_served = settled.is_served or (
            champion is not None and settled.is_held and self._stage.answers(champion)
        )
        is_held = not is_served and settled.is_held
        has_board = self._has_board(settled.num_freed, 0.0 if is_held else BOARD_WAIT_S)
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

    def _has_board(self, num_freed: int, wait_s: float) -> bool:
        deadline = self._clock.monotonic() + wait_s
        while self._free_boards() + num_freed < 1:
            if self._clock.monotonic() >= deadline:
                return False
            self._clock.sleep(POLL_S)
        return True


def _number(version: Version | None) -> int | None:
    return None if version is None else version.version


def _is_of(found: Found, version: Version, kind: Kind) -> bool:
    return found.record.version == version.version and found.record.kind == kind


def _stranger(book: PromotionRecord, versions: Sequence[Version | None]) -> tuple[str, str]:
    """Return problem and remedy of what serves and is not known, by what the registry says."""
    (version, *others) = versions
    if others or version is None or STEP_TAG not in version.tags:
        return (
            f"which is no version that '{book.model_name}' has promoted",
            "name the registered_model that it belongs to, or another production.name and "
            "production.route",
        )
    return (
        f"and '{book.model_name}' has promoted a version {version.version} that is not its "
        f"{CHAMPION}",
        "if the alias was moved by hand, give it back and `promote` the other version, else name "
        "the registered_model that it belongs to",
    )


def _is_left(version: Version | None) -> bool:
    """Return whether the version's last promotion failed, or ended before its end."""
    ended = (None, PromotionStep.ALIASED, PromotionStep.RETIRED)
    return version is not None and version.tags.get(STEP_TAG) not in ended
