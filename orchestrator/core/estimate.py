"""Point estimates by cell, the objective of a boot, and contrasts between arms.

The boot is the unit of replication: blocks are pooled inside a boot and never treated as boots.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from orchestrator.core.comparable import comparable_boots
from orchestrator.core.formulas import (
    acceptance_length,
    acceptance_rate_per_position,
    factor_of,
    output_throughput,
    pooled,
    quantile,
    step_time_s,
    stream_seconds,
)
from orchestrator.core.types import (
    Arm,
    Block,
    BoardModel,
    Boot,
    BootStatus,
    Cell,
)

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
    num_blocks: tuple[int, int] | None = None
    """Valid blocks behind a and b; None where scores came without blocks."""
    degrees_of_freedom: int
    """Of the spread between boots, or of acceptance where step times have none; 0 without an
    interval."""
    boot_share: float | None = None
    """Part of the variance that comes from the spread between boots, 0 to 1; the rest comes from
    acceptance. None where the two were not told apart."""
    method: str
    reason: str | None
    """Why there is no interval; None when there is one."""

    @property
    def excludes_zero(self) -> bool | None:
        """Whether the arms are told apart; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return self.low > 0 or self.high < 0

    @property
    def speedup(self) -> float | None:
        """How many times as fast a is as b, exp(-log_ratio); None without scores."""
        return None if self.log_ratio is None else math.exp(-self.log_ratio)

    @property
    def speedup_bounds(self) -> tuple[float, float] | None:
        """Interval of ``speedup``; None when there is none. The upper bound may be infinite."""
        if self.low is None or self.high is None:
            return None
        return factor_of(-self.high), factor_of(-self.low)

    @property
    def in_words(self) -> str:
        """The speedup, its interval or why there is none, and the boots behind it."""
        if self.speedup is None:
            return f"not comparable ({self.reason})"
        boots = f"{self.num_boots[0]} and {self.num_boots[1]} boots"
        if self.num_blocks is not None:
            boots += f" with {self.num_blocks[0]} and {self.num_blocks[1]} blocks"
        bounds = self.speedup_bounds
        if bounds is None:
            return f"{self.speedup:.2f} times as fast (no interval: {self.reason}; {boots})"
        return (
            f"{self.speedup:.2f} times as fast ({100 * self.confidence:g} % interval "
            f"{bounds[0]:.2f} to {bounds[1]:.2f}, {boots})"
        )


def cell_estimates(
    arm: Arm, boots: Sequence[Boot], board: BoardModel | None
) -> tuple[CellEstimate, ...]:
    """Return the arm's estimates by cell, in the order of the cells.

    Boots of other arms and boots whose arm was not in force are left out; the finished cells of a
    failed boot count.
    """
    own = [
        boot
        for boot in comparable_boots(boots)
        if boot.arm == arm and boot.status is not BootStatus.NOT_IN_FORCE
    ]
    cells = sorted({block.cell for boot in own for block in _valid(boot.blocks)})
    return tuple(_cell_estimate(arm, own, cell=cell, board=board) for cell in cells)


def acceptance_lengths(arm: Arm, boots: Sequence[Boot]) -> dict[float, float | None]:
    """Return the acceptance length by temperature, counters pooled over streams and boots.

    1 for the arm without speculation. Boots are left out as in ``cell_estimates``.
    """
    blocks = [
        block
        for boot in comparable_boots(boots)
        if boot.arm == arm and boot.status is not BootStatus.NOT_IN_FORCE
        for block in _valid(boot.blocks)
    ]
    temperatures = sorted({block.cell.temperature for block in blocks})
    return {
        temperature: _length(arm, [b for b in blocks if b.cell.temperature == temperature])
        for temperature in temperatures
    }


def cell_step_time(boot: Boot, cell: Cell, board: BoardModel | None) -> float | None:
    """Return the seconds of one engine step in one cell of one boot, blocks pooled.

    Measured, or the board model's; None when the cell has no valid block.
    """
    return _step_s(boot.arm, _valid(boot.blocks, cell), cell=cell, board=board)


def cell_ttft(boot: Boot, cell: Cell) -> float | None:
    """Return the median time to first token in one cell of one boot; None without times."""
    return _ttft_p50_s(_valid(boot.blocks, cell))


def cell_score(boot: Boot, cell: Cell, board: BoardModel | None) -> float | None:
    """Return the seconds per output token of one stream in one cell of one boot.

    Formula: step_time_s / acceptance_length, blocks of the cell pooled; acceptance length 1 for
    the arm without speculation; step time from the board model when there is one.

    Returns:
        Seconds, or None when the cell has no valid block.
    """
    blocks = _valid(boot.blocks, cell)
    step_s = _step_s(boot.arm, blocks, cell=cell, board=board)
    length = _length(boot.arm, blocks)
    return None if step_s is None or length is None else step_s / length


def boot_objective(
    boot: Boot, weights: Mapping[Cell, float], board: BoardModel | None
) -> float | None:
    """Return the traffic's mean seconds per output token of one stream, in one boot.

    Formula: sum over cells of weight * step_time_s / acceptance_length. Cells of weight 0 do not
    count.

    Returns:
        Seconds, or None when the boot did not end well or a weighted cell has no valid block.
    """
    if boot.status is not BootStatus.OK:
        return None
    total = 0.0
    for cell, weight in weights.items():
        if weight <= 0:
            continue
        score = cell_score(boot, cell, board)
        if score is None:
            return None
        total += weight * score
    return total


def known_arms(arms: Iterable[Arm], board: BoardModel | None) -> frozenset[Arm]:
    """Return the arms whose score a board model states: those without speculation."""
    return frozenset(arm for arm in arms if board is not None and arm.is_baseline)


def independent_boots(boots: Sequence[Boot]) -> tuple[Boot, ...]:
    """Return the boots without those that repeat an earlier one's counters to the token.

    Equal draft counters in every block are one observation made twice (a fixed seed), and two
    copies would make the spread between boots look smaller than it is.
    """
    kept: list[Boot] = []
    seen: set[object] = set()
    for boot in sorted(boots, key=lambda boot: (boot.arm.key, boot.replicate)):
        mark = _draft_counts(boot)
        if mark is None or mark not in seen:
            kept.append(boot)
        seen.add(mark)
    return tuple(kept)


def _cell_estimate(
    arm: Arm, boots: Sequence[Boot], *, cell: Cell, board: BoardModel | None
) -> CellEstimate:
    by_boot = [blocks for boot in boots if (blocks := _valid(boot.blocks, cell))]
    blocks = [block for group in by_boot for block in group]
    seconds = sum(block.duration_s for block in blocks)
    steps = [_step_s(arm, group, cell=cell, board=board) for group in by_boot]
    scores = [cell_score(boot, cell, board) for boot in boots]
    return CellEstimate(
        cell=cell,
        num_boots=len(by_boot),
        num_blocks=len(blocks),
        acceptance_length=_length(arm, blocks),
        acceptance_rate_per_position=(
            None
            if arm.is_baseline
            else acceptance_rate_per_position(pooled([block.counters for block in blocks]))
        ),
        step_time_s=geometric_mean(steps),
        step_time_source="measured" if board is None else "modelled",
        output_throughput=output_throughput(sum(block.output_tokens for block in blocks), seconds),
        seconds_per_output_token=geometric_mean(scores),
        ttft_p50_s=_ttft_p50_s(blocks),
    )


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Return exp(mean of logs) of the values that are not None; None when all are."""
    known = [value for value in values if value is not None]
    return float(np.exp(np.mean(np.log(known)))) if known else None


def _valid(blocks: Sequence[Block], cell: Cell | None = None) -> list[Block]:
    return [b for b in blocks if b.is_valid and cell in (None, b.cell)]


def _length(arm: Arm, blocks: Sequence[Block]) -> float | None:
    if not blocks:
        return None
    return (
        1.0 if arm.is_baseline else acceptance_length(pooled([block.counters for block in blocks]))
    )


def _step_s(
    arm: Arm, blocks: Sequence[Block], *, cell: Cell, board: BoardModel | None
) -> float | None:
    if not blocks:
        return None
    if board is not None:
        return board.step_time_s(arm.num_speculative_tokens, cell.streams)
    return step_time_s(
        pooled([block.counters for block in blocks]),
        busy_s=stream_seconds(blocks),
        output_tokens=sum(block.output_tokens for block in blocks),
        speculates=not arm.is_baseline,
    )


def _ttft_p50_s(blocks: Sequence[Block]) -> float | None:
    return quantile([value for block in blocks for value in block.ttft_s], 0.5)


def _draft_counts(boot: Boot) -> object | None:
    marks = tuple(
        (block.cell, block.index, block.counters.num_drafts, block.counters.num_accepted_tokens)
        for block in _valid(boot.blocks)
        if block.counters.num_drafts
    )
    return (boot.arm, marks) if marks else None
