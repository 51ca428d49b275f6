"""What the parts of a proof boot found, as records that cross processes and lie in the tracker."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.lossless.greedy import Agreement
from orchestrator.core.lossless.judge import LosslessResult
from orchestrator.core.quality import CanaryResult, TaskScore


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFinding:
    """Of ``ProofPart.TEXT``: the text test of an arm, or of a control by itself."""

    result: LosslessResult
    floor: float | None
    """Log odds by which numerics may move an event. Of a control: as measured, None where it could
    not be. Of an arm: the control's, by which it was judged."""
    remarks: tuple[str, ...] = ()
    """What limits the result, a clause each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFinding:
    """Of ``ProofPart.AUDIT``: the engine's own verification steps."""

    why_not: str | None
    """Why the audit could not attach to the engine; None where it did."""
    result: LosslessResult | None
    """None where it did not attach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyFinding:
    """Of ``ProofPart.GREEDY``: tokens at temperature 0 that were compared with the scorer's."""

    agreement: Agreement


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryFinding:
    """Of ``ProofPart.CANARIES``."""

    results: tuple[CanaryResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFinding:
    """Of ``ProofPart.TASKS``."""

    scores: tuple[TaskScore, ...]
