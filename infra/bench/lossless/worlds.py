"""Targets with known distributions, texts sampled from them and drafts verified against them.

A pool of contexts stands for a language model: every context is a distribution over ranks,
Zipf-like with an exponent of its own and some noise. The next context follows from the last one and
the rank that was sampled in it, so what comes depends on what was sampled, as in a text. What is
sampled may differ from what is scored: another temperature, or mass that is moved from one rank
bucket to another. A pool of steps stands for verification: target, draft, and what the rule must
do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from orchestrator.core.lossless.betting import tilted
from orchestrator.core.lossless.observations import (
    BUCKET_STARTS,
    FIRST_ACCEPTED,
    RANK_BUCKETS,
    RECOVERED_IN_CANDIDATES,
    Floats,
    Observations,
)
from orchestrator.core.lossless.ranks import (
    Integers,
    bucket_masses,
    rank_observations,
    ranked_probabilities,
)

NUM_CONTEXTS = 4096
VOCABULARY = 512
EXPONENTS = (0.8, 3.5)
"""Of the Zipf-like distributions: from nearly flat to nearly certain."""
NUM_CANDIDATES = 16
"""Tokens that a draft proposes from."""
NUM_DRAFT_TOKENS = 7
LATER_ACCEPTANCE = 0.6
"""Chance that a drafted token after the first is accepted, given those before it."""


def contexts(rng: np.random.Generator, *, num: int = NUM_CONTEXTS) -> Floats:
    """Return ranked distributions, [num, VOCABULARY]."""
    exponent = rng.uniform(*EXPONENTS, (num, 1))
    logits = -exponent * np.log(np.arange(1, VOCABULARY + 1)) + rng.normal(
        0, 0.5, (num, VOCABULARY)
    )
    return ranked_probabilities(_normalised(np.exp(logits)))


def at_temperature(ranked: Floats, temperature: float) -> Floats:
    """Return the distributions as another temperature makes them; ranks stay as they are."""
    return _normalised(ranked ** (1 / temperature))


def displaced(ranked: Floats, share: float, *, loser: str = "1", gainer: str = "2-4") -> Floats:
    """Return distributions with mass moved from one rank bucket to another.

    The odds between the two are multiplied by one factor everywhere, such that ``share`` of the
    mass moves on average over all contexts. Within a bucket proportions stay.

    Args:
        ranked: [num, vocabulary].
        share: Of all mass, 0 to 1, less than the loser holds.
        loser: Bucket that mass leaves.
        gainer: Bucket that it enters.
    """
    masses = bucket_masses(ranked, is_whole=True)
    source, target = (masses[:, RANK_BUCKETS.index(name)] for name in (loser, gainer))
    both = np.maximum(source + target, 1e-300)
    low, high = 0.0, 40.0
    for _ in range(60):
        middle = (low + high) / 2
        moved = source - both * tilted(source / both, -middle)
        low, high = (middle, high) if moved.mean() < share else (low, middle)
    left = both * tilted(source / both, -high)
    scaled = ranked.copy()
    for name, before, after in ((loser, source, left), (gainer, target, both - left)):
        scaled[:, bucket_slice(name)] *= (after / np.maximum(before, 1e-300))[:, None]
    return _normalised(scaled)


def bucket_slice(name: str) -> slice:
    """Return the columns of ranked distributions that a bucket holds."""
    index = RANK_BUCKETS.index(name)
    ends = (*BUCKET_STARTS[1:], VOCABULARY + 1)
    return slice(BUCKET_STARTS[index] - 1, ends[index] - 1)


class Sampler:
    """Samples ranks from a pool of ranked distributions."""

    def __init__(self, ranked: Floats) -> None:
        """Lay the cumulative distributions end to end, each shifted by its number."""
        self._num, self._width = ranked.shape
        summed = np.cumsum(ranked, axis=1)
        summed /= summed[:, -1:]
        self._edges = (summed + np.arange(self._num)[:, None]).ravel()

    def ranks(self, where: Integers, rng: np.random.Generator) -> Integers:
        """Return one rank from 1 for each context of ``where``."""
        found = np.searchsorted(self._edges, where + rng.random(where.shape), side="right")
        return np.asarray(np.clip(found - where * self._width, 0, self._width - 1) + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Contexts and ranks that were sampled in them, both [num_texts, num_tokens]."""

    where: Integers
    ranks: Integers


def sample_texts(
    sampler: Sampler, *, num_texts: int, num_tokens: int, rng: np.random.Generator
) -> Texts:
    """Return texts in which every context follows from the one before and its sampled rank."""
    where = np.empty((num_texts, num_tokens), dtype=np.int64)
    ranks = np.empty_like(where)
    now = rng.integers(0, NUM_CONTEXTS, num_texts)
    for step in range(num_tokens):
        where[:, step] = now
        ranks[:, step] = sampler.ranks(now, rng)
        now = (now * 5 + ranks[:, step] * 7919 + 1) % NUM_CONTEXTS
    return Texts(where=where, ranks=ranks)


class TextScorer:
    """Observations of sampled texts under the distributions that they should follow."""

    def __init__(self, ranked: Floats) -> None:
        """Take the pool of contexts."""
        self._ranked = ranked
        self._masses = bucket_masses(ranked, is_whole=True)
        self._squares = (ranked**2).sum(axis=1)

    def observations(self, where: Integers, ranks: Integers) -> dict[str, Observations]:
        """Return the observations of one text, by kind."""
        own = self._ranked[where, ranks - 1]
        return {
            **rank_observations(ranks, self._masses[where]),
            "probability": Observations(x=own, m=self._squares[where]),
        }


class AuditPool:
    """Steps of verification by the token-wise rule, with drafts from a few candidates.

    All distributions are [num, VOCABULARY] in the order of the target's ranks.
    """

    def __init__(self, rng: np.random.Generator, *, num: int = NUM_CONTEXTS) -> None:
        """Draw targets, and drafts that propose from what lies near the target's best."""
        self.target = contexts(rng, num=num)
        noisy = np.log(self.target) + rng.normal(0, 1.0, self.target.shape)
        edge = -np.sort(-noisy, axis=1)[:, NUM_CANDIDATES - 1 : NUM_CANDIDATES]
        self.is_candidate = noisy >= edge
        draft = _normalised(np.where(self.is_candidate, np.exp(noisy), 0.0))
        overlap = np.minimum(self.target, draft)
        self.accepted = overlap.sum(axis=1)
        self.residual = _normalised(np.maximum(self.target - draft, 0.0))
        self.inside = (self.residual * self.is_candidate).sum(axis=1)
        self.target_masses = bucket_masses(self.target, is_whole=True)
        self.residual_masses = bucket_masses(self.residual, is_whole=True)
        self.of_overlap = Sampler(_normalised(overlap))
        self.of_residual = Sampler(self.residual)
        self.of_target = Sampler(self.target)
        self.of_outside = Sampler(_normalised(np.where(self.is_candidate, 0.0, self.target)))

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens of a step, the last one included, 1 to NUM_DRAFT_TOKENS + 1."""
        later = sum(LATER_ACCEPTANCE**index for index in range(NUM_DRAFT_TOKENS))
        return float(1 + self.accepted.mean() * later)

    def move_chance(self, displacement: float) -> float:
        """Return the chance of moving a recovered candidate that displaces a share of all tokens.

        Args:
            displacement: Share of all tokens, 0 to 1.
        """
        recovered = float(np.mean((1 - self.accepted) * self.inside)) / self.tokens_per_step
        return min(1.0, displacement / recovered)


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What an audit of so many steps saw."""

    observations: Mapping[str, Observations]
    num_tokens: int


def run_audit(
    pool: AuditPool, *, num_steps: int, rng: np.random.Generator, displacement: float = 0.0
) -> Audit:
    """Return the observations of steps verified token by token.

    Args:
        pool: Steps to draw from.
        num_steps: Steps.
        rng: Source of everything that is drawn.
        displacement: Share of all tokens that are recovered tokens moved out of the draft's
            candidates; 0 is lossless.
    """
    where = rng.integers(0, len(pool.accepted), num_steps)
    first = rng.random(num_steps) < pool.accepted[where]
    later = np.minimum(rng.geometric(1 - LATER_ACCEPTANCE, num_steps) - 1, NUM_DRAFT_TOKENS - 1)
    rejected = where[~first]
    recovered = pool.of_residual.ranks(rejected, rng)
    inside = pool.is_candidate[rejected, recovered - 1]
    if displacement:
        moved = inside & (rng.random(len(inside)) < pool.move_chance(displacement))
        recovered = np.where(moved, pool.of_outside.ranks(rejected, rng), recovered)
        inside = inside & ~moved
    emitted = np.empty(num_steps, dtype=np.int64)
    emitted[first] = pool.of_overlap.ranks(where[first], rng)
    emitted[~first] = recovered
    bonus = rng.permutation(where)[: int((first & (later == NUM_DRAFT_TOKENS - 1)).sum())]
    families = (
        ("recovered_rank", recovered, pool.residual_masses[rejected]),
        ("emitted_rank", emitted, pool.target_masses[where]),
        ("bonus_rank", pool.of_target.ranks(bonus, rng), pool.target_masses[bonus]),
    )
    observations = {
        FIRST_ACCEPTED: Observations(x=first.astype(float), m=pool.accepted[where]),
        RECOVERED_IN_CANDIDATES: Observations(x=inside.astype(float), m=pool.inside[rejected]),
    }
    for prefix, ranks, masses in families:
        observations |= rank_observations(ranks, masses, prefix=prefix)
    num_tokens = num_steps + int((later + 1)[first].sum())
    return Audit(observations=observations, num_tokens=num_tokens)


def _normalised(weights: Floats) -> Floats:
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))
