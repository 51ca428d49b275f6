"""What rows say of each other: twice the same, copies, means beside their runs, odd ones out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.core.distributions import t_quantile
from orchestrator.core.lines import first_of
from orchestrator.core.trend import rank_trend
from orchestrator.core.types import Arm, Cell
from orchestrator.results.boots import apart_by_node
from orchestrator.results.copies import repeats, shared_counters, some
from orchestrator.results.observation import Observation

FEWEST_FOR_OUTLIER = 4
"""Runs of one arm in one cell from which one can stand out against the others."""
OUTLIER_LEVEL = 0.4
"""Chance at most that one of a cell's runs is flagged although all are alike. Generous: a flag
drops nothing, it asks for the run to be made again."""
DRIFT_LEVEL = 0.05
"""Chance that any cell of a file is said to drift although none does."""
ROUNDING = 1e-7
"""Distance of two logs that are equal: cancellation leaves half of the digits."""
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
    shared = list(shared_counters(observations))
    observations, apart = apart_by_node(observations)
    doubts = some(apart, "boots are on several nodes and are taken as a boot on each")
    invalid = [reason for item in observations if (reason := _invalid(item))]
    doubts += some(invalid, "rows do not count")
    kept = [item for item in observations if not _invalid(item)]
    again = repeats(kept)
    doubts += again.said
    kept = [item for index, item in enumerate(kept) if index not in again.copies]
    summaries = {id(item): text for item, text in _means_of_runs(kept)}
    doubts += some(list(summaries.values()), "rows are means of others and do not count")
    kept = [item for item in kept if id(item) not in summaries]
    flagged = (
        *some(list(_outliers(kept)), "arms and cells have a run that stands out"),
        *some(list(_drifts(kept)), "arms and cells drift"),
        *some(list(_means(kept)), "rows are means of runs that are not in the file"),
    )
    return Sifted(observations=tuple(kept), doubts=(*doubts, *shared, *flagged))


def _invalid(item: Observation) -> str | None:
    if item.block is None or item.block.is_valid:
        return None
    return f"{item.where} does not count: {item.block.invalid_reason}"


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
            if not 2 <= item.num_runs <= len(runs) or item.tok_s is None:
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
                f"{item.where} ({item.arm.label}, {item.cell.key}) is the mean of "
                f"{item.num_runs:g} runs that are not in the file: their spread is not known, and "
                "it counts as one"
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
        runs = [(i, i.tok_s) for i in own if i.tok_s is not None and not i.has_counters]
        if len(runs) < FEWEST_FOR_OUTLIER:
            continue
        found = _farthest([tok_s for _, tok_s in runs])
        if found is not None:
            index, low, high = found
            item, tok_s = runs[index]
            others = [f"{value:.4g}" for number, (_, value) in enumerate(runs) if number != index]
            yield (
                f"{item.where} ({arm.label}, {cell.key}): {tok_s:.4g} stands out against "
                f"{first_of(others, _MOST_RUNS)} (one more run is expected within "
                f"{low:.1f} to {high:.1f}); it counts, and the configuration should be measured "
                "again in a fresh boot"
            )


def _farthest(runs: Sequence[float]) -> tuple[int, float, float] | None:
    """Return which run lies the farthest outside its band, and the band; None when none does."""
    logs = np.log(runs)
    num_others = len(runs) - 1
    means = (logs.sum() - logs) / num_others
    # The squares about the others' mean: those about the mean of all, less the run's own part.
    away = np.abs(logs - means)
    about_all = np.sum((logs - logs.mean()) ** 2)
    squares = np.maximum(0.0, about_all - away**2 * num_others / len(runs))
    spreads = np.sqrt(squares / (num_others - 1))
    t = t_quantile(1 - OUTLIER_LEVEL / len(runs) / 2, num_others - 1)
    halves = t * spreads * math.sqrt(1 + 1 / num_others)
    ratios = away / np.maximum(halves, ROUNDING)
    index = int(np.argmax(ratios))
    if ratios[index] <= 1:
        return None
    mean, half = float(means[index]), float(halves[index])
    return index, math.exp(mean - half), math.exp(mean + half)
