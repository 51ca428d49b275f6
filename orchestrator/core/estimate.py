"""Point estimates by cell, the objective of a boot, and contrasts between arms.

The boot is the unit of replication: blocks are pooled inside a boot and never treated as boots.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.core.types import Arm, BoardModel, Boot, Cell

StepTimeSource = Literal["measured", "modelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellEstimate:
    """What is known of one arm in one cell, over its boots; None where nothing is."""

    cell: Cell
    num_boots: int
    """Boots with at least one valid block of the cell."""
    num_blocks: int
    acceptance_length: float | None
    """1 for the arm without speculation; counters pooled over boots otherwise."""
    acceptance_rate_per_position: tuple[float | None, ...] | None
    step_time_s: float | None
    """Geometric mean over boots, or the board model's."""
    step_time_source: StepTimeSource
    output_throughput: float | None
    """Output tokens / s of all streams as measured here, whatever the step time's source."""
    seconds_per_output_token: float | None
    """Of one stream, geometric mean over boots: step time / acceptance length."""
    ttft_p50_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """The ratio of two arms' scores, on the log scale; scores are seconds, so less is better."""

    log_ratio: float | None
    """log(score of a / score of b); below 0 means that a is faster. None without scores."""
    low: float | None
    """Bounds of the interval of ``log_ratio``; None when there is no interval."""
    high: float | None
    confidence: float
    num_boots: tuple[int, int]
    """Boots of a and of b."""
    degrees_of_freedom: int
    """Of the pooled variance; 0 when there is none."""
    method: str
    reason: str | None
    """Why there is no interval; None when there is one."""

    @property
    def excludes_zero(self) -> bool | None:
        """Whether the arms are told apart; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return self.low > 0 or self.high < 0


def cell_estimates(
    arm: Arm, boots: Sequence[Boot], board: BoardModel | None
) -> tuple[CellEstimate, ...]:
    """Return the arm's estimates by cell, in the order of the cells.

    Boots of other arms and boots whose arm was not in force are left out; the finished cells of a
    failed boot count.
    """
    raise NotImplementedError


def cell_score(boot: Boot, cell: Cell, board: BoardModel | None) -> float | None:
    """Return the seconds per output token of one stream in one cell of one boot.

    Formula: step_time_s / acceptance_length, blocks of the cell pooled; acceptance length 1 for
    the arm without speculation; step time from the board model when there is one.

    Returns:
        Seconds, or None when the cell has no valid block.
    """
    raise NotImplementedError


def boot_objective(
    boot: Boot, weights: Mapping[Cell, float], board: BoardModel | None
) -> float | None:
    """Return the traffic's mean seconds per output token of one stream, in one boot.

    Formula: sum over cells of weight * step_time_s / acceptance_length. Cells of weight 0 do not
    count.

    Returns:
        Seconds, or None when the boot did not end well or a weighted cell has no valid block.
    """
    raise NotImplementedError


def compare(
    scores: Mapping[Arm, Sequence[float]],
    *,
    a: Arm,
    b: Arm,
    confidence: float,
    fixed: Collection[Arm] = (),
) -> Contrast:
    """Return the log ratio of two arms' scores with a t interval, boots as observations.

    The between-boot variance of the log scores is pooled over all arms with at least two boots,
    which assumes that boots of every arm spread by the same relative amount.

    Args:
        scores: Objective of each boot, in seconds, by arm.
        a: First arm.
        b: Second arm.
        confidence: Coverage of the interval, 0 to 1.
        fixed: Arms whose score is known and not measured (the arm without speculation under a
            board model); they add neither variance nor degrees of freedom.

    Returns:
        The contrast; without an interval and with a reason when no arm is replicated.
    """
    raise NotImplementedError


def compare_cell(
    boots: Sequence[Boot],
    *,
    cell: Cell,
    a: Arm,
    b: Arm,
    board: BoardModel | None,
    confidence: float,
) -> Contrast:
    """Return ``compare`` of the seconds per output token in one cell."""
    raise NotImplementedError
