"""Rows that are another row once more: told from rows that are alike by chance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.core.types import CounterSnapshot
from orchestrator.errors import ConfigError
from orchestrator.results.chance import CHANCE, chance_of, copies, values_of
from orchestrator.results.columns import step_of
from orchestrator.results.observation import Observation

WIDTH = 0.07
"""Counts of like rows spread by this share of themselves at most. By it 0.11 pairs are expected in
a simulated grid of 17 arms, 10 cells and 3 boots; 7 of 40 grids had one."""
SPEED_WIDTH = 0.02
"""Figures of like rows without counters spread by this share of themselves at most: boots of one
arm differ by about a percent."""
STILL_WIDTH = 0.002
"""The same where all like rows have one value: an engine may be as steady as its digits."""
_FEWEST_COUNTS = 8
"""Distinct counts of like rows from which their own spread is listened to. Fewer say little, and
counts of drawn tokens always spread."""
_EXAMPLES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """Rows that are equal to an earlier one of their arm and cell."""

    copies: frozenset[int]
    """Places of those that count once, with the earlier one."""
    said: tuple[str, ...]
    """The first few in a sentence each, and how many more there are."""


def repeats(observations: Sequence[Observation]) -> Repeats:
    """Return the rows that repeat an earlier one of their arm and cell.

    Rows with counters are equal when these are, whatever the clock says (a fixed seed makes one
    observation twice); others when all is that was measured. Equal rows are copies where chance
    does not make as many at the digits that were written (``results.chance``), and all count where
    it does.
    """
    copied: dict[int, int] = {}
    by_chance: list[tuple[int, int]] = []
    for mark, size in ((_counts, _size_of_counts), (_speeds, _size_of_speeds)):
        told, others = _repeated(observations, mark, size)
        copied |= told
        by_chance += others
    kinds: dict[str, list[str]] = {}
    for index, first in sorted(copied.items()):
        item, other = observations[index], observations[first]
        is_told = item.boot is not None or _counts(item) is not None
        if is_told and _content(item) == _content(other):
            kinds.setdefault("repeat others and count once", []).append(
                f"{item.where} repeats {other.where} and counts once"
            )
            continue
        what = "are equal in all that was measured, as more rows are than by chance"
        if _counts(item) is not None:
            what = "have the same counters to the token"
        kinds.setdefault(f"{what}, and count once", []).append(
            f"{item.where} and {other.where} ({item.arm.label}, {item.cell.key}) {what}: one "
            "observation made twice, counted once"
        )
    said = [text for rest, texts in kinds.items() for text in some(texts, f"rows {rest}")]
    if by_chance:
        index, first = min(by_chance)
        rows = "1 row is" if len(by_chance) == 1 else f"{len(by_chance)} rows are"
        said.append(
            f"{rows} equal to an earlier one of the same arm and cell in all that was measured, "
            f"such as {observations[index].where} to {observations[first].where}: at the digits "
            "that are written chance may do that, so all count"
        )
    return Repeats(copies=frozenset(copied), said=tuple(said))


def some(texts: Sequence[str], rest: str) -> list[str]:
    """Return the first sentences, and in one more how many others there are."""
    more = len(texts) - _EXAMPLES
    # One more is no shorter to count than to say.
    return list(texts) if more <= 1 else [*texts[:_EXAMPLES], f"{more} more {rest}."]


def shared_counters(observations: Sequence[Observation]) -> Iterator[str]:
    """Yield the rows of two arms or cells with the same counters, where something explains them.

    Raises:
        ConfigError: Chance does not, so at least one row is another's.
    """
    seen: dict[Hashable, Observation] = {}
    pairs: list[tuple[Observation, Observation]] = []
    greedy: list[tuple[Observation, Observation]] = []
    for item in observations:
        counts = _counts(item)
        if counts is None:
            continue
        other = seen.setdefault(counts, item)
        if (other.arm, other.cell) != (item.arm, item.cell):
            (greedy if _is_one_by_rule(other, item) else pairs).append((other, item))
    yield from some(
        [
            f"{_named(other)} and {_named(item)} have the same counters to the token: at "
            "temperature 0 rules of one depth accept the same tokens, so both count"
            for other, item in greedy
        ],
        "such pairs at temperature 0",
    )
    if not pairs:
        return
    expected = _expected_pairs(observations)
    if chance_of(len(pairs), expected) < CHANCE:
        (other, item), more = pairs[0], len(pairs) - 1
        others = f" (and {more} more such pairs)" if more else ""
        raise ConfigError(
            "decide FILE",
            f"{_named(other)} and {_named(item)} have the same counters to the token{others}: one "
            "of them is not what it says",
            "correct the file, or leave both out with --leave-out",
        )
    yield from some(
        [
            f"{_named(other)} and {_named(item)} have the same counters to the token: by chance "
            f"{expected:.2g} such pairs are expected among these rows, so both count; look at them"
            for other, item in pairs
        ],
        "such pairs of two arms or cells",
    )


def _is_one_by_rule(one: Observation, other: Observation) -> bool:
    """Return whether two arms accept the same tokens: the target's, where nothing is drawn."""
    rules = {one.arm.rejection_sample_method, other.arm.rejection_sample_method}
    same = (one.cell, one.arm.num_speculative_tokens, one.arm.engine_build) == (
        other.cell,
        other.arm.num_speculative_tokens,
        other.arm.engine_build,
    )
    return same and one.cell.temperature == 0 and rules <= {"standard", "block"}


def _repeated(
    observations: Sequence[Observation],
    mark: Callable[[Observation], Hashable | None],
    size: Callable[[Sequence[Observation]], float],
) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """Return copies and rows that are equal by chance, each place with that of the first."""
    marks = {i: found for i, item in enumerate(observations) if (found := mark(item)) is not None}
    places = list(marks)
    if len(places) < 2:
        return {}, []
    groups: dict[Hashable, list[int]] = {}
    numbers: dict[Hashable, int] = {}
    ids = np.empty(len(places), dtype=np.int64)
    for row, place in enumerate(places):
        item = observations[place]
        group = (item.arm, item.cell, item.num_runs)
        groups.setdefault(group, []).append(row)
        ids[row] = numbers.setdefault((group, marks[place]), len(numbers))
    of_group = np.empty(len(places), dtype=np.int64)
    sizes = np.empty(len(places))
    for number, rows in enumerate(groups.values()):
        of_group[rows] = number
        sizes[rows] = size([observations[places[row]] for row in rows])
    is_copy = copies(ids, of_group, sizes)
    first = np.unique(ids, return_index=True)[1][ids]
    told: dict[int, int] = {}
    others: list[tuple[int, int]] = []
    for row in np.flatnonzero(first < np.arange(len(places))).tolist():
        if is_copy[row]:
            told[places[row]] = places[first[row]]
        else:
            others.append((places[row], places[first[row]]))
    return told, others


def _size_of_speeds(rows: Sequence[Observation]) -> float:
    """Return how many values a like row could have, at the finest digits that were written.

    A figure that all like rows have in common is set and not measured, such as the seconds of a
    window. Where they have all in common the one with the most digits was measured.
    """
    columns = [values for values in zip(*(row.stated for row in rows), strict=True) if any(values)]
    varied = [values for values in columns if len(set(values)) > 1]
    if not varied:
        return max((_values(column, STILL_WIDTH) for column in columns), default=1.0)
    return math.prod(_values(column, SPEED_WIDTH) for column in varied)


def _values(column: Sequence[float], assumed: float) -> float:
    unit = min(step_of(value) for value in set(column))
    return values_of(column, assumed=assumed, unit=unit)


def _size_of_counts(rows: Sequence[Observation]) -> float:
    """Return how many values the counters of a like row could have.

    Where all like rows have about as many tokens the accepted ones follow from the drafts. With
    counts by position, each but the first multiplies that by the spread of a count, its root.
    """
    counters = [row.block.counters for row in rows if row.block is not None]
    drafts = np.array([item.num_drafts or 0.0 for item in counters])
    accepted = np.array([item.num_accepted_tokens or 0.0 for item in counters])
    size, others = (
        values_of(counts, assumed=WIDTH, fewest=_FEWEST_COUNTS) for counts in (drafts, accepted)
    )
    others *= _not_told_by(drafts, accepted)
    both = drafts + accepted
    if len(set(drafts.tolist())) > 1:
        is_set = len(set(both.tolist())) == 1
        others = 1.0 if is_set else min(others, values_of(both, assumed=WIDTH))
    return size * max(1.0, others) * min(map(_by_position, counters))


def _not_told_by(one: np.ndarray, other: np.ndarray) -> float:
    """Return the share of a figure's spread that another does not tell, 0 to 1."""
    if len(set(one.tolist())) < _FEWEST_COUNTS or not np.std(other):
        return 1.0
    return math.sqrt(max(0.0, 1 - float(np.corrcoef(one, other)[0, 1]) ** 2))


def _by_position(counters: CounterSnapshot) -> float:
    counts = (counters.num_accepted_tokens_per_pos or ())[1:]
    return math.prod(math.sqrt(max(count, 1.0)) for count in counts)


def _expected_pairs(observations: Sequence[Observation]) -> float:
    """Return how many pairs of rows have equal counters by chance.

    Rows are binned by the logs of drafts and accepted tokens, in bins of WIDTH. Any two of a bin
    agree with probability 1 / the values that the counters of rows like them could have.
    """
    groups: dict[Hashable, list[Observation]] = {}
    for item in observations:
        if _counts(item) is not None:
            groups.setdefault((item.arm, item.cell, item.num_runs), []).append(item)
    bins: Counter[tuple[int, int]] = Counter()
    places: list[tuple[tuple[int, int], float]] = []
    for rows in groups.values():
        size = _size_of_counts(rows)
        for item in rows:
            assert item.block is not None
            counters = item.block.counters
            place = (_bin(counters.num_drafts), _bin(counters.num_accepted_tokens))
            bins[place] += 1
            places.append((place, size))
    return sum((bins[place] - 1) / 2 / size for place, size in places)


def _bin(count: float | None) -> int:
    return round(math.log(max(count or 0.0, 1.0)) / WIDTH)


def _named(item: Observation) -> str:
    return f"{item.where} ({item.arm.label}, {item.cell.key})"


def _content(item: Observation) -> Hashable:
    """Return what a row says but for its place."""
    return (item.boot, item.node, item.stated, _counts(item))


def _speeds(item: Observation) -> Hashable | None:
    """Return all that was measured of a row without counters; None of others."""
    if _counts(item) is not None or not item.tok_s:
        return None
    times = None if item.block is None else (item.block.ttft_s, item.block.tpot_s)
    return (item.stated, item.given_length, times)


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
