"""Rows that are another row once more: told from rows that are alike by chance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

from orchestrator.core.types import CounterSnapshot
from orchestrator.errors import ConfigError
from orchestrator.results.observation import Observation

CHANCE = 0.01
"""Equal counters of two arms are refused when as many were less likely than this by chance."""
WIDTH = 0.07
"""Counts of like rows spread by this share of themselves. By it 0.11 pairs are expected in a
simulated grid of 17 arms, 10 cells and 3 boots; 7 of 40 grids had one."""


def repeats(observations: Sequence[Observation]) -> Iterator[tuple[int, str]]:
    """Yield the places of rows that repeat an earlier one of their arm and cell, and what to say.

    Equal counters are one observation made twice (a fixed seed), whatever the clock says.
    """
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
