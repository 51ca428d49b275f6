"""Nodes as a term of the model of boots, or as a part of their spread: which is the better."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import stats

BOOT_SPREAD = 0.02
NUM_ARMS = 4
OFFSETS = (0.0, 0.01, 0.03)
NUM_NODES = (2, 4, 8)
NUM_BOOTS = (2, 3, 6)
FEWEST_DEGREES = (1, 6)
"""Nodes are taken out where so many degrees of freedom are left."""


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
