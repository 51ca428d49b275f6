"""How often the intervals hold what is true, and how wide they are, beside whole boots' t interval.

Each simulation is a study of four arms on four nodes in the article's world; two to six boots of
each are compared, in the objective and in single cells. The truth is what an endless block would
show; a block of a minute shows an arm that speculates up to 0.3 % too fast. So the table also says
how often the intervals hold the mean of all simulations.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

from orchestrator.core.comparison import Comparison, compare_scores, measured
from orchestrator.core.estimate import Contrast
from orchestrator.core.types import Arm, Boot, Cell
from orchestrator.fakes.simulate.world import World
from orchestrator.fakes.simulate.worlds import BASELINE, article_world, speculating

CONFIDENCE = 0.95
NUM_BOOTS = (2, 3, 4, 5, 6)
NUM_NODES = 4
SPREADS = (0.02, 0.06)
BLOCKS_PER_CELL = (1, 2)
SECONDS_BETWEEN_BOOTS = 1200.0
FIRST = speculating("probabilistic", "block", 7)
PAIRS = {
    "neighbour": (FIRST, speculating("probabilistic", "block", 6)),
    "far": (FIRST, speculating("greedy", "standard", 4)),
    "baseline": (FIRST, BASELINE),
}
ARMS = tuple(dict.fromkeys(arm for pair in PAIRS.values() for arm in pair))
SINGLE_CELLS = (
    Cell(streams=1, temperature=0.7),
    Cell(streams=2, temperature=1.0),
    Cell(streams=16, temperature=0.7),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One world with one length of boots."""

    boot_cv: float
    blocks_per_cell: int

    @property
    def world(self) -> World:
        """The article's world with this spread and so many blocks a cell."""
        world = article_world(self.boot_cv)
        return replace(world, load=replace(world.load, blocks_per_cell=self.blocks_per_cell))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One number of the table."""

    num_boots: int
    what: str
    """``objective`` or the key of a cell."""
    pair: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one place came to over all simulations."""

    place: Place
    num_simulations: int
    covered: float
    """Share of the new intervals that hold the truth."""
    covered_mean: float
    """Share of them that hold the mean of all simulations."""
    covered_old: float
    bias: float
    """Mean of the log ratio minus the truth."""
    width: float
    width_old: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One simulation's answer to one question: the new contrast and the old one."""

    middle: float
    half: float
    """Half the width of the interval, on the log scale."""
    middle_old: float
    half_old: float


def coverage(case: Case, *, num_simulations: int, num_processes: int) -> list[Row]:
    """Return the table of one case; the seeds are 0 to ``num_simulations`` - 1."""
    found: dict[Place, list[Found]] = {}
    with ProcessPoolExecutor(num_processes) as pool:
        seeds = range(num_simulations)
        for one in pool.map(_simulation, [case] * num_simulations, seeds, chunksize=10):
            for place, answer in one.items():
                found.setdefault(place, []).append(answer)
    truths = _truths(case.world)
    return [_row(place, truths[place.what, place.pair], own) for place, own in found.items()]


def wilson(share: float, count: int, z: float = 1.96) -> tuple[float, float]:
    """Return the 95 % interval of a share of ``count`` (Wilson, JASA 22, 1927, 209)."""
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    spread = math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    half = z / (1 + z * z / count) * spread
    return middle - half, middle + half


def coverage_lines(case: Case, rows: Sequence[Row]) -> Iterator[str]:
    """Return the table in lines of text: a line for every number of boots and every question."""
    yield (
        f"boots spread by {case.boot_cv:.0%}, {case.blocks_per_cell} blocks a cell, "
        f"{rows[0].num_simulations} simulations"
    )
    yield f"{'boots':>5}  {'what':<10}" + "".join(f"{pair:^42}" for pair in PAIRS)
    yield " " * 17 + "".join(
        f"{'held (Wilson)':>19}{'mean':>6}{'old':>6}{'width':>8}{'/old':>5}   " for _ in PAIRS
    )
    by_line: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        by_line.setdefault((row.place.num_boots, row.place.what), []).append(row)
    for (num_boots, what), own in by_line.items():
        yield f"{num_boots:>5}  {what:<10}" + "".join(_cell_text(row) for row in own)


def _cell_text(row: Row) -> str:
    low, high = wilson(row.covered, row.num_simulations)
    held = f"{100 * row.covered:.1f} ({100 * low:.1f}-{100 * high:.1f})"
    return (
        f"{held:>19}{100 * row.covered_mean:>6.1f}{100 * row.covered_old:>6.1f}"
        f"{row.width:>8.4f}x{row.width / row.width_old:.2f}"
    ).ljust(42)


def _simulation(case: Case, seed: int) -> dict[Place, Found]:
    world = case.world
    boots = _boots(world, seed)
    found: dict[Place, Found] = {}
    for num_boots in NUM_BOOTS:
        some = [boot for boot in boots if boot.replicate < num_boots]
        taken = measured(some, cells=world.cells, board=None)
        weights = {"objective": world.weights} | {c.key: {c: 1.0} for c in SINGLE_CELLS}
        for what, traffic in weights.items():
            comparison = taken.compare(traffic)
            for pair, (a, b) in PAIRS.items():
                place = Place(num_boots=num_boots, what=what, pair=pair)
                found[place] = _found(comparison, a, b)
    return found


def _boots(world: World, seed: int) -> list[Boot]:
    """Return the boots of one study: rounds in a random order, each on a random node."""
    rng = random.Random(f"{seed}/boots")
    boots: list[Boot] = []
    for replicate in range(max(NUM_BOOTS)):
        for arm in rng.sample(ARMS, len(ARMS)):
            timed = world.boot(
                arm,
                replicate=replicate,
                node_id=f"node-{rng.randrange(NUM_NODES)}",
                start_s=len(boots) * SECONDS_BETWEEN_BOOTS / NUM_NODES,
                seed=seed,
            )
            boots.append(timed.boot)
    return boots


def _found(comparison: Comparison, a: Arm, b: Arm) -> Found:
    new = comparison.contrast(a, b, confidence=CONFIDENCE)
    old = compare_scores(comparison.whole, a=a, b=b, confidence=CONFIDENCE)
    (middle, half), (middle_old, half_old) = _middle_and_half(new), _middle_and_half(old)
    return Found(middle=middle, half=half, middle_old=middle_old, half_old=half_old)


def _middle_and_half(contrast: Contrast) -> tuple[float, float]:
    assert contrast.low is not None, contrast.reason
    assert contrast.high is not None
    return (contrast.low + contrast.high) / 2, (contrast.high - contrast.low) / 2


def _truths(world: World) -> dict[tuple[str, str], float]:
    truths: dict[tuple[str, str], float] = {}
    for pair, (a, b) in PAIRS.items():
        truths["objective", pair] = math.log(world.true_objective(a) / world.true_objective(b))
        for cell in SINGLE_CELLS:
            ratio = world.true_seconds(a, cell) / world.true_seconds(b, cell)
            truths[cell.key, pair] = math.log(ratio)
    return truths


def _row(place: Place, truth: float, found: Sequence[Found]) -> Row:
    count = len(found)
    mean = math.fsum(item.middle for item in found) / count
    return Row(
        place=place,
        num_simulations=count,
        covered=sum(abs(item.middle - truth) <= item.half for item in found) / count,
        covered_mean=sum(abs(item.middle - mean) <= item.half for item in found) / count,
        covered_old=sum(abs(item.middle_old - truth) <= item.half_old for item in found) / count,
        bias=mean - truth,
        width=math.fsum(2 * item.half for item in found) / count,
        width_old=math.fsum(2 * item.half_old for item in found) / count,
    )


def bias_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Return what the mean of the simulations is off the truth, in percent, by question."""
    most = max(row.place.num_boots for row in rows)
    parts = [
        f"{row.place.what} {row.place.pair} {100 * row.bias:+.2f}"
        for row in rows
        if row.place.num_boots == most
    ]
    yield f"mean minus truth, %, with {most} boots: {', '.join(parts)}"


def summary_lines(found: Mapping[Case, Sequence[Row]]) -> Iterator[str]:
    """Return the least and the largest coverage by number of boots, over cases and questions."""
    rows = [row for own in found.values() for row in own]
    yield "over all cases and questions: least and largest share held, %; mean width new / old"
    for num_boots in NUM_BOOTS:
        for pairs in (("neighbour", "far"), ("baseline",)):
            own = [r for r in rows if r.place.num_boots == num_boots and r.place.pair in pairs]
            held, mean = [row.covered for row in own], [row.covered_mean for row in own]
            ratio = math.fsum(row.width / row.width_old for row in own) / len(own)
            yield (
                f"{num_boots} boots, {' and '.join(pairs):<18} truth {100 * min(held):.1f} to "
                f"{100 * max(held):.1f}, mean of the simulations {100 * min(mean):.1f} to "
                f"{100 * max(mean):.1f}, width x{ratio:.2f}"
            )
