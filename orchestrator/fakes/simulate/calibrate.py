"""How well the article's world reproduces what is published of that board."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from orchestrator.core.types import Arm, Cell
from orchestrator.fakes.simulate.board import lognormal, rng_of
from orchestrator.fakes.simulate.verification import Floats
from orchestrator.fakes.simulate.window import LoadShape
from orchestrator.fakes.simulate.world import World, happen
from orchestrator.fakes.simulate.worlds import STREAMS, article_world, speculating

PROBE = LoadShape(window_s=30.0)
"""The probe of the article, assumed: it states neither the window nor the length of answers."""
LONG_WINDOW_S = 720.0
"""A long window: at eight streams about 450 answers, seven passes over the prompts."""
BAND = (0.05, 0.95)
NUM_RUNS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One row of the article's table: output tokens / s over all streams."""

    arm: Arm
    temperature: float
    streams: int
    tok_s: float
    runs: int = 1
    """Runs that the row is the mean of; a row that does not say counts as one."""

    @property
    def cell(self) -> Cell:
        """Its load condition."""
        return Cell(streams=self.streams, temperature=self.temperature)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A row beside what the simulation gives."""

    published: Published
    low: float
    median: float
    high: float

    @property
    def is_inside(self) -> bool:
        """Whether the row lies in the band."""
        return self.low <= self.published.tok_s <= self.high


def published() -> tuple[Published, ...]:
    """Return the DFlash2 rows of a published article on tuning DFlash2 on one GB10.

    Qwen3.8-27B NVFP4, DFlash2 draft, vLLM 0.28.0, code-generation probe. The temperature of the
    probabilistic rows at two streams and more is implied there as 0.7. At eight streams the mean of
    three runs, the three, and an earlier single run that the article calls an outlier are all kept.
    """
    greedy = speculating("greedy", "standard", 5)
    prob = speculating("probabilistic", "standard", 5)
    greedy_block = speculating("greedy", "block", 5)
    prob_block = speculating("probabilistic", "block", 5)
    deep = speculating("probabilistic", "block", 7)
    rows: list[tuple[Arm, float, int, float, int]] = [
        *((greedy, 0.7, n, v, 1) for n, v in zip(STREAMS, _GREEDY, strict=True)),
        *((prob, 0.7, n, v, 3 if n == 8 else 1) for n, v in zip(STREAMS, _PROB, strict=True)),
        *((prob, 0.7, 8, value, 1) for value in (161.8, 167.8, 160.9, 178.5)),
        *((deep, 0.7, 1, value, 1) for value in (39.7, 33.1, 31.5)),
        (deep, 0.7, 1, 34.8, 3),
        (prob_block, 0.7, 1, 29.3, 1),
        (deep, 1.0, 1, 28.6, 1),
        (prob_block, 1.0, 1, 24.7, 1),
        (greedy, 1.0, 1, 21.0, 1),
        (prob, 1.0, 1, 26.0, 1),
        (greedy, 1.0, 2, 48.7, 1),
        (greedy_block, 1.0, 2, 37.8, 1),
        (greedy, 1.0, 8, 134.7, 1),
        (greedy_block, 1.0, 8, 120.1, 3),
    ]
    return tuple(
        Published(arm=arm, temperature=t, streams=n, tok_s=value, runs=runs)
        for arm, t, n, value, runs in rows
    )


_GREEDY = (28.5, 47.5, 91.4, 137.4, 216.1)
_PROB = (25.7, 57.1, 101.2, 163.5, 246.0)


def probe_runs(world: World, arm: Arm, cell: Cell, *, num_boots: int, runs_per_boot: int) -> Floats:
    """Return output tokens / s of runs of the world's load, [num_boots, runs_per_boot]."""
    speeds = np.zeros((num_boots, runs_per_boot))
    for boot in range(num_boots):
        rng = rng_of("calibrate", arm.key, cell.key, boot)
        factor = lognormal(rng, world.spread.boot_cv)
        for run in range(runs_per_boot):
            luck = lognormal(rng, world.spread.block_cv)
            step_s = world.step_time_s(arm, cell.streams) * factor * luck
            prompts = ("calibrate", boot, run)
            happened = happen(world, arm, cell, step_s=step_s, prompts=prompts, rng=rng)
            speeds[boot, run] = happened.tokens / world.load.window_s
    return speeds


def compare(world: World, *, num_runs: int = NUM_RUNS) -> tuple[Comparison, ...]:
    """Compare every row with runs of the probe, each in a boot of its own.

    A row that is a mean of three runs is compared with means of three runs in one boot.
    """
    probing = replace(world, load=PROBE)
    found = []
    for row in published():
        runs = probe_runs(
            probing, row.arm, row.cell, num_boots=num_runs, runs_per_boot=row.runs
        ).mean(axis=1)
        low, median, high = (float(value) for value in np.quantile(runs, (BAND[0], 0.5, BAND[1])))
        found.append(Comparison(published=row, low=low, median=median, high=high))
    return tuple(found)


def run_cv(world: World, arm: Arm, cell: Cell, *, window_s: float, num_runs: int) -> float:
    """Return the coefficient of variation of tokens / s over runs in one boot."""
    shaped = replace(world, load=replace(PROBE, window_s=window_s))
    runs = probe_runs(shaped, arm, cell, num_boots=1, runs_per_boot=num_runs)[0]
    return float(runs.std(ddof=1) / runs.mean())


def report(*, num_runs: int = NUM_RUNS) -> Iterator[str]:
    """Yield the lines of the calibration."""
    yield "# The article's world against the article"
    yield from _assumptions()
    for boot_cv in (0.02, 0.06):
        world = article_world(boot_cv)
        rows = compare(world, num_runs=num_runs)
        yield ""
        yield f"## Boots spread by {boot_cv:.0%}: 90 % band of one run of the probe"
        yield from _rows(rows)
        outside = [row for row in rows if not row.is_inside]
        yield f"inside: {len(rows) - len(outside)} of {len(rows)}"
    yield ""
    yield from _cvs(article_world(), num_runs=num_runs)


def _assumptions() -> Iterator[str]:
    yield (
        f"probe (assumed): {PROBE.window_s:g} s window, answers of {PROBE.max_tokens} tokens, "
        f"{PROBE.num_prompts} prompts; a run has a boot of its own, rows of three have one boot"
    )


def _rows(rows: Sequence[Comparison]) -> Iterator[str]:
    yield f"{'arm':26} {'T':>4} {'c':>3} {'runs':>4} {'published':>9} " + (
        f"{'5 %':>7} {'median':>7} {'95 %':>7}  inside"
    )
    for row in rows:
        at = row.published
        yield f"{at.arm.label:26} {at.temperature:4.1f} {at.streams:3d} {at.runs:4d} " + (
            f"{at.tok_s:9.1f} {row.low:7.1f} {row.median:7.1f} {row.high:7.1f}  "
            f"{'yes' if row.is_inside else 'NO'}"
        )


def _cvs(world: World, *, num_runs: int) -> Iterator[str]:
    arms = (speculating("probabilistic", "standard", 5), speculating("probabilistic", "block", 7))
    yield "## Run-to-run CV of tokens / s in one boot, T 0.7"
    yield f"{'arm':26} {'window':>7} " + " ".join(f"{f'c={n}':>7}" for n in STREAMS)
    for arm in arms:
        for window_s in (PROBE.window_s, 60.0, LONG_WINDOW_S):
            cvs = [
                run_cv(
                    world,
                    arm,
                    Cell(streams=streams, temperature=0.7),
                    window_s=window_s,
                    num_runs=num_runs,
                )
                for streams in STREAMS
            ]
            yield f"{arm.label:26} {window_s:5.0f} s " + " ".join(f"{cv:7.2%}" for cv in cvs)
