"""The rule of temperature 0: the arm's token is the scorer's most likely one, but for near ties.

Two executions of one model differ by rounding, and where two tokens are next to equally likely,
rounding decides. So a token disagrees only if the scorer gives it a log probability that is below
that of its own most likely token by more than a margin. What is left of disagreement is compared
with the control's own: the control, without speculation, is scored in the same way.

Tokens after a disagreement stand in a text that the scorer would not have written, and a text that
goes round in a loop repeats its disagreement. Only the tokens up to an answer's first disagreement
count, as the trials of a chance per token do until the first success.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from orchestrator.core.lossless.observations import Floats
from orchestrator.core.proportions import ProportionContrast, compare_proportions
from orchestrator.errors import ConfigError

GreedyKind = Literal["passed", "rejected", "cannot_tell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedySettings:
    """What counts as a disagreement, and how much more of it than the control's is too much."""

    margin: float = 0.25
    """Natural log. Two steps of bfloat16 between logits of 16 and 32 (7 bits: 0.125 each)."""
    tolerance: float = 0.005
    """Disagreements per token beyond the control's that a pass excludes, 0 to 1."""
    confidence: float = 0.999
    """Of the two-sided interval, 0 to 1."""

    def __post_init__(self) -> None:
        if not self.margin >= 0:
            raise ConfigError("greedy.margin", f"{self.margin} is below 0", "give 0 or more")
        for name in ("tolerance", "confidence"):
            value = getattr(self, name)
            if not 0 < value < 1:
                raise ConfigError(
                    f"greedy.{name}", f"{value} is not between 0 and 1", "give a share"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Greedy tokens that were compared with the scorer's choice."""

    num_tokens: int
    """Up to and including each answer's first disagreement."""
    num_disagreements: int
    """Beyond the margin; one an answer at most."""
    num_near_ties: int
    """Other tokens than the scorer's most likely one, within the margin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyResult:
    """Whether the arm leaves the scorer's choice more often than the control does."""

    kind: GreedyKind
    arm: Agreement
    control: Agreement
    contrast: ProportionContrast
    """Of the shares of tokens that agree, arm minus control."""
    more_tokens: int | None
    """Of the arm and of the control until a pass could be told; None unless it cannot be told."""
    sentence: str


def agreement(gaps: Iterable[Floats], *, margin: float) -> Agreement:
    """Count the disagreements of answers.

    Args:
        gaps: By answer, [num_tokens] in natural log: log probability of the scorer's most likely
            token minus that of the answer's token, 0 where they are the same. A gap below 0 is one
            by rounding.
        margin: Largest gap that is a near tie.

    Raises:
        ValueError: A gap is no number.
    """
    tokens = disagreements = near_ties = 0
    for answer in gaps:
        if np.isnan(answer).any():
            raise ValueError("a token has no log probability")
        beyond = answer > margin
        counted = int(np.argmax(beyond)) + 1 if beyond.any() else len(answer)
        tokens += counted
        disagreements += int(beyond.any())
        near_ties += int(((answer[:counted] > 0) & ~beyond[:counted]).sum())
    return Agreement(num_tokens=tokens, num_disagreements=disagreements, num_near_ties=near_ties)


def judge_greedy(
    arm: Agreement, control: Agreement, *, settings: GreedySettings | None = None
) -> GreedyResult:
    """Return whether the arm disagrees with the scorer more often than the control does.

    Args:
        arm: Answers of the arm, scored by the control.
        control: Answers of the control, scored by itself.
        settings: Margin, tolerance and confidence; the margin is the one that was counted with.
    """
    settings = settings or GreedySettings()
    contrast = compare_proportions(
        arm.num_tokens - arm.num_disagreements,
        arm.num_tokens,
        control.num_tokens - control.num_disagreements,
        control.num_tokens,
        settings.confidence,
    )
    answer = contrast.answer(settings.tolerance)
    kinds: dict[str, GreedyKind] = {"worse": "rejected", "not_worse": "passed"}
    kind = kinds.get(answer, "cannot_tell")
    more = _more_tokens(contrast, settings) if kind == "cannot_tell" else None
    return GreedyResult(
        kind=kind,
        arm=arm,
        control=control,
        contrast=contrast,
        more_tokens=more,
        sentence=_sentence(kind, arm, control, contrast, more, settings),
    )


def _more_tokens(contrast: ProportionContrast, settings: GreedySettings) -> int | None:
    needed = contrast.items_needed(settings.tolerance)
    if needed is None:
        return None
    return max(1, needed - min(contrast.a_total, contrast.b_total))


def _sentence(
    kind: GreedyKind,
    arm: Agreement,
    control: Agreement,
    contrast: ProportionContrast,
    more: int | None,
    settings: GreedySettings,
) -> str:
    if contrast.low is None or contrast.high is None:
        side = "the arm" if arm.num_tokens == 0 else "the control"
        return f"Cannot tell: no greedy token of {side} was scored."
    counts = (
        f"beyond a margin of {settings.margin:g} in log probability, {arm.num_disagreements:,} of "
        f"{arm.num_tokens:,} greedy tokens are not the scorer's choice, against "
        f"{control.num_disagreements:,} of {control.num_tokens:,} of the control"
    )
    if kind == "rejected":
        return f"Rejected: {counts}."
    # The contrast is of agreement: its low end is the most that disagreement can have risen by.
    excess = f"at most {max(0.0, -contrast.low):.2%} of the tokens more"
    if kind == "passed":
        return f"Passed: {counts}; {excess}."
    return f"Cannot tell: {counts}; {excess}, about {more:,} more tokens of each side would tell."
