"""How many drafted tokens a target accepts, by rules, depth, temperature and difficulty of text.

A family of distributions whose closeness is set by a few numbers goes through the exact
verification of ``verification``. What comes out is a table of laws, so that drawing the counters of
a block is one multinomial. The table is the world's truth: its own sampling error moves no
comparison between what a study finds and what holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from orchestrator.core.types import Arm
from orchestrator.fakes.simulate.verification import (
    Floats,
    Ints,
    Rule,
    draw,
    one_hot,
    prefix_lengths,
    verify,
)

NODES = np.linspace(-2.5, 2.5, 11)
"""Difficulties, in standard deviations, at which laws are computed."""
LEVELS = np.linspace(-2.5, 2.5, 51)
"""Difficulties that the laws are interpolated to; what is beyond counts as the outermost."""
_LEVEL_STEP = float(LEVELS[1] - LEVELS[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftQuality:
    """The curve from which pairs of target p and draft q are drawn, position by position.

    Logits of the target are normal, times a sharpness that differs from place to place, and are
    divided by the temperature. Those of the draft are the target's plus an error that grows with
    position, with temperature and with the difficulty of the text. No number is measured; they are
    chosen so that the article's throughputs come out (``calibrate`` prints how well).
    """

    num_tokens: int = 10
    """Size of the vocabulary."""
    sharpness: float = 5.3
    """Median standard deviation of the target's logits at temperature 1."""
    sharpness_spread: float = 0.78
    """Standard deviation of its log: some places are all but determined, others are open."""
    step_share: float = 0.6
    """Part of that variance that all positions of one draft have in common, 0 to 1."""
    error: float = 2.1
    """Standard deviation of the draft's error at the first position, temperature 1."""
    error_growth: float = 0.036
    """Relative growth of the error by position."""
    error_by_temperature: float = 0.31
    """Exponent of the temperature in the error; above 0 a draft is worse where it is warmer."""
    flattening: float = 0.185
    """Exponent of the temperature that the logits are divided by. Below 1 since top-k and top-p
    cut what a temperature lifts."""
    difficulty_on_error: float = 0.34
    """Change of the log error by one standard deviation of difficulty."""
    difficulty_on_sharpness: float = 0.30
    """Change of the log sharpness, downwards."""
    trained_depth: int = 7
    """Positions that the draft was trained for."""
    beyond_trained: float = 0.002
    """Acceptance at a position past them, given all before it."""
    num_contexts: int = 2000
    """Places that each law averages over."""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class AcceptanceTable:
    """Laws of the accepted length for one pair of rules, depth and temperature."""

    laws: Floats
    """[num_levels, depth + 1] probability of each accepted length."""
    lengths: Floats
    """[num_levels] mean tokens a step, the bonus token counted."""

    def draw_lengths(self, steps: Ints, rng: np.random.Generator) -> Ints:
        """Return how many drafts had each accepted length, [depth + 1].

        Args:
            steps: [num_levels] drafts by level of difficulty.
            rng: Source of luck.
        """
        used = np.flatnonzero(steps)
        counts: Ints = rng.multinomial(steps[used], self.laws[used]).sum(axis=0)
        return counts


def level_of(difficulty: Floats) -> Ints:
    """Return the index of the nearest level, of the same shape."""
    index = np.rint((difficulty - LEVELS[0]) / _LEVEL_STEP).astype(np.int64)
    nearest: Ints = np.clip(index, 0, len(LEVELS) - 1)
    return nearest


def acceptance_table(quality: DraftQuality, arm: Arm, temperature: float) -> AcceptanceTable:
    """Return the table of an arm that speculates."""
    assert not arm.is_baseline
    return _table(
        quality,
        arm.draft_sample_method == "greedy",
        "block" if arm.rejection_sample_method == "block" else "standard",
        arm.num_speculative_tokens,
        temperature,
    )


@lru_cache(maxsize=1024)
def _table(
    quality: DraftQuality, is_greedy: bool, rule: Rule, depth: int, temperature: float
) -> AcceptanceTable:
    trained = min(depth, quality.trained_depth)
    laws = _node_laws(quality, is_greedy, rule, trained, temperature)
    laws = _beyond(laws, depth - trained, quality.beyond_trained)
    fine = np.stack([np.interp(LEVELS, NODES, column) for column in laws.T], axis=1)
    fine /= fine.sum(axis=1, keepdims=True)
    return AcceptanceTable(fine, 1.0 + fine @ np.arange(depth + 1))


def _node_laws(
    quality: DraftQuality, is_greedy: bool, rule: Rule, depth: int, temperature: float
) -> Floats:
    """Return the laws at the nodes, [num_nodes, depth + 1]."""
    target, draft, tokens = _pairs(quality, temperature)
    p, q = target[:, :, :depth], draft[:, :, :depth]
    num_nodes, num_contexts = p.shape[:2]
    if is_greedy:
        # Both rules accept alike here; see ``verification``.
        first = np.take_along_axis(p, one_hot(q).argmax(axis=-1)[..., None], axis=-1)[..., 0]
        lengths = prefix_lengths(first.reshape(-1, depth))
    elif rule == "standard":
        lengths = prefix_lengths(np.minimum(p, q).sum(axis=-1).reshape(-1, depth))
    else:
        shape = (-1, depth, quality.num_tokens)
        drafted = tokens[:, :, :depth].reshape(-1, depth)
        lengths = verify(p.reshape(shape), q.reshape(shape), drafted, rule).lengths
    return np.asarray(lengths.reshape(num_nodes, num_contexts, depth + 1).mean(axis=1))


@lru_cache(maxsize=4)
def _pairs(quality: DraftQuality, temperature: float) -> tuple[Floats, Floats, Ints]:
    """Return target and draft, [num_nodes, num_contexts, trained_depth, num_tokens], and drafts.

    All nodes and temperatures see the same random numbers, so that they differ by nothing else.
    """
    rng = np.random.default_rng(quality.seed)
    shape = (quality.num_contexts, quality.trained_depth, quality.num_tokens)
    logits, errors = rng.standard_normal((2, *shape))
    common = rng.standard_normal((quality.num_contexts, 1))
    own = rng.standard_normal(shape[:2])
    place = np.sqrt(quality.step_share) * common + np.sqrt(1 - quality.step_share) * own
    hard = NODES[:, None, None, None]
    log_sharp = quality.sharpness_spread * place[None, :, :, None]
    sharp = quality.sharpness * np.exp(log_sharp - quality.difficulty_on_sharpness * hard)
    growth = 1.0 + quality.error_growth * np.arange(quality.trained_depth)[:, None]
    warmth = temperature**quality.error_by_temperature
    error = quality.error * growth * warmth * np.exp(quality.difficulty_on_error * hard)
    scaled = sharp * logits / temperature**quality.flattening
    target, draft = _softmax(scaled), _softmax(scaled + error * errors)
    return target, draft, draw(draft, rng)


def _softmax(logits: Floats) -> Floats:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def _beyond(laws: Floats, num_positions: int, chance: float) -> Floats:
    """Add positions past the trained block to the laws."""
    for _ in range(num_positions):
        full = laws[:, -1:]
        laws = np.concatenate([laws[:, :-1], full * (1 - chance), full * chance], axis=1)
    return laws
