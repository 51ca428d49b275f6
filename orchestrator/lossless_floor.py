"""How far numerics alone move a distribution between sampling and scoring. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from orchestrator.core.lossless.observations import BUCKET_STARTS, Floats
from orchestrator.load.token_answers import Scores, Top

NUM_ERRORS = 3.0
"""Standard errors that are added to the mean drift."""


class DriftMeter:
    """Compares what a server held likely when it sampled with what it says when it scores.

    Sampling takes tokens one by one, scoring a whole text; both round, and each in its own way.
    What a bet can gain from it is the part that goes one way: the drift of a bucket's mass, summed
    with its sign. The scorer's order of tokens makes the buckets on both sides.
    """

    def __init__(self) -> None:
        num = len(BUCKET_STARTS)
        self._drift = np.zeros(num)
        self._square = np.zeros(num)
        self._noise = np.zeros(num)
        self._most = 0.0
        self.num_tokens = 0

    def update(self, scores: Scores, decoded: Top) -> None:
        """Take one answer's tokens.

        Args:
            scores: The probabilities of its scoring.
            decoded: Those of its sampling, of as many tokens or more.
        """
        num_tokens = len(scores.logprobs)
        self.num_tokens += num_tokens
        scored = np.exp(scores.top.logprobs)
        sampled = _matched(scores.top.ids, decoded.ids[:num_tokens], decoded.logprobs[:num_tokens])
        ends = [*(start - 1 for start in BUCKET_STARTS[1:]), scored.shape[1]]
        for bucket, (start, end) in enumerate(zip(BUCKET_STARTS, ends, strict=True)):
            ours, theirs = scored[:, start - 1 : end], sampled[:, start - 1 : end]
            # A token that was not named when it was sampled leaves its bucket unknown.
            known = ~np.isnan(theirs).any(axis=1)
            if not ours.shape[1] or not known.any():
                continue
            mass = ours[known].sum(axis=1)
            drift = theirs[known].sum(axis=1) - mass
            self._drift[bucket] += drift.sum()
            self._square[bucket] += (drift**2).sum()
            self._noise[bucket] += (mass * (1 - mass)).clip(min=0).sum()
            self._most = max(self._most, float(np.abs(drift).max()))

    @property
    def most(self) -> float | None:
        """Largest drift of a bucket's mass at one token, 0 to 1; None without tokens."""
        return self._most if self._noise.any() else None

    @property
    def floor(self) -> float | None:
        """Log odds by which numerics move an event on average, with its error added; or None.

        Formula: the largest over buckets of (|sum d| + 3 sqrt(sum d^2)) / sum m (1 - m), d the
        drift of the mass m. A shift of log odds by f moves a mass by f m (1 - m).
        """
        known = self._noise > 0
        if not known.any():
            return None
        moved = np.abs(self._drift[known]) + NUM_ERRORS * np.sqrt(self._square[known])
        return float((moved / self._noise[known]).max())


def _matched(wanted: npt.NDArray[np.int64], ids: npt.NDArray[np.int64], logprobs: Floats) -> Floats:
    """Return the probabilities of the wanted ids, [num_tokens, num_wanted]; NaN where unknown."""
    order = np.argsort(ids, axis=1)
    found = np.full(wanted.shape, np.nan)
    for row, sorter in enumerate(order):
        ranked = ids[row][sorter]
        at = np.searchsorted(ranked, wanted[row]).clip(max=len(ranked) - 1)
        hits = ranked[at] == wanted[row]
        found[row, hits] = np.exp(logprobs[row][sorter[at[hits]]])
    return found
