"""How many tokens a test takes to reject: streams fed batch by batch, until they are."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from infra.bench.lossless.worlds import (
    AuditPool,
    Sampler,
    TextScorer,
    at_temperature,
    displaced,
    run_audit,
)
from orchestrator.core.lossless.judge import LosslessTest
from orchestrator.core.lossless.observations import Floats, Observations

Batch = Mapping[str, Observations]
Source = Callable[[int, np.random.Generator], Batch]
"""Observations of so many more tokens."""


def text_source(scored: Floats, sampled: Floats) -> Source:
    """Return texts sampled from one pool of contexts and scored by another."""
    scorer, sampler = TextScorer(scored), Sampler(sampled)

    def batch(num_tokens: int, rng: np.random.Generator) -> Batch:
        where = rng.integers(0, len(scored), num_tokens)
        return scorer.observations(where, sampler.ranks(where, rng))

    return batch


def temperature_source(scored: Floats, temperature: float) -> Source:
    """Return texts of another temperature than the one that they are scored at."""
    return text_source(scored, at_temperature(scored, temperature))


def displaced_source(scored: Floats, share: float) -> Source:
    """Return texts in which a share of the tokens moved from rank 1 to ranks 2 to 4."""
    return text_source(scored, displaced(scored, share))


def audit_source(pool: AuditPool, displacement: float) -> Source:
    """Return audits in which a share of all tokens moved out of the draft's candidates."""

    def batch(num_tokens: int, rng: np.random.Generator) -> Batch:
        num_steps = max(1, round(num_tokens / pool.tokens_per_step))
        return run_audit(pool, num_steps=num_steps, rng=rng, displacement=displacement).observations

    return batch


def tokens_to_rejection(
    source: Source, marks: Sequence[int], *, alpha: float, rng: np.random.Generator
) -> int | None:
    """Return the first of ``marks``, ascending tokens, at which a stream is rejected, or None."""
    test = LosslessTest()
    for start, end in itertools.pairwise([0, *marks]):
        test.update(source(end - start, rng))
        if test.p_value <= alpha:
            return end
    return None
