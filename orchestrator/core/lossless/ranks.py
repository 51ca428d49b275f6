"""Buckets of ranks: which one a token fell into, and the mass that each held beforehand.

Tokens of equal probability must be put in some order, and any will do that does not depend on which
token was sampled: the buckets then divide the vocabulary, and their masses are exact. Over whole
distributions the order is by probability, then by token id. Where an engine names its top tokens,
the order is the one in which it names them.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from orchestrator.core.lossless.observations import (
    BUCKET_STARTS,
    LEAST_LOG,
    LOG_PROBABILITY,
    Floats,
    Observations,
    rank_kinds,
)

Integers = npt.NDArray[np.int64]


def sampled_ranks(probabilities: Floats, tokens: Integers) -> Integers:
    """Return the ranks from 1 of sampled tokens, [num].

    Args:
        probabilities: [num, vocabulary], the distributions that they were to be sampled from.
        tokens: [num], token ids.
    """
    own = np.take_along_axis(probabilities, tokens[:, None], axis=1)
    before = np.arange(probabilities.shape[1]) < tokens[:, None]
    ahead = (probabilities > own) | ((probabilities == own) & before)
    return np.asarray(ahead.sum(axis=1) + 1, dtype=np.int64)


def bucket_masses(ranked: Floats, *, is_whole: bool = False) -> Floats:
    """Return the mass of every rank bucket that the probabilities tell, [num, num_buckets].

    Args:
        ranked: [num, num_top], probabilities in the order of their ranks, at least one.
        is_whole: They are the whole vocabulary. Else what they leave of 1 is the mass of all later
            ranks: with 64 or more that belongs to the last bucket; with fewer, the buckets that it
            is spread over are left out (with 20, those from 17 on).

    Returns:
        One column for each of the first buckets; five where all are known.
    """
    num_top = ranked.shape[1]
    ends = [start - 1 for start in BUCKET_STARTS[1:] if is_whole or start - 1 <= num_top]
    summed = np.cumsum(np.pad(ranked, ((0, 0), (1, 0))), axis=1)
    masses = np.diff(summed[:, np.minimum([0, *ends], num_top)], axis=1)
    if len(ends) < len(BUCKET_STARTS) - 1:
        return np.asarray(masses)
    whole = summed[:, -1] if is_whole else np.maximum(summed[:, -1], 1.0)
    last = whole - summed[:, min(ends[-1], num_top)]
    return np.column_stack([masses, last])


def rank_observations(
    ranks: Integers, masses: Floats, *, prefix: str = "rank"
) -> dict[str, Observations]:
    """Return one observation a bucket and token, by kind.

    Args:
        ranks: [num], from 1, in the order that the masses were computed in.
        masses: [num, num_buckets], as ``bucket_masses`` returns them; kinds without are left out.
        prefix: Of the kinds: ``rank``, ``emitted_rank``, ``recovered_rank`` or ``bonus_rank``.
    """
    buckets = np.searchsorted(BUCKET_STARTS, ranks, side="right") - 1
    return {
        kind: Observations(x=(buckets == index).astype(float), m=masses[:, index])
        for index, kind in enumerate(rank_kinds(prefix)[: masses.shape[1]])
    }


def text_observations(
    ranked: Floats, ranks: Integers, *, is_whole: bool = False
) -> dict[str, Observations]:
    """Return the observations of the text test: rank buckets and the log probability itself.

    The log probability of the sampled token, from ``LEAST_LOG`` to 0 and moved to 0 to 1, counts
    where the token is among the top ones, and 0 stands for it elsewhere; its mean is then the sum
    of theirs, each with its own probability, whatever the tail holds. The logarithm and not the
    probability: a wrong temperature multiplies log probabilities, at every token alike.

    Args:
        ranked: [num, num_top], the target's highest probabilities in the order of their ranks; all
            buckets need 64 of them.
        ranks: [num], from 1, position of the sampled tokens in that order; anything above
            ``num_top`` for a token that is not among them.
        is_whole: The probabilities are the whole vocabulary.
    """
    inside = ranks <= ranked.shape[1]
    positions = np.where(inside, ranks, 1) - 1
    high = heights(ranked)
    own = np.take_along_axis(high, positions[:, None], axis=1)[:, 0]
    log_probability = Observations(x=np.where(inside, own, 0.0), m=(ranked * high).sum(axis=1))
    masses = bucket_masses(ranked, is_whole=is_whole)
    return {**rank_observations(ranks, masses), LOG_PROBABILITY: log_probability}


def heights(probabilities: Floats) -> Floats:
    """Return log probabilities from ``LEAST_LOG`` to 0, moved to 0 to 1."""
    floor = math.exp(LEAST_LOG)
    return np.asarray(1 - np.log(np.clip(probabilities, floor, 1.0)) / LEAST_LOG)


def ranked_probabilities(probabilities: Floats) -> Floats:
    """Return whole distributions [num, vocabulary] in the order of their ranks."""
    return -np.sort(-probabilities, axis=1)
