"""The known distribution that stands in for a target model: a small Markov chain. Pure.

A token's probabilities depend on the token before it and on its place in the text. Without the
place the likeliest text would go round in a short loop, which is no text.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

VOCABULARY = 128
TARGET_SEED = 0
"""Of the chain: all that have it serve the same target."""
EXPONENT = 1.4
DISPLACED_RANK = 8
"""Where displaced tokens go, from 1."""


class Chain:
    """Probabilities of the next token, and draws from them.

    Args:
        vocabulary: Number of tokens.
        seed: Of the probabilities.
        exponent: Probability of a rank is about rank ** -exponent.
    """

    def __init__(
        self,
        *,
        vocabulary: int = VOCABULARY,
        seed: int = TARGET_SEED,
        exponent: float = EXPONENT,
    ) -> None:
        self.vocabulary = vocabulary
        rng = np.random.default_rng(seed)
        # Not all rows alike: some nearly certain, some nearly flat.
        exponents = exponent * rng.uniform(0.5, 1.5, size=vocabulary)
        logits = -exponents[:, None] * np.log(np.arange(1, vocabulary + 1))
        logits += 0.1 * rng.standard_normal(logits.shape)
        self._logits: Floats = rng.permuted(logits, axis=1)
        self._masses = lru_cache(maxsize=16 * vocabulary)(self._cumulated)

    def logprobs(self, previous: int, place: int, temperature: float = 1.0) -> Floats:
        """Return the log probabilities of the token at a place, [vocabulary], natural log.

        Args:
            previous: The token before it.
            place: Number of tokens before it.
            temperature: Above 0.
        """
        return log_softmax(self._logits[self._row(previous, place)] / temperature)

    def draw(
        self, previous: int, place: int, *, temperature: float, chance: float, top_k: int = 0
    ) -> int:
        """Return the token at a place.

        Args:
            previous: The token before it.
            place: Number of tokens before it.
            temperature: 0 is the likeliest token.
            chance: Uniform in 0 to 1; it decides.
            top_k: From how many of the likeliest; 0 is all.
        """
        ranked, masses = self._masses(self._row(previous, place), temperature, top_k)
        return ranked[min(bisect_left(masses, chance), len(masses) - 1)]

    def displaced(self, previous: int, place: int) -> int:
        """Return where a displaced token of that place goes."""
        ranked, _ = self._masses(self._row(previous, place), 1.0, 0)
        return ranked[DISPLACED_RANK - 1]

    def _row(self, previous: int, place: int) -> int:
        return zlib.crc32(f"{previous} {place}".encode()) % self.vocabulary

    def _cumulated(self, row: int, temperature: float, top_k: int) -> tuple[list[int], list[float]]:
        """Return the tokens by rank, and the probability of each and all before it."""
        logits = self._logits[row]
        ranked = np.argsort(-logits, kind="stable")
        kept = ranked[: 1 if temperature == 0 else top_k or len(ranked)]
        scale = 1.0 if temperature == 0 else temperature
        masses = np.cumsum(np.exp(log_softmax(logits[kept] / scale)))
        return ranked.tolist(), masses.tolist()


def log_softmax(logits: Floats) -> Floats:
    """Return log probabilities, natural log."""
    shifted = logits - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))
