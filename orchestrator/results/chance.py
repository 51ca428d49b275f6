"""How likely rows of one arm and cell are equal by chance, and which are equal beyond it. Pure.

Two rows that were measured apart have equal figures with probability 1 / size, the size being the
number of values that a like row could have at the digits that were written:

    size            product over the figures of width / unit of the last digit, or 1 where that is
                    below FEWEST_VALUES: a figure that hardly moves at its digits tells nothing
    width           2 sqrt(pi) * standard deviation, so that a normal figure's chance is 1 / size;
                    at most what is assumed of the kind of figure
    expected pairs  sum over arms and cells of n (n - 1) / 2 / size
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

CHANCE = 0.01
"""Equal rows are no chance when as many were less likely than this by it."""
MOST_BY_CHANCE = 0.05
"""Share of the equal pairs, 0 to 1, that may be expected by chance where all are called copies."""
MOST_BY_CHANCE_APART = 0.2
"""The same of rows that are equal to the row so many before."""
MOST_APART = 1000
"""Rows that such copies are looked for apart at most."""
FEWEST_VALUES = 4.0
"""Values that a figure must have among like rows for an equal one to tell something."""
_WIDTH_OF_NORMAL = 2 * math.sqrt(math.pi)
_MODULUS = (1 << 61) - 1
_BASE = 1_000_003


def chance_of(pairs: float, expected: float) -> float:
    """Return the chance of so many pairs or more, at most.

    Formula: expected^pairs / pairs!, which a Poisson tail does not exceed.
    """
    if not expected:
        return 0.0
    return math.exp(min(0.0, pairs * math.log(expected) - math.lgamma(pairs + 1)))


def values_of(
    figures: Sequence[float] | np.ndarray, *, assumed: float, unit: float = 1.0, fewest: int = 2
) -> float:
    """Return how many values a figure of like rows could have, from 1.

    The spread is that of the rows or of their distinct values, whichever is less: copies make the
    one too small, and the ends of a coarse figure the other too large.

    Args:
        figures: Of rows of one arm and cell.
        assumed: Largest width as a share of the figures; the only one where all are equal.
        unit: Of the last digit.
        fewest: Distinct values from which their spread is listened to.
    """
    distinct = np.unique(figures)
    width = assumed * float(np.mean(distinct))
    if len(distinct) >= fewest:
        spread = min(float(np.std(some, ddof=1)) for some in (distinct, figures))
        width = min(width, _WIDTH_OF_NORMAL * spread)
    return width / unit if width >= FEWEST_VALUES * unit else 1.0


def copies(ids: np.ndarray, groups: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return which rows are copies of an earlier one, [n].

    Args:
        ids: Number of what each row says, in the order of the rows; equal rows have one number, and
            are of one group.
        groups: Number of each row's arm and cell.
        sizes: Of each row, the same within a group, from 1.
    """
    first = np.unique(ids, return_index=True)[1][ids]
    is_equal: np.ndarray = first < np.arange(len(ids))
    if not is_equal.any():
        return is_equal
    found: np.ndarray = is_equal & _by_number(ids, groups, sizes)
    if (is_equal & ~found).any():
        found |= _by_run(ids, groups, sizes) | _by_distance(ids, groups, sizes)
    return found


def _pairs(counts: np.ndarray) -> np.ndarray:
    return np.asarray(counts * (counts - 1) / 2)


def _by_number(ids: np.ndarray, groups: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the rows of those arms and cells that have more equal pairs than chance makes.

    Those with less than one expected pair are taken together, each other by itself.
    """
    _, starts, places, rows = np.unique(
        groups, return_index=True, return_inverse=True, return_counts=True
    )
    expected = _pairs(rows) / sizes[starts]
    _, of_id, numbers = np.unique(ids, return_index=True, return_counts=True)
    equal = np.bincount(places[of_id], weights=_pairs(numbers), minlength=len(rows))
    is_sparse = expected < 1
    told = np.array([_is_beyond(*pair) for pair in zip(equal, expected, strict=True)], dtype=bool)
    told[is_sparse] = _is_beyond(float(equal[is_sparse].sum()), float(expected[is_sparse].sum()))
    return np.asarray(told[places], dtype=bool)


def _is_beyond(equal: float, expected: float) -> bool:
    few = expected <= MOST_BY_CHANCE * equal
    return bool(equal and few and chance_of(equal, expected) < CHANCE)


def _by_run(ids: np.ndarray, groups: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the rows of runs that stand there once more (a block pasted again).

    A run is by chance somewhere with (pairs of like rows) * product over its rows of 1 / size at
    most. So each row begins a shortest run that chance does not make twice, and equal ones are
    found by a rolling hash of their numbers (Karp and Rabin).
    """
    num = len(ids)
    copied = np.zeros(num, dtype=bool)
    pairs = float(_pairs(np.unique(groups, return_counts=True)[1]).sum())
    told = np.concatenate(([0.0], np.cumsum(np.log(sizes))))
    ends = np.searchsorted(told, told[:-1] + math.log(pairs / CHANCE), side="right")
    hashes, powers = [0], [1]
    for number in ids.tolist():
        hashes.append((hashes[-1] * _BASE + number + 1) % _MODULUS)
        powers.append(powers[-1] * _BASE % _MODULUS)
    seen: dict[tuple[int, int], int] = {}
    for start, end in enumerate(ends.tolist()):
        if end > num:
            break
        mark = (end - start, (hashes[end] - hashes[start] * powers[end - start]) % _MODULUS)
        earlier = seen.setdefault(mark, start)
        if earlier == start:
            continue
        copied[start:end] = True
        distance = start - earlier
        while end < num and not copied[end] and ids[end] == ids[end - distance]:
            copied[end] = True
            end += 1
    return copied


def _by_distance(ids: np.ndarray, groups: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the rows that are equal to the row so many before (each boot's row pasted again)."""
    num = len(ids)
    copied = np.zeros(num, dtype=bool)
    most = min(num - 1, MOST_APART)
    for distance in range(1, most + 1):
        equal = np.flatnonzero(ids[distance:] == ids[:-distance]) + distance
        if not equal.size:
            continue
        is_like = groups[distance:] == groups[:-distance]
        expected = float(np.sum(is_like / sizes[distance:]))
        is_few = expected <= MOST_BY_CHANCE_APART * equal.size
        if is_few and chance_of(equal.size, expected) * most < CHANCE:
            copied[equal] = True
    return copied
