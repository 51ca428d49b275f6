"""Rows that are another row once more: told from rows that are alike by chance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from decimal import Decimal

import numpy as np

from orchestrator.core.types import CounterSnapshot
from orchestrator.errors import ConfigError
from orchestrator.results.observation import Observation

CHANCE = 0.01
"""Equal counters of two arms are refused when as many were less likely than this by chance."""
WIDTH = 0.07
"""Counts of like rows spread by this share of themselves. By it 0.11 pairs are expected in a
simulated grid of 17 arms, 10 cells and 3 boots; 7 of 40 grids had one."""
SPEED_WIDTH = 0.02
"""Figures of like rows without counters spread by this share of themselves: boots of one arm differ
by about a percent."""


def repeats(observations: Sequence[Observation]) -> Iterator[tuple[int, str]]:
    """Yield the places of rows that repeat an earlier one of their arm and cell, and what to say.

    Equal counters are one observation made twice (a fixed seed), whatever the clock says. Rows
    without counters repeat where so many equal figures are less likely than CHANCE.
    """
    copied = _copied_speeds(observations)
    rows: dict[Hashable, Observation] = {}
    counted: dict[Hashable, Observation] = {}
    for index, item in enumerate(observations):
        content = (item.arm, item.cell, _content(item))
        counts = _counts(item)
        mark = None if counts is None else (item.arm, item.cell, counts)
        if content in rows:
            yield index, f"{item.where} repeats {rows[content].where} and counts once"
        elif mark in counted:
            yield (
                index,
                f"{item.where} and {counted[mark].where} ({item.arm.label}, {item.cell.key}) have "
                "the same counters to the token: one observation made twice, counted once",
            )
        elif index in copied:
            yield (
                index,
                f"{item.where} and {observations[copied[index]].where} ({item.arm.label}, "
                f"{item.cell.key}) are equal in all that was measured, as more rows are than by "
                "chance: one observation made twice, counted once",
            )
        else:
            rows[content] = item
            if mark is not None:
                counted[mark] = item


def shared_counters(observations: Sequence[Observation]) -> Iterator[str]:
    """Yield the rows of two arms or cells with the same counters, where chance explains them.

    Raises:
        ConfigError: Chance does not, so at least one row is another's.
    """
    seen: dict[Hashable, Observation] = {}
    pairs: list[tuple[Observation, Observation]] = []
    for item in observations:
        counts = _counts(item)
        if counts is None:
            continue
        other = seen.setdefault(counts, item)
        if (other.arm, other.cell) != (item.arm, item.cell):
            pairs.append((other, item))
    if not pairs:
        return
    expected = _expected_pairs(observations)
    if _chance_of(len(pairs), expected) < CHANCE:
        (other, item), more = pairs[0], len(pairs) - 1
        others = f" (and {more} more such pairs)" if more else ""
        raise ConfigError(
            "decide FILE",
            f"{_named(other)} and {_named(item)} have the same counters to the token{others}: one "
            "of them is not what it says",
            "correct the file, or leave both out with --leave-out",
        )
    for other, item in pairs:
        yield (
            f"{_named(other)} and {_named(item)} have the same counters to the token: by chance "
            f"{expected:.2g} such pairs are expected among these rows, so both count; look at them"
        )


def _expected_pairs(observations: Sequence[Observation]) -> float:
    """Return how many pairs of rows have equal counters by chance.

    Rows are binned by the logs of drafts and accepted tokens, in bins of WIDTH. The rows of a bin
    are taken to lie anywhere in it, so that any two agree with probability 1 / its whole numbers.
    With counts by position, each but the first divides that by the spread of a count, its root.
    """
    bins: Counter[tuple[int, int]] = Counter()
    places: list[tuple[tuple[int, int], float]] = []
    for item in observations:
        if item.block is None or _counts(item) is None:
            continue
        counters = item.block.counters
        drafts, accepted = counters.num_drafts or 0.0, counters.num_accepted_tokens or 0.0
        place = (_bin(drafts), _bin(accepted))
        bins[place] += 1
        places.append((place, _size(drafts) * _size(accepted) * _by_position(counters)))
    return sum((bins[place] - 1) / 2 / size for place, size in places)


def _copied_speeds(observations: Sequence[Observation]) -> dict[int, int]:
    """Return the places of rows without counters that are copies, each with the row it is of.

    Three signs, each against CHANCE: the number of equal rows in any order; the number of rows that
    are equal to the row so many before, times the distances there are (each boot's row pasted
    again); and a run of such rows (a block pasted again). Any two rows of an arm and cell
    are equal by chance with probability 1 / _whole_numbers, so a run is by chance with

        pairs of like rows * product over its rows of 1 / _whole_numbers

    at most, and the number of equal rows is Poisson's.
    """
    places = [i for i, item in enumerate(observations) if _counts(item) is None and item.tok_s]
    if len(places) < 2:
        return {}
    rows = [observations[i] for i in places]
    varied = [len(set(values)) > 1 for values in zip(*map(_figures, rows), strict=True)]
    sizes = np.array([_whole_numbers(_figures(row), varied) for row in rows])
    numbers: dict[Hashable, int] = {}
    marks = [(row.arm, row.cell, row.num_runs, *_measured(row)) for row in rows]
    ids = np.array([numbers.setdefault(mark, len(numbers)) for mark in marks])
    like = Counter((row.arm, row.cell) for row in rows)
    order = {place: number for number, place in enumerate(like)}
    cells = np.array([order[row.arm, row.cell] for row in rows])
    pairs = sum(count * (count - 1) / 2 for count in like.values())
    others = np.array([like[row.arm, row.cell] - 1 for row in rows])
    expected = float(np.sum(others / 2 / sizes))
    num_equal = len(rows) - len(numbers)
    first = np.unique(ids, return_index=True)[1][ids]
    copies = np.zeros(len(rows), dtype=bool)
    if num_equal and _chance_of(num_equal, expected) < CHANCE:
        copies = first < np.arange(len(rows))
    for lag in range(1, len(rows)) if num_equal and not copies.any() else ():
        equal = np.flatnonzero(ids[lag:] == ids[:-lag]) + lag
        is_like = cells[lag:] == cells[:-lag]
        by_chance = float(np.sum(is_like / sizes[lag:]))
        if equal.size and _chance_of(equal.size, by_chance) * len(rows) < CHANCE:
            copies[equal] = True
        for run in np.split(equal, np.flatnonzero(np.diff(equal) > 1) + 1):
            if run.size and math.log(pairs) - np.log(sizes[run]).sum() < math.log(CHANCE):
                copies[run] = True
    return {places[i]: places[first[i]] for i in np.flatnonzero(copies)}


def _figures(item: Observation) -> tuple[float, float]:
    """Return the figures that a row without counters states: tokens and seconds, or tokens / s."""
    block = item.block
    return (item.tok_s or 0.0, 0.0) if block is None else (block.output_tokens, block.duration_s)


def _measured(item: Observation) -> tuple[Hashable, ...]:
    block = item.block
    times = None if block is None else (block.ttft_s, block.tpot_s)
    return (*_figures(item), item.given_length, times)


def _whole_numbers(figures: Sequence[float], varied: Sequence[bool]) -> float:
    """Return how many values a like row could have, at the digits that were written.

    Figures that all rows have in common are set and not measured, such as a window's length.
    """
    steps = [
        max(SPEED_WIDTH * value / 10.0 ** min(0, _exponent(value)), 1.0)
        for value, varies in zip(figures, varied, strict=True)
        if varies
    ]
    return math.prod(steps)


def _exponent(value: float) -> int:
    exponent = Decimal(repr(float(value))).normalize().as_tuple().exponent
    return exponent if isinstance(exponent, int) else 0


def _by_position(counters: CounterSnapshot) -> float:
    counts = (counters.num_accepted_tokens_per_pos or ())[1:]
    return math.prod(math.sqrt(max(count, 1.0)) for count in counts)


def _bin(count: float) -> int:
    return round(math.log(max(count, 1.0)) / WIDTH)


def _size(count: float) -> float:
    return max(WIDTH * count, 1.0)


def _chance_of(pairs: int, expected: float) -> float:
    """Return the chance of so many pairs or more, at most.

    Formula: expected^pairs / pairs!, which a Poisson tail does not exceed.
    """
    if not expected:
        return 0.0
    return math.exp(min(0.0, pairs * math.log(expected) - math.lgamma(pairs + 1)))


def _named(item: Observation) -> str:
    return f"{item.where} ({item.arm.label}, {item.cell.key})"


def _content(item: Observation) -> Hashable:
    """Return what a row says but for its place; speeds without a boot may be alike by chance."""
    block = item.block
    if block is None:
        return (item.boot, item.tok_s, item.where if item.boot is None else "")
    return (item.boot, item.node, block.duration_s, block.output_tokens, _counts(item))


def _counts(item: Observation) -> Hashable | None:
    if item.block is None:
        return None
    counters = item.block.counters
    if not counters.num_drafts or counters.num_accepted_tokens is None:
        return None
    return (
        counters.num_drafts,
        counters.num_accepted_tokens,
        counters.num_accepted_tokens_per_pos,
    )
