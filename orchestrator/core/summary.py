"""What a study knows of each arm, in one record: the rows of tables and of the ranking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.core.estimate import CellEstimate, StepTimeSource
from orchestrator.core.types import Arm, BoardModel, Boot, Cell


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
    """Geometric mean of the boots' objectives."""
    step_time_source: StepTimeSource
    cells: tuple[CellEstimate, ...]
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
    raise NotImplementedError


def scores_by_arm(
    boots: Sequence[Boot], *, weights: Mapping[Cell, float], board: BoardModel | None
) -> dict[Arm, tuple[float, ...]]:
    """Return the objectives of the scored boots by arm, by replicate, duplicates counted once."""
    raise NotImplementedError
