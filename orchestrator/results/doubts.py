"""What rows say of each other: twice the same, copies, means beside their runs, odd ones out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.core.distributions import t_quantile
from orchestrator.core.trend import rank_trend
from orchestrator.core.types import Arm, Cell
from orchestrator.errors import ConfigError
from orchestrator.results.observation import Observation

FEWEST_DRAFTS = 100
"""Drafts from which equal counters of two rows are no chance."""
FEWEST_FOR_OUTLIER = 4
"""Runs of one arm in one cell from which one can stand out against the others."""
OUTLIER_LEVEL = 0.4
"""Chance at most that one of a cell's runs is flagged although all are alike. Generous: a flag
drops nothing, it asks for the run to be made again."""
DRIFT_LEVEL = 0.05
"""Chance that any cell of a file is said to drift although none does."""
_MOST_RUNS = 8
_SAME = 2e-3
"""Relative distance of a mean to that of its runs; published means have three or four digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sifted:
    """The rows that count, and what was found among them."""

    observations: tuple[Observation, ...]
    doubts: tuple[str, ...]
    """A sentence each: rows that do not count, and rows that do and should be looked at."""


def sift(observations: Sequence[Observation]) -> Sifted:
    """Leave out what is there twice or counts nothing, and say so; flag what stands out.

    Raises:
        ConfigError: Rows of two arms have the same counters, so at least one is another's.
    """
    _refuse_shared_counters(observations)
    doubts: list[str] = []
    kept: list[Observation] = []
    for item in observations:
        reason = _invalid(item) or _twice(item, kept)
        if reason is None:
            kept.append(item)
        else:
            doubts.append(reason)
    summaries = {id(item): text for item, text in _means_of_runs(kept)}
    doubts += summaries.values()
    kept = [item for item in kept if id(item) not in summaries]
    flagged = (*_outliers(kept), *_drifts(kept), *_means(kept))
    return Sifted(observations=tuple(kept), doubts=(*doubts, *flagged))


def _invalid(item: Observation) -> str | None:
    if item.block is None or item.block.is_valid:
        return None
    return f"{item.where} does not count: {item.block.invalid_reason}"


def _twice(item: Observation, kept: Sequence[Observation]) -> str | None:
    counters = _counters(item)
    for other in kept:
        if other.arm != item.arm or other.cell != item.cell:
            continue
        if _content(item) == _content(other):
            return f"{item.where} repeats {other.where} and counts once"
        if counters is not None and counters == _counters(other):
            return (
                f"{item.where} and {other.where} ({item.arm.label}, {item.cell.key}) have the same "
                "counters to the token: one observation made twice, counted once"
            )
    return None


def _content(item: Observation) -> Hashable:
    """Return what a row says but for its place; speeds without a boot may be alike by chance."""
    block = item.block
    if block is None:
        return (item.boot, item.tok_s, item.where if item.boot is None else "")
    return (item.boot, item.node, block.duration_s, block.output_tokens, _counters(item))


def _counters(item: Observation) -> Hashable | None:
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


def _refuse_shared_counters(observations: Sequence[Observation]) -> None:
    seen: dict[Hashable, Observation] = {}
    for item in observations:
        counters = _counters(item)
        if item.block is None or counters is None:
            continue
        other = seen.setdefault(counters, item)
        drafts = item.block.counters.num_drafts or 0
        if (other.arm, other.cell) != (item.arm, item.cell) and drafts >= FEWEST_DRAFTS:
            raise ConfigError(
                "decide FILE",
                f"{other.where} ({other.arm.label}, {other.cell.key}) and {item.where} "
                f"({item.arm.label}, {item.cell.key}) have the same counters to the token: one of "
                "them is not what it says",
                "correct the file, or leave both out with --leave-out",
            )


def _by_place(observations: Sequence[Observation]) -> dict[tuple[Arm, Cell], list[Observation]]:
    places: dict[tuple[Arm, Cell], list[Observation]] = {}
    for item in observations:
        places.setdefault((item.arm, item.cell), []).append(item)
    return places


def _means_of_runs(observations: Sequence[Observation]) -> Iterator[tuple[Observation, str]]:
    """Yield the rows that are the mean of other rows: counted too, those would count twice."""
    for (arm, cell), own in _by_place(observations).items():
        runs = [i for i in own if i.num_runs == 1 and i.tok_s is not None][:_MOST_RUNS]
        for item in own:
            if item.num_runs < 2 or item.tok_s is None:
                continue
            for group in itertools.combinations(runs, item.num_runs):
                mean = sum(run.tok_s or 0.0 for run in group) / item.num_runs
                if abs(mean - item.tok_s) <= _SAME * item.tok_s:
                    rows = ", ".join(run.where.rpartition(" ")[2] for run in group)
                    unit = item.where.split(" ")[-2]
                    yield (
                        item,
                        f"{item.where} ({arm.label}, {cell.key}, {item.tok_s:g}) is the mean of "
                        f"{unit}s {rows} and does not count beside them",
                    )
                    break


def _means(observations: Sequence[Observation]) -> Iterator[str]:
    for item in observations:
        if item.num_runs > 1:
            yield (
                f"{item.where} ({item.arm.label}, {item.cell.key}) is the mean of {item.num_runs} "
                "runs that are not in the file: their spread is not known, and it counts as one"
            )


def _drifts(observations: Sequence[Observation]) -> Iterator[str]:
    """Yield the cells whose speeds rise or fall in the order of the rows, by rank.

    Two-sided, Bonferroni over the cells that can be tested.
    """
    series = {
        place: [item.tok_s for item in own if item.tok_s is not None]
        for place, own in _by_place(observations).items()
    }
    trends = {place: rank_trend(values) for place, values in series.items()}
    tested = {place: trend for place, trend in trends.items() if trend is not None}
    for (arm, cell), trend in tested.items():
        p_value = min(1.0, 2 * trend.p_value)
        if p_value * len(tested) < DRIFT_LEVEL:
            way = "rise" if trend.rho > 0 else "fall"
            yield (
                f"{arm.label}, {cell.key}: the speeds {way} in the order of the rows (rank "
                f"correlation {trend.rho:.2f}, p {p_value:.3f}): a drift, so they are no repeats "
                "of one thing"
            )


def _outliers(observations: Sequence[Observation]) -> Iterator[str]:
    """Yield the runs that lie outside the band where the others expect one more.

    log(run) against mean and spread of the others' logs, a t band for one further observation
    (Hahn and Meeker, Statistical Intervals, section 4.8), Bonferroni over the runs. One is flagged
    a cell at most. Rows with counters are left to the core, which looks at whole boots.
    """
    for (arm, cell), own in _by_place(observations).items():
        runs = [item for item in own if item.tok_s is not None and not item.has_counters]
        if len(runs) < FEWEST_FOR_OUTLIER:
            continue
        flags = [(flag, item) for item in runs if (flag := _flag(item, runs)) is not None]
        if flags:
            (_, low, high), item = max(flags, key=lambda pair: pair[0][0])
            others = ", ".join(f"{run.tok_s:.4g}" for run in runs if run is not item)
            yield (
                f"{item.where} ({arm.label}, {cell.key}): {item.tok_s:.4g} stands out against "
                f"{others} (one more run is expected within {low:.1f} to {high:.1f}); it counts, "
                "and the configuration should be measured again in a fresh boot"
            )


def _flag(item: Observation, runs: Sequence[Observation]) -> tuple[float, float, float] | None:
    """Return how far the run lies outside the band and the band; None inside."""
    others = np.log([run.tok_s or math.nan for run in runs if run is not item])
    mean, spread = float(np.mean(others)), float(np.std(others, ddof=1))
    half = t_quantile(1 - OUTLIER_LEVEL / len(runs) / 2, len(others) - 1)
    half *= spread * math.sqrt(1 + 1 / len(others))
    away = abs(math.log(item.tok_s or math.nan) - mean)
    if away <= max(half, 1e-12):
        return None
    return away / max(half, 1e-12), math.exp(mean - half), math.exp(mean + half)
