"""How one version takes over from another: the steps, their record, and what a cut-off one needs.

What ends a promotion may be a kill, so what it needs to go on or back is written down before it
acts: the record on the version itself, and after each step the step. The alias ``champion`` is
the point of no return. It moves in one atomic call: before it production goes back to the old
version, after it on to the new one, whoever finds the record.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Kind = Literal["promote", "rollback"]
Mode = Literal["beside", "swap"]
"""beside: both engines at a time, on two boards. swap: the old one ends first, on one board."""
Recovery = Literal["none", "finish", "back", "forget"]


class PromotionStep(StrEnum):
    """The steps that are done and recorded, in order; the last stands on the version."""

    CHALLENGER = "challenger"
    """The record is written and the version has the alias."""
    STOPPED = "stopped"
    """Swap only: the old engine has ended, and clients are answered 503."""
    BOOTED = "booted"
    VERIFIED = "verified"
    MEASURED = "measured"
    SOAKED = "soaked"
    CANARY = "canary"
    SHIFTED = "shifted"
    DRAINED = "drained"
    ALIASED = "aliased"
    RETIRED = "retired"
    """The end: it serves alone."""
    FAILED = "failed"
    """The other end: the version before serves alone."""

    @property
    def is_open(self) -> bool:
        """Whether something is left to be done after it."""
        return self not in (PromotionStep.RETIRED, PromotionStep.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOver:
    """The record of one promotion, written before its first act."""

    version: int
    champion: int | None
    """Holder of that alias before; None where nothing was promoted yet."""
    champion_served: bool
    """Whether it answered then; one that did not is not waited for on the way back."""
    previous: int | None
    """Holder of the alias before."""
    challenger: int | None
    """Holder of the alias before."""
    kind: Kind
    mode: Mode
    began_utc_s: float

    @property
    def noun(self) -> str:
        """The kind, to be read."""
        return "promotion" if self.kind == "promote" else "rollback"

    @property
    def steps(self) -> tuple[PromotionStep, ...]:
        """The steps of this promotion in order, up to its good end."""
        return steps_of(self.kind, self.mode, self.champion)

    def steps_after(self, done: PromotionStep | None) -> tuple[PromotionStep, ...]:
        """Return the steps that are left; all of them where none is done."""
        return self.steps if done is None else self.steps[self.steps.index(done) + 1 :]


def steps_of(kind: Kind, mode: Mode, champion: int | None) -> tuple[PromotionStep, ...]:
    """Return the steps of a promotion in order, up to its good end.

    A version that goes back to production has shown before what measuring, a soak and a canary
    show, and a person waits. Without an old version, or when it has ended first, there is no share
    to give and nothing to drain after the shift.

    Args:
        kind: Promotion or rollback.
        mode: How it takes over.
        champion: The old version; None where nothing was promoted yet.
    """
    left_out = {PromotionStep.FAILED}
    if kind == "rollback":
        left_out |= {PromotionStep.MEASURED, PromotionStep.SOAKED, PromotionStep.CANARY}
    if champion is None or mode == "swap":
        left_out |= {PromotionStep.CANARY, PromotionStep.DRAINED}
    if champion is None or mode == "beside":
        left_out |= {PromotionStep.STOPPED}
    return tuple(step for step in PromotionStep if step not in left_out)


def recovery(record: TakeOver, step: PromotionStep, champion: int | None) -> Recovery:
    """Return what a promotion that was cut off needs, if it is not to be gone on with.

    Args:
        record: Of the promotion.
        step: The last that was recorded.
        champion: Holder of that alias now.

    Returns:
        ``finish`` past the point of no return; ``back`` before it; ``forget`` when another version
        has become the champion since, so that nothing of the record holds any more; ``none`` when
        it has ended.
    """
    if not step.is_open:
        return "none"
    if champion == record.version:
        return "finish"
    return "back" if champion == record.champion else "forget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What became of clients' requests at one version while both served."""

    answered: int
    failed: int

    @property
    def failed_share(self) -> float:
        """Failed requests / all, 0 to 1; 0 without any."""
        total = self.answered + self.failed
        return self.failed / total if total else 0.0


def canary_fault(old: Share, new: Share) -> str | None:
    """Return why the new version may not get the rest of the traffic; None when it may.

    Any failure counts where the old version fails less: a needless way back costs a boot, and a
    version that fails clients costs clients.
    """
    if new.failed and new.failed_share > old.failed_share:
        return (
            f"{new.failed} of {new.answered + new.failed} clients' requests failed in the canary, "
            f"{old.failed} of {old.answered + old.failed} at the version beside it"
        )
    return None
