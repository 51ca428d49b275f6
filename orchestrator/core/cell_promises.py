"""What a verdict lets one expect of production in every cell, and with which weight.

``promise`` holds a challenger to one cell, the one that is measured. Production meets all of them
at a time, so that what a watcher expects of a minute is put together from the cells' own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.core.plausible import MAX_STREAMS
from orchestrator.core.promise import Expected, make_promise
from orchestrator.core.types import Arm, BoardModel, Boot, Cell

LEAST_MEAN, MOST_MEAN = 1e-9, 1e9
"""Of a level: far beyond any step time and acceptance length, and no sum of them overflows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A quantity and how far its truth may lie from it."""

    mean: float
    factor: float
    """Within which the verdict's interval lets the level differ, 1 or more."""

    def __post_init__(self) -> None:
        """Refuse what nothing can be compared with.

        Raises:
            ValueError: A number is out of range.
        """
        if not LEAST_MEAN <= self.mean <= MOST_MEAN:
            raise ValueError(f"mean {self.mean:g} is not {LEAST_MEAN:g} to {MOST_MEAN:g}")
        if not 1 <= self.factor < math.inf:
            raise ValueError(f"factor {self.factor:g} is no number from 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPromise:
    """One cell of a verdict."""

    cell: Cell
    weight: float
    """Share of the traffic's output tokens, 0 to 1."""
    length: Level | None
    """Tokens a step, and the interval of the mean; None without speculation or without spread."""
    step_time: Level | None
    """Seconds, and the interval of one boot; None where times are modelled or show no spread."""

    def __post_init__(self) -> None:
        """Refuse what no traffic has.

        Raises:
            ValueError: A number is out of range.
        """
        if not 0 <= self.weight < math.inf:
            raise ValueError(f"weight {self.weight:g} is no number from 0")
        if not 1 <= self.cell.streams <= MAX_STREAMS:
            raise ValueError(f"its cell's streams are not 1 to {MAX_STREAMS}")
        if not 0 <= self.cell.temperature < math.inf:
            raise ValueError("its cell's temperature is no number from 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPromises:
    """All cells of a verdict."""

    arm: Arm
    cells: tuple[CellPromise, ...]

    @property
    def weights(self) -> dict[tuple[int, float], float]:
        """Shares by streams and temperature, summing to 1; empty where all weights are 0.

        Arrivals that follow a clock have no streams and are left out.
        """
        found: dict[tuple[int, float], float] = {}
        for item in self.cells:
            if not item.cell.is_open_loop:
                found[item.cell.streams, item.cell.temperature] = item.weight
        total = sum(found.values())
        return {key: weight / total for key, weight in found.items()} if total > 0 else {}

    def length_of(self, shares: Mapping[tuple[int, float], float]) -> Level | None:
        """Return the acceptance length to be expected of a mix of output tokens.

        Formula: sum of share / sum of share / length, since tokens / length are steps; the factor
        is the geometric mean of the cells' by their shares.

        Args:
            shares: Of the output tokens by streams and temperature.

        Returns:
            None where nothing is promised of a tenth of the tokens or more.
        """
        known = {
            (item.cell.streams, item.cell.temperature): item.length
            for item in self.cells
            if item.length is not None and not item.cell.is_open_loop
        }
        parts = [
            (share, level) for key, share in shares.items() if (level := known.get(key)) is not None
        ]
        total = sum(share for share, _ in parts)
        if not parts or total <= 0.9 * sum(shares.values()):
            return None
        steps = sum(share / level.mean for share, level in parts)
        allowed = sum(share * math.log(level.factor) for share, level in parts) / total
        return Level(mean=total / steps, factor=math.exp(allowed))

    def step_time_at(self, streams: Sequence[float]) -> tuple[Level, ...] | None:
        """Return the step time at each number of streams, interpolated between the cells.

        Linear in the streams (``BoardModel``'s form) between cells; geometric mean over their
        temperatures; beyond the outermost cells that of the outermost.

        Returns:
            None where no step time is promised.
        """
        by_streams: dict[int, list[Level]] = {}
        for item in self.cells:
            if item.step_time is not None and not item.cell.is_open_loop:
                by_streams.setdefault(item.cell.streams, []).append(item.step_time)
        if not by_streams:
            return None
        places = sorted(by_streams)
        means = [_mean([level.mean for level in by_streams[place]]) for place in places]
        factors = [_mean([level.factor for level in by_streams[place]]) for place in places]
        return tuple(
            Level(mean=float(mean), factor=float(factor))
            for mean, factor in zip(
                np.interp(streams, places, means), np.interp(streams, places, factors), strict=True
            )
        )

    @property
    def most_streams(self) -> int | None:
        """The largest concurrency of which a step time is promised."""
        found = [
            item.cell.streams
            for item in self.cells
            if item.step_time is not None and not item.cell.is_open_loop
        ]
        return max(found, default=None)


def make_cell_promises(
    arm: Arm,
    boots: Sequence[Boot],
    *,
    weights: Mapping[Cell, float],
    board: BoardModel | None,
    confidence: float,
    step_tolerance: float,
) -> CellPromises:
    """Return what the boots of a study let one expect of the arm in all cells.

    Args:
        arm: What was chosen.
        boots: All boots of the study.
        weights: Share of the traffic by cell: all of the study's cells.
        board: Source of modelled step times; None when they were measured.
        confidence: Coverage of the intervals, 0 to 1.
        step_tolerance: Share of a step that the way through Serve may cost besides, 0 to 1.
    """
    found: list[CellPromise] = []
    for cell, weight in weights.items():
        promise = make_promise(
            arm, boots, cells=tuple(weights), cell=cell, board=board, confidence=confidence
        )
        # An hour of production has so many drafts that its own chance is nothing, and one boot.
        length = _level(promise.acceptance, math.inf, confidence)
        step = _level(promise.step_time, 1.0, confidence, tolerance=step_tolerance)
        found.append(CellPromise(cell=cell, weight=weight, length=length, step_time=step))
    return CellPromises(arm=arm, cells=tuple(found))


def _level(
    expected: Expected | None, weight: float, confidence: float, *, tolerance: float = 0.0
) -> Level | None:
    if expected is None:
        return None
    factor = expected.factor(weight, confidence) * (1 + tolerance)
    # An interval that leaves everything open promises nothing.
    return Level(mean=expected.mean, factor=factor) if factor < math.inf else None


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))
