"""What a study knows of each arm, in one record: the rows of tables and of the ranking."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from orchestrator.core.comparison import Comparison, measured
from orchestrator.core.estimate import (
    CellEstimate,
    StepTimeSource,
    acceptance_lengths,
    cell_estimates,
)
from orchestrator.core.formulas import quantile
from orchestrator.core.types import Arm, BoardModel, Boot, BootStatus, Cell

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSummary:
    """One arm over all its boots so far; None where nothing is known."""

    arm: Arm
    num_boots: int
    """Boots that ended, whatever their end."""
    num_scored: int
    """Boots with an objective; duplicates count once."""
    num_blocks: int
    """Valid blocks."""
    num_invalid_blocks: int
    objective_s: float | None
    """As the comparison of the arms takes it, see ``core.comparison``."""
    step_time_source: StepTimeSource
    cells: tuple[CellEstimate, ...]
    acceptance_length: Mapping[float, float | None]
    """By temperature, pooled over streams and boots."""
    kv_cache_tokens: int | None
    """Smallest over boots."""
    kv_max_concurrency: float | None
    """Smallest over boots."""
    boot_time_s: float | None
    """Median over boots."""
    status: str
    """``waiting``, ``ok``, or how the last boot that did not end well ended."""
    reason: str
    """Reason of that end; empty for ``ok``."""


def summarise(
    arms: Sequence[Arm],
    *,
    boots: Sequence[Boot],
    weights: Mapping[Cell, float],
    board: BoardModel | None,
) -> tuple[ArmSummary, ...]:
    """Return one summary an arm, in the order of ``arms``."""
    comparison = measured(boots, cells=tuple(weights), board=board).compare(weights)
    return summarise_compared(arms, boots=boots, comparison=comparison, board=board)


def summarise_compared(
    arms: Sequence[Arm],
    *,
    boots: Sequence[Boot],
    comparison: Comparison,
    board: BoardModel | None,
) -> tuple[ArmSummary, ...]:
    """Return ``summarise`` where the arms are compared already."""
    source: StepTimeSource = "measured" if board is None else "modelled"
    return tuple(
        _summary(
            arm,
            [boot for boot in boots if boot.arm == arm],
            comparison=comparison,
            cells=cell_estimates(arm, boots, board),
            source=source,
        )
        for arm in arms
    )


def _summary(
    arm: Arm,
    boots: Sequence[Boot],
    *,
    comparison: Comparison,
    cells: tuple[CellEstimate, ...],
    source: StepTimeSource,
) -> ArmSummary:
    blocks = [block for boot in boots for block in boot.blocks]
    facts = [boot.facts for boot in boots if boot.facts is not None]
    invalid = [block for block in blocks if not block.is_valid]
    ends = [boot for boot in boots if boot.status is not BootStatus.OK]
    return ArmSummary(
        arm=arm,
        num_boots=len(boots),
        num_scored=len(comparison.boots.get(arm, ())),
        num_blocks=len(blocks) - len(invalid),
        num_invalid_blocks=len(invalid),
        objective_s=comparison.seconds(arm),
        step_time_source=source,
        cells=cells,
        acceptance_length=acceptance_lengths(arm, boots),
        kv_cache_tokens=_least(item.kv_cache_tokens for item in facts),
        kv_max_concurrency=_least(item.kv_max_concurrency for item in facts),
        boot_time_s=quantile([item.boot_time_s for item in facts], 0.5),
        status=ends[-1].status.value if ends else "ok" if boots else "waiting",
        reason=ends[-1].reason if ends else "",
    )


def _least(values: Iterable[_Number | None]) -> _Number | None:
    return min((value for value in values if value is not None), default=None)
