"""Verification of drafts, exactly, on explicit distributions: token-wise and block. Pure.

Token-wise (``standard``): Leviathan et al. 2023, "Fast Inference from Transformers via Speculative
Decoding", arXiv 2211.17192. A drafted token x is accepted with min(1, p(x) / q(x)); after the first
rejection a token is drawn from max(p - q, 0), normalised.

Block (``block``): Sun et al. 2024, "Block Verification Accelerates Speculative Decoding", arXiv
2403.10444, algorithm 2. With w_0 = 1 and w_i = min(w_{i-1} p(x_i) / q(x_i), 1), position i < depth
passes with h_i = Z_i / (Z_i + 1 - w_i), where Z_i = sum over x of max(w_i p(x) - q(x), 0) after the
first i tokens, and the last with h_depth = w_depth. The longest prefix whose last position passes
is accepted, whatever came before; then a token is drawn from max(w_i p - q, 0), normalised. vLLM's
kernel (``rejection_sampler_utils``, read in 0.32.0) computes the same quantities.

Under both rules a fully accepted draft is followed by a token of the target's own.

A greedy draft is one-hot on the draft's first choice. Then both rules accept i or more tokens with
the product of the target's probabilities of the first i, so they accept alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Rule = Literal["standard", "block"]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Model = Callable[[tuple[int, ...]], Floats]
"""From the tokens so far to the distribution of the next, [num_tokens] of float64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passing:
    """What a rule makes of given drafts. B drafts of depth D over a vocabulary of V."""

    lengths: Floats
    """[B, D + 1] probability that 0, 1, ... D tokens are accepted."""
    weights: Floats
    """[B, D + 1] factor of p in the residual after 0, 1, ... accepted tokens."""


class Outcomes(NamedTuple):
    """Everything that one step can do, enumerated."""

    lengths: Floats
    """[depth + 1] probability of each accepted length."""
    texts: dict[tuple[int, ...], float]
    """Probability of each text of depth + 1 tokens: what the step emits, continued by the target
    where the step emits less."""

    @property
    def mean_length(self) -> float:
        """Expected number of accepted tokens, 0 to depth."""
        return float(self.lengths @ np.arange(len(self.lengths)))


def verify(target: Floats, draft: Floats, tokens: Ints, rule: Rule) -> Passing:
    """Return the law of the accepted length for given drafts.

    Args:
        target: [B, D, V] distributions of the target along each draft.
        draft: [B, D, V] distributions that the tokens were drawn from.
        tokens: [B, D] drafted tokens.
        rule: The rule.
    """
    ratios = _ratios(target, draft, tokens)
    if rule == "standard":
        lengths = prefix_lengths(np.minimum(ratios, 1.0))
        return Passing(lengths=lengths, weights=np.ones_like(lengths))
    return _block(target, draft, ratios)


def prefix_lengths(chances: Floats) -> Floats:
    """Return the law of the accepted length where positions pass independently, [B, D + 1].

    Args:
        chances: [B, D] chance of each position, given that all before it passed.
    """
    sure = np.ones((len(chances), 1))
    reached = np.concatenate([sure, np.cumprod(chances, axis=1)], axis=1)
    return np.asarray(reached * np.concatenate([1.0 - chances, sure], axis=1))


def residual(target: Floats, draft: Floats, weight: float) -> Floats:
    """Return the distribution of the token after a rejection, [V]: max(weight p - q, 0), scaled.

    Where nothing is left, no rejection can happen there, and the target's own is returned.
    """
    rest = np.maximum(weight * target - draft, 0.0)
    total = rest.sum()
    return rest / total if total > 0 else target


def sample(
    target: Floats, draft: Floats, rule: Rule, rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """Draw drafts, verify them, and return tokens [B, D] and accepted lengths [B].

    Every position tosses a coin of its own, as an engine does; nothing of ``verify`` is averaged.
    """
    tokens = draw(draft, rng)
    ratios = _ratios(target, draft, tokens)
    coins = rng.random(ratios.shape)
    if rule == "standard":
        passes = coins <= np.minimum(ratios, 1.0)
        return tokens, np.cumprod(passes, axis=1).sum(axis=1)
    passes = coins <= _block_chances(target, draft, ratios)[0]
    depth = passes.shape[1]
    last = depth - np.argmax(passes[:, ::-1], axis=1)
    return tokens, np.where(passes.any(axis=1), last, 0)


def draw(distributions: Floats, rng: np.random.Generator) -> Ints:
    """Draw one token of each distribution, [..., V] to [...]."""
    edges = np.cumsum(distributions, axis=-1)
    luck = rng.random(distributions.shape[:-1])[..., None] * edges[..., -1:]
    tokens: Ints = (luck >= edges).sum(axis=-1)
    return tokens


def one_hot(draft: Floats) -> Floats:
    """Return the greedy draft of a draft's distributions: all on the first choice, [..., V]."""
    hot = np.zeros_like(draft)
    np.put_along_axis(hot, draft.argmax(axis=-1)[..., None], 1.0, axis=-1)
    return hot


def enumerate_step(target: Model, draft: Model, *, depth: int, rule: Rule) -> Outcomes:
    """Return everything that one step can do, by summing over all drafts of positive probability.

    Args:
        target: The target model.
        draft: The draft model, over the same vocabulary.
        depth: Drafted tokens; the sum has num_tokens ** depth terms.
        rule: The rule.
    """
    num_tokens = len(target(()))
    lengths = np.zeros(depth + 1)
    texts: dict[tuple[int, ...], float] = {}
    for path in product(range(num_tokens), repeat=depth):
        prefixes = [path[:i] for i in range(depth)]
        q = np.array([draft(prefix) for prefix in prefixes])
        chance = float(np.prod(q[np.arange(depth), path]))
        if chance == 0:
            continue
        p = np.array([target(prefix) for prefix in prefixes])
        passing = verify(p[None], q[None], np.array([path]), rule)
        lengths += chance * passing.lengths[0]
        for accepted, share in enumerate(passing.lengths[0]):
            weight = passing.weights[0, accepted]
            last = accepted == depth
            following = target(path) if last else residual(p[accepted], q[accepted], weight)
            _emit(texts, path[:accepted], chance * share * following, target=target, depth=depth)
    return Outcomes(lengths, texts)


def _emit(
    texts: dict[tuple[int, ...], float],
    accepted: tuple[int, ...],
    following: Floats,
    *,
    target: Model,
    depth: int,
) -> None:
    """Add the texts that begin with the accepted tokens and one more."""
    open_ends = {(*accepted, token): float(mass) for token, mass in enumerate(following) if mass}
    while open_ends:
        text, mass = open_ends.popitem()
        if len(text) == depth + 1:
            texts[text] = texts.get(text, 0.0) + mass
            continue
        for token, share in enumerate(target(text)):
            if share:
                open_ends[*text, token] = mass * float(share)


def _ratios(target: Floats, draft: Floats, tokens: Ints) -> Floats:
    """Return p / q of the drafted tokens, [B, D]; what was drawn has q above 0."""
    index = tokens[..., None]
    p = np.take_along_axis(target, index, axis=-1)[..., 0]
    q = np.take_along_axis(draft, index, axis=-1)[..., 0]
    return np.asarray(p / q)


def _block(target: Floats, draft: Floats, ratios: Floats) -> Passing:
    chances, weights = _block_chances(target, draft, ratios)
    count = len(chances)
    passes = np.concatenate([np.ones((count, 1)), chances], axis=1)
    # Length i means that position i passes and none after it.
    after = np.cumprod(1.0 - passes[:, :0:-1], axis=1)[:, ::-1]
    none_after = np.concatenate([after, np.ones((count, 1))], axis=1)
    return Passing(lengths=passes * none_after, weights=weights)


def _block_chances(target: Floats, draft: Floats, ratios: Floats) -> tuple[Floats, Floats]:
    """Return h_1 ... h_D, [B, D], and w_0 ... w_D, [B, D + 1]."""
    count, depth = ratios.shape
    weights = np.ones((count, depth + 1))
    for position in range(depth):
        weights[:, position + 1] = np.minimum(weights[:, position] * ratios[:, position], 1.0)
    rest = np.maximum(weights[:, 1:-1, None] * target[:, 1:] - draft[:, 1:], 0.0).sum(axis=-1)
    below = rest + 1.0 - weights[:, 1:-1]
    # 0 / 0: target and draft agree on all that follows, and nothing can be rejected.
    early = np.where(below > 0, rest / np.where(below > 0, below, 1.0), 1.0)
    return np.concatenate([early, weights[:, -1:]], axis=1), weights
