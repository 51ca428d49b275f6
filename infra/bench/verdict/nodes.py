"""Nodes as blocks: in the order of a race's boots, and as a term of the model of boots."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy import stats

from orchestrator.core.comparison import measured
from orchestrator.core.types import Arm, Boot
from orchestrator.fakes.simulate.study import DEFAULT_SETTINGS, TellsNode, simulate_race
from orchestrator.fakes.simulate.world import World
from orchestrator.fakes.simulate.worlds import article_world

BOOT_SPREAD = 0.02
NUM_ARMS = 4
OFFSETS = (0.0, 0.01, 0.03)
NUM_NODES = (2, 4, 8)
NUM_BOOTS = (2, 3, 6)
TELLS: tuple[TellsNode, TellsNode] = ("never", "always")
FEWEST_DEGREES = (1, 6)
"""Nodes are taken out where so many degrees of freedom are left."""
CHOICE_OFFSETS = (0.005, 0.01, 0.03)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """What a race's boots say of its choice and what serves."""

    error: float
    """Of the log ratio, against the truth."""
    width: float
    """Of its 95 % interval."""
    holds: bool
    apart: float
    """Share of the boots that would have to move for both to have run on the same nodes, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Study:
    arms: np.ndarray
    nodes: np.ndarray
    scores: np.ndarray


def node_lines(num_simulations: int) -> Iterator[str]:
    """Return coverage and width of the difference of two of four arms, boots on random nodes."""
    yield f"{NUM_ARMS} arms, boots spread by {BOOT_SPREAD:.0%}, {num_simulations} simulations a row"
    rules: tuple[int | None, ...] = (None, *FEWEST_DEGREES)
    names = ["not taken out", *(f"where {n} df are left" for n in FEWEST_DEGREES)]
    yield "nodes offset boots" + "".join(f"{name:>26}" for name in names)
    rng = np.random.default_rng(4)
    for num_nodes in NUM_NODES:
        for offset in OFFSETS:
            for num_boots in NUM_BOOTS:
                studies = [
                    _study(rng, num_nodes=num_nodes, offset=offset, num_boots=num_boots)
                    for _ in range(num_simulations)
                ]
                parts = [_held_and_width(studies, rule) for rule in rules]
                texts = [f"{100 * held:>18.1f}{width:>8.4f}" for held, width in parts]
                yield f"{num_nodes:>5} {offset:>6.0%} {num_boots:>5}" + "".join(texts)


def _study(rng: np.random.Generator, *, num_nodes: int, offset: float, num_boots: int) -> _Study:
    """Return log scores of arms that are all equal."""
    arms = np.repeat(np.arange(NUM_ARMS), num_boots)
    nodes = rng.integers(0, num_nodes, len(arms))
    slow = rng.normal(0.0, offset, num_nodes)
    scores = slow[nodes] + rng.normal(0.0, BOOT_SPREAD, len(arms))
    return _Study(arms=arms, nodes=nodes, scores=scores)


def _held_and_width(studies: list[_Study], fewest: int | None) -> tuple[float, float]:
    found = np.array([_difference(study, fewest) for study in studies])
    return float(np.mean(np.abs(found[:, 0]) <= found[:, 1])), float(np.mean(2 * found[:, 1]))


def _difference(study: _Study, fewest: int | None) -> tuple[float, float]:
    """Return the difference of the first two arms and half the width of its 95 % interval."""
    design = np.eye(NUM_ARMS)[study.arms]
    used = np.unique(study.nodes)
    if fewest is not None and len(used) > 1:
        columns = (study.nodes[:, None] == used).astype(float)
        both = np.hstack([design, columns[:, 1:] - columns[:, :1]])
        is_connected = np.linalg.matrix_rank(both) == both.shape[1]
        if is_connected and len(study.arms) - both.shape[1] >= fewest:
            design = both
    inverse = np.linalg.inv(design.T @ design)
    estimates = inverse @ design.T @ study.scores
    residuals = study.scores - design @ estimates
    degrees = len(study.arms) - design.shape[1]
    contrast = np.zeros(design.shape[1])
    contrast[:2] = 1.0, -1.0
    variance = float(residuals @ residuals) / degrees * float(contrast @ inverse @ contrast)
    half = float(stats.t.ppf(0.975, degrees)) * variance**0.5
    return float(estimates[0] - estimates[1]), half


def order_lines(num_races: int, num_processes: int) -> Iterator[str]:
    """Return what it helps that a race knows the node of its next boot, where one is free."""
    yield f"races in the article's world, {num_races} a row, seeds 0 to {num_races - 1}"
    yield "nodes offset" + "".join(
        f"{name:>12}{'apart':>8}{'error':>8}{'held':>8}{'width':>8}"
        for name in ("by chance", "spread")
    )
    with ProcessPoolExecutor(num_processes) as pool:
        for num_nodes in NUM_NODES:
            for offset in OFFSETS:
                parts = [f"{num_nodes:>5} {offset:>6.0%}"]
                for tells_node in TELLS:
                    race = partial(_race, num_nodes, offset, tells_node)
                    found = list(pool.map(race, range(num_races), chunksize=5))
                    parts.append(_order_text([item for item in found if item is not None]))
                yield "".join(parts)


def choice_lines(num_races: int, num_processes: int) -> Iterator[str]:
    """Return what choices cost whose race knows the node in the confirmation alone, and always.

    Both races of a pair have the same seed, so that their boots have the same luck.
    """
    yield f"the choice's loss in the article's world, {num_races} pairs of races a row; node told"
    yield (
        f"nodes offset {'in the confirmation':>20}{'always':>10}"
        f"{'difference':>12}{'s.e.':>8}{'differ':>8}"
    )
    with ProcessPoolExecutor(num_processes) as pool:
        for num_nodes in NUM_NODES[:2]:
            for offset in CHOICE_OFFSETS:
                pair = partial(_losses, num_nodes, offset)
                found = np.array(list(pool.map(pair, range(num_races), chunksize=5)))
                told_late, told_always = found.mean(axis=0)
                differences = found[:, 1] - found[:, 0]
                error = float(differences.std(ddof=1)) / math.sqrt(num_races)
                yield (
                    f"{num_nodes:>5} {offset:>6.1%} {told_late:>20.3%}{told_always:>10.3%}"
                    f"{told_always - told_late:>12.3%}{error:>8.3%}"
                    f"{np.mean(differences != 0):>8.1%}"
                )


def _losses(num_nodes: int, offset: float, seed: int) -> tuple[float, float]:
    """Return by how much the choices are slower than the best; there always is one here."""
    world = _world(offset)

    def loss(tells_node: TellsNode) -> float:
        settings = DEFAULT_SETTINGS.race
        race = simulate_race(world, settings, nodes=num_nodes, seed=seed, tells_node=tells_node)
        assert race.chosen is not None
        return world.regret(race.chosen)

    return loss("confirmation"), loss("always")


def _world(offset: float) -> World:
    """Return the article's world on nodes that are so far apart."""
    world = article_world(BOOT_SPREAD)
    return replace(world, spread=replace(world.spread, node_cv=offset))


def _order_text(found: list[_Compared]) -> str:
    error = math.sqrt(sum(item.error**2 for item in found) / len(found))
    apart, held, width = (
        sum(values) / len(found)
        for values in zip(*((item.apart, item.holds, item.width) for item in found), strict=True)
    )
    return f"{len(found):>12}{apart:>8.0%}{error:>8.4f}{held:>8.1%}{width:>8.4f}"


def _race(num_nodes: int, offset: float, tells_node: TellsNode, seed: int) -> _Compared | None:
    """Return one race's comparison; None where it chose what serves or has no interval."""
    world, settings = _world(offset), DEFAULT_SETTINGS.race
    race = simulate_race(world, settings, nodes=num_nodes, seed=seed, tells_node=tells_node)
    arm, serves = race.chosen, world.incumbent
    if arm is None or serves is None or arm == serves:
        return None
    taken = measured(race.boots, cells=world.cells, board=None)
    found = taken.compare(world.weights).contrast(arm, serves, confidence=0.95)
    if found.log_ratio is None or found.low is None or found.high is None:
        return None
    truth = math.log(world.true_objective(arm) / world.true_objective(serves))
    return _Compared(
        error=found.log_ratio - truth,
        width=found.high - found.low,
        holds=found.low <= truth <= found.high,
        apart=_apart(race.boots, arm, serves),
    )


def _apart(boots: tuple[Boot, ...], a: Arm, b: Arm) -> float:
    shares = []
    for arm in (a, b):
        nodes = Counter(boot.node_id for boot in boots if boot.arm == arm)
        shares.append({node: count / nodes.total() for node, count in nodes.items()})
    return sum(abs(shares[0].get(n, 0) - shares[1].get(n, 0)) for n in {*shares[0], *shares[1]}) / 2
