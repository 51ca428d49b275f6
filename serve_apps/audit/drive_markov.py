"""A small language model whose every distribution is known: a Markov chain, and a draft of it.

The target gives the next token by the last one alone. The draft is the target's logits with noise
added. As a DFlash2 drafter does, it offers a few candidates at each of its positions, chosen from
the anchor (the last token of the text), and scores each by the candidate before it; as a DFlash
drafter does, it gives each position a distribution of its own, by the anchor.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

NEXT_TOKEN_EXPONENT = 1.1
"""Likelihoods fall with the rank to this power, as those of words do."""
TARGET_NOISE = 0.3
DRAFT_NOISE = 0.8
"""Standard deviations in log odds. The second leaves the draft right about as often as a DFlash2
draft of a small model is: 1.9 to 2.1 tokens a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The target's and the draft's logits at temperature 1."""

    target_logits: NDArray[np.float32]
    """[V, V], by last token."""
    candidates: NDArray[np.int64]
    """[V, K, C] token ids, by anchor and position."""
    scores: NDArray[np.float32]
    """[V, K, C, C]: by anchor, position, the candidate before and the candidate."""
    position_logits: NDArray[np.float32]
    """[V, K, V], by anchor and position, when positions are drafted apart."""

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return len(self.target_logits)

    @property
    def depth(self) -> int:
        """Number of draft tokens a step."""
        return int(self.candidates.shape[1])


def make_chain(*, seed: int, vocabulary: int, depth: int, num_candidates: int) -> Chain:
    """Return a chain; the same one for the same arguments.

    Args:
        seed: Of all its logits.
        vocabulary: Number of tokens.
        depth: Draft tokens a step.
        num_candidates: Candidates of the draft at each position, at most `vocabulary`.
    """
    rng = np.random.default_rng(seed)
    zipf = -NEXT_TOKEN_EXPONENT * np.log(np.arange(1, vocabulary + 1))
    target = np.stack([zipf[rng.permutation(vocabulary)] for _ in range(vocabulary)])
    target += TARGET_NOISE * rng.standard_normal(target.shape)
    draft = target + DRAFT_NOISE * rng.standard_normal(target.shape)
    one_step = probabilities(draft)
    ahead = np.empty((vocabulary, depth, vocabulary))
    reached = np.eye(vocabulary)
    for position in range(depth):
        reached = reached @ one_step
        ahead[:, position] = reached
    # Sorted by id: no rank leaks into the order that the kernels see.
    candidates = np.sort(np.argsort(-ahead, axis=2)[:, :, :num_candidates], axis=2)
    before = np.empty_like(candidates)
    before[:, 0] = np.arange(vocabulary)[:, None]
    before[:, 1:] = candidates[:, :-1]
    return Chain(
        target_logits=target.astype(np.float32),
        candidates=candidates,
        scores=draft[before[..., :, None], candidates[..., None, :]].astype(np.float32),
        position_logits=np.log(ahead).astype(np.float32),
    )


def probabilities(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Return the softmax of the last axis in float64."""
    wide = logits.astype(np.float64)
    weights = np.exp(wide - wide.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))
