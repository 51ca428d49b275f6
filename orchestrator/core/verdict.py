"""What a study concludes, in a record and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.core.estimate import Contrast
from orchestrator.core.premises import Premises
from orchestrator.core.promotion import Gate, GateSettings
from orchestrator.core.summary import ArmSummary
from orchestrator.core.types import Arm, BoardModel, Boot, Cell

VerdictKind = Literal["promote", "keep", "no_difference", "no_result"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One place of the ranking."""

    summary: ArmSummary
    contrast: Contrast | None
    """Against the reference; None for the reference itself or without one."""
    finalist: bool
    """Whether the arm had fresh boots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer of a study."""

    kind: VerdictKind
    """promote: the winner passes every gate. keep: the incumbent wins, or the winner fails a gate.
    no_difference: the best arm cannot be told apart from the incumbent. no_result: nothing can be
    said."""
    winner: Arm | None
    """The fastest arm after the tie rule, whether or not the gates let it through; None with
    no_difference and no_result."""
    incumbent: Arm | None
    """What serves now; None when nothing does."""
    reference: Arm | None
    """What the winner was compared with: the incumbent, else the baseline."""
    contrasts: Mapping[Arm, Contrast]
    """Against the reference, by arm."""
    ranking: tuple[Ranked, ...]
    """Scored arms first, the fastest first; then the others."""
    gates: tuple[Gate, ...]
    """Of the winner, or of the best arm with no_difference; empty without one."""
    sentences: tuple[str, ...]
    """The verdict in words."""
    premises: Premises | None

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON types, for tracking."""
        raise NotImplementedError


def decide(
    arms: Sequence[Arm],
    *,
    boots: Sequence[Boot],
    weights: Mapping[Cell, float],
    board: BoardModel | None,
    incumbent: Arm | None,
    settings: GateSettings,
    confidence: float,
    premises: Premises | None = None,
) -> Verdict:
    """Return the verdict of a study.

    Args:
        arms: The space.
        boots: All boots, whatever their end.
        weights: The traffic's share by cell.
        board: Source of modelled step times; None when they were measured.
        incumbent: What serves now; it must be one of ``arms`` to be compared with.
        settings: What the policy demands.
        confidence: Coverage of the intervals, 0 to 1.
        premises: What the conclusion depends on.
    """
    raise NotImplementedError


def promotable(verdict: Verdict) -> bool:
    """Return whether the verdict allows a change of production."""
    return (
        verdict.kind == "promote"
        and verdict.winner is not None
        and verdict.winner != verdict.incumbent
        and not any(gate.blocks for gate in verdict.gates)
    )
