"""What of a study's conclusions still stands, now that premises have changed or not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.core.dependence import OWN, TABLE, Conclusion
from orchestrator.core.premises import Compared, Premises, World, beside, compare
from orchestrator.core.promotion import Gate
from orchestrator.core.types import Arm

PREMISES_GATE = "premises"

PROMOTED_ON = (
    *(Conclusion.SPEED, Conclusion.KV, Conclusion.LOSSLESS, Conclusion.ANSWERS),
    Conclusion.PROMISE,
)
"""What a promotion stands on. The rules' effects are told and not acted on, and the length of an
outage is a forecast."""

_KEYS = {
    "num_speculative_tokens": "the depth",
    "draft_sample_method": "the draft rule",
    "rejection_sample_method": "the rejection rule",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One conclusion beside the world."""

    conclusion: Conclusion
    state: Literal["stands", "stale", "unknown"]
    """unknown: of what it depends on nothing is seen to have changed, and something is not seen."""
    because: tuple[Compared, ...]
    """The premises that make it so; empty where it stands."""

    def reason(self, premise: Compared) -> str:
        """Return which premise makes it so, and why the conclusion depends on that."""
        return f"{premise.words}: {TABLE[self.conclusion][premise.name].reason}"


def compare_keys(arm: Arm, arms: Iterable[Arm]) -> tuple[Compared, ...]:
    """Return whether the study's space still has the values of an arm's keys.

    Args:
        arm: What a version serves. One without speculation has no such keys.
        arms: The space.
    """
    if arm.is_baseline:
        return ()
    drafting = [item for item in arms if not item.is_baseline]
    found: list[Compared] = []
    for name, words in _KEYS.items():
        own = getattr(arm, name)
        others = {getattr(item, name) for item in drafting}
        now = own if own in others else " or ".join(map(str, sorted(others))) or None
        found.append(beside(name, words, own, now))
    return tuple(found)


def judge(compared: Sequence[Compared], arm: Arm) -> tuple[Judged, ...]:
    """Return every conclusion of an arm's study with whether it still stands.

    Args:
        compared: The premises that were looked at; one that is absent does not count.
        arm: What was concluded of.
    """
    return tuple(_judge_one(conclusion, compared, arm) for conclusion in Conclusion)


def premises_gate(held: Premises | None, world: World, arm: Arm | None) -> Gate:
    """Return whether everything still holds that a promotion of the arm stands on.

    The arm's own keys do not enter: what is promoted has them.

    Args:
        held: Premises of the version's study; None where it was registered without.
        world: The premises now.
        arm: What the version serves; None where it does not say.
    """
    if held is None or arm is None:
        reason = "it was registered without premises: nothing says what its evidence depends on"
        return Gate(name=PREMISES_GATE, passed=None, reason=reason, required=True)
    compared = compare(held, world)
    judged = [item for item in judge(compared, arm) if item.conclusion in PROMOTED_ON]
    stale = [item.conclusion.value for item in judged if item.state == "stale"]
    if stale:
        reason = f"{_told(compared, 'changed')}; stale: {', '.join(stale)}"
        return Gate(name=PREMISES_GATE, passed=False, reason=reason, required=True)
    if any(item.state == "unknown" for item in judged):
        reason = f"cannot be told here: {_told(compared, 'unknown')}"
        return Gate(name=PREMISES_GATE, passed=None, reason=reason, required=True)
    reason = "what its evidence depends on is as it was"
    return Gate(name=PREMISES_GATE, passed=True, reason=reason, required=True)


def depends(conclusion: Conclusion, premise: str, arm: Arm) -> bool:
    """Return whether a conclusion about the arm depends on a premise."""
    if premise == "draft_digest" and arm.is_baseline and conclusion in OWN:
        return False
    return TABLE[conclusion][premise].depends


def _judge_one(conclusion: Conclusion, compared: Sequence[Compared], arm: Arm) -> Judged:
    ours = [item for item in compared if depends(conclusion, item.name, arm)]
    changed = tuple(item for item in ours if item.state == "changed")
    unknown = tuple(item for item in ours if item.state == "unknown")
    if changed:
        return Judged(conclusion=conclusion, state="stale", because=changed)
    return Judged(conclusion=conclusion, state="unknown" if unknown else "stands", because=unknown)


def _told(compared: Sequence[Compared], state: str) -> str:
    return "; ".join(item.sentence for item in compared if item.state == state)
