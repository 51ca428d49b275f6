"""Bring a registered version into production: always fully the old or fully the new."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.core.takeover import Kind, PromotionStep, recovery
from orchestrator.errors import ConfigError, OrchestratorError, PromotionError
from orchestrator.events import Emit
from orchestrator.ports import Clock, Production, Registry, Version
from orchestrator.production_stage import PromotionSettings, Stage
from orchestrator.promotion_course import Course, Navigator
from orchestrator.promotion_record import CHAMPION, Found, PromotionRecord
from orchestrator.promotion_steps import Act, Measure, Soak, Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Promoted:
    """What a promotion did."""

    version: int
    previous: int | None
    verified_throughput: float | None
    """Output tokens / s through the production path; None where nothing was measured."""
    outage_s: float | None = None
    """How long clients were answered 503; None where they were not."""


class Promoter:
    """Runs promotions: each step is recorded when it is done, and a cut-off one is gone on with.

    Args:
        free_boards: Counts the boards that a production engine could take now.
        admit: Raises ConfigError of a version that may not be promoted, whatever is free.
    """

    def __init__(
        self,
        registry: Registry,
        production: Production,
        clock: Clock,
        settings: PromotionSettings,
        emit: Emit,
        free_boards: Callable[[], int],
        admit: Callable[[Version], object],
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._emit = emit
        self._stage = Stage(production, clock, settings, emit)
        self._navigator = Navigator(self._stage, clock, settings, admit, free_boards)
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
            ConfigError: It cannot begin; nothing was changed but what an earlier one had left.
            PromotionError: It failed; production is as it was, unless the error says otherwise.
        """
        course = self.course(version, kind=kind, allow_outage=allow_outage)
        return self.carry_out(course, measure=measure, soak=soak, allow_outage=allow_outage)

    def course(self, version: Version, *, kind: Kind, allow_outage: bool) -> Course:
        """Return what ``promote`` would come to now; reads only."""
        book = self._book(version.model_name)
        return self._navigator.course(book, version, kind=kind, allow_outage=allow_outage)

    def carry_out(
        self,
        course: Course,
        *,
        measure: Measure | None,
        soak: Soak | None,
        allow_outage: bool,
    ) -> Promoted:
        """Do what was decided; what an earlier promotion left is put right first.

        Raises:
            ConfigError: It cannot begin; nothing was changed but what an earlier one had left.
            PromotionError: It failed; production is as it was, unless the error says otherwise.
        """
        version, kind = course.version, course.kind
        if course.settles:
            self.settle(version.model_name)
            course = self.course(version, kind=kind, allow_outage=allow_outage)
        if course.refusal is not None:
            raise course.refusal
        if course.then == "stand":
            self._emit(f"version {version.version} is the champion and serves already")
        if course.then == "reapply":
            self.reapply(version)
        if course.then in ("stand", "reapply"):
            return Promoted(version=version.version, previous=None, verified_throughput=None)
        return self._go(course, measure, soak)

    def _go(self, course: Course, measure: Measure | None, soak: Soak | None) -> Promoted:
        version, kind, found = course.version, course.kind, course.found
        book = self._book(version.model_name)
        if course.outset is None:
            assert found is not None
            self._emit(f"version {version.version}: going on after '{found.step.value}'")
            record, done = found.record, found.step
        else:
            if course.outset.has_outage:
                self._emit(self.outage_words(version, kind))
            record, done = (
                book.draft(
                    version,
                    kind=kind,
                    mode=course.outset.mode,
                    champion_served=course.outset.is_served,
                ),
                None,
            )
        old = None if record.champion is None else book.version(record.champion)
        act = Act(book=book, record=record, version=version, old=old, measure=measure, soak=soak)
        return self._perform(act, done)

    def outage_words(self, version: Version, kind: Kind) -> str:
        """Return how long clients will be without answers if the version swaps in."""
        return self._navigator.outage_words(version, kind)

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
        found, champion = self._navigator.found(book), book.holder(CHAMPION)
        self._navigator.require_own(book, found, champion)
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
        return self._navigator.found(self._book(model_name))

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
        reason = f"cut off after '{step.value}'"
        left = self._steps.go_back(act, reason, ended=f"was {reason}")
        if left:
            raise PromotionError(f"version {record.version} of {found.version.model_name}{left}")

    def _perform(self, act: Act, done: PromotionStep | None) -> Promoted:
        try:
            self._run_to_crown(act, done)
        except BaseException as error:  # noqa: BLE001  whatever ends it, an interrupt too
            self._end_failed(act, error)
        try:
            if self._is_taken(act):
                self._emit(
                    f"version {act.version.version} became the champion, and another command has "
                    "gone on since: `status` says what serves"
                )
            else:
                self._steps.crowned(act)
        except OrchestratorError as error:
            number = act.version.version
            self._emit(f"version {number} serves, but what was before it is left: {error}")
        return Promoted(
            version=act.version.version,
            previous=act.record.champion,
            verified_throughput=act.throughput,
            outage_s=act.outage_s,
        )

    def _run_to_crown(self, act: Act, done: PromotionStep | None) -> None:
        """Do and record what is left of the steps, up to the point of no return and over it."""
        if done is None:
            act.book.begin(act.record)
            act.has_begun, done = True, PromotionStep.CHALLENGER
        else:
            act.has_begun = True
            self._steps.restage(act, done)
        for step in act.record.steps_after(done):
            if step is PromotionStep.ALIASED:
                break
            self._steps.do(act, step)
            self._require_not_taken(act)
            act.book.done(act.record, step)
        self._require_not_taken(act)
        act.is_crowning = True
        act.book.crown(act.record)

    def _end_failed(self, act: Act, error: BaseException) -> None:
        """Put production back to what it was, and raise; returns where the version is champion."""
        name = f"version {act.version.version} of {act.version.model_name}"
        if act.has_begun and not act.is_crowning and self._is_taken(act):
            if isinstance(error, Exception):
                raise _taken(act) from error
            raise error
        is_champion = self._is_champion(act) if act.is_crowning else False
        if is_champion is None and isinstance(error, Exception):
            raise PromotionError(
                f"{name}: the registry does not say whether it is the champion ({error}); both are "
                "left as they are, and the next command goes on or back"
            ) from error
        if is_champion is False and not isinstance(error, Exception):
            self._steps.go_back(act, "interrupted", ended="was interrupted")
            if act.record.noun == "promotion":
                self._emit(f"again: promote --registered-version {act.version.version}")
        if not isinstance(error, Exception):
            raise error
        if is_champion is False:
            left = self._steps.go_back(act, str(error) or type(error).__name__)
            raise PromotionError(f"{name}: {error}{left}") from error

    def _require_not_taken(self, act: Act) -> None:
        """See that nobody has ended the promotion meanwhile.

        One promoter at a time holds the claim on the cluster. A process that stood still may come
        back when its claim was lost and another one has put production right.

        Raises:
            PromotionError: Somebody has; production is theirs.
        """
        if act.book.is_taken(act.record):
            raise _taken(act)

    def _is_taken(self, act: Act) -> bool:
        """Return whether it is known that somebody else has ended the promotion."""
        with contextlib.suppress(OrchestratorError):
            return act.book.is_taken(act.record)
        return False

    def _is_champion(self, act: Act) -> bool | None:
        """Return whether the version holds the alias; None where the registry does not answer.

        An answer that was lost may have been one to a change that was made.
        """
        with contextlib.suppress(OrchestratorError):
            champion = act.book.holder(CHAMPION)
            return champion is not None and champion.version == act.record.version
        return None

    def _book(self, model_name: str) -> PromotionRecord:
        return PromotionRecord(self._registry, self._clock, model_name)


def _taken(act: Act) -> PromotionError:
    version = act.version
    return PromotionError(
        f"version {version.version} of {version.model_name}: another command has ended it "
        "meanwhile, and production is left as that has put it"
    )
