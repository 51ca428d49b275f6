"""What the texts of a driven build tell: observations for the judge, and a share with interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from orchestrator.core.lossless.observations import Floats, Observations
from orchestrator.core.lossless.ranks import text_observations

Z95 = 1.959964
"""Of a two-sided interval of 95 %."""
MAX_PROBABILITIES = 1 << 22
"""Of how many at a time observations are made: 32 MB, and some copies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """What a rule wrote, and the target by which it should have been written."""

    tokens: npt.NDArray[np.int64]
    """[num_requests, length] token ids."""
    prompt_tokens: npt.NDArray[np.int64]
    """[num_requests]: the last token of each prompt."""
    temperatures: Floats
    """[num_requests], above 0."""
    target_logits: Floats
    """[V, V], by the token before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Displacement:
    """A share of all tokens that fell on other ranks than they should, at least.

    It is estimated without bias along a direction that the other half of the texts chose: in a
    lossless build it is 0 on average, and may come out below.
    """

    share: float
    low: float
    """Of an interval of 95 %."""
    high: float


class TextEvidence:
    """Every token of the texts with its distribution by rank, texts one after another."""

    def __init__(self, texts: Texts) -> None:
        """Compute the distributions in float64."""
        before = np.concatenate([texts.prompt_tokens[:, None], texts.tokens[:, :-1]], axis=1)
        levels, level = np.unique(texts.temperatures, return_inverse=True)
        tables = np.concatenate([_softmax(texts.target_logits / value) for value in levels])
        order = np.argsort(-tables, axis=1, kind="stable")
        # By state, which is the temperature and the token before: probabilities in rank order.
        self._ranked = np.take_along_axis(tables, order, axis=1)
        self._state = (level[:, None] * len(texts.target_logits) + before).ravel()
        self._rank = np.argsort(order, axis=1)[self._state, texts.tokens.ravel()]
        halves = np.arange(len(texts.tokens)) % 2 == 0
        self._is_even = np.repeat(halves, texts.tokens.shape[1])

    def observations(self) -> dict[str, Observations]:
        """Return what the judge takes, by kind."""
        size = max(1, MAX_PROBABILITIES // self._ranked.shape[1])
        parts = [
            text_observations(
                self._ranked[self._state[start : start + size]],
                self._rank[start : start + size] + 1,
                is_whole=True,
            )
            for start in range(0, len(self._rank), size)
        ]
        return {
            kind: Observations(
                x=np.concatenate([part[kind].x for part in parts]),
                m=np.concatenate([part[kind].m for part in parts]),
            )
            for kind in parts[0]
        }

    def displacement(self) -> Displacement | None:
        """Return the displaced share of the tokens; None with fewer than two texts.

        The sum over ranks of |observed - expected| / 2, with the signs taken from the other half of
        the texts: with its own, chance alone would show as displacement.
        """
        halves = (self._is_even, ~self._is_even)
        if not all(half.any() for half in halves):
            return None
        gains = np.empty(len(self._rank))
        for own, other in (halves, halves[::-1]):
            signs = np.sign(self._excess(other))
            expected = self._ranked @ signs
            gains[own] = (signs[self._rank[own]] - expected[self._state[own]]) / 2
        share = float(gains.mean())
        error = Z95 * float(gains.std()) / math.sqrt(len(gains))
        return Displacement(share=share, low=share - error, high=share + error)

    def _excess(self, where: npt.NDArray[np.bool_]) -> Floats:
        """Return tokens of each rank beyond the expected ones, [V]."""
        found = np.bincount(self._rank[where], minlength=self._ranked.shape[1])
        visits = np.bincount(self._state[where], minlength=len(self._ranked))
        return np.asarray(found - visits @ self._ranked, dtype=np.float64)


def _softmax(logits: Floats) -> Floats:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))
