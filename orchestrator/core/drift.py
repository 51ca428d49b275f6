"""Drift of production from what a verdict stands on: acceptance, step time and the traffic's mix.

What a minute shows of production is mostly its text: minutes differ far more than their counts of
drafts allow, neighbours are alike, and days have a rhythm. So no minute is tested. Looks are added
up to batches, and a batch votes for "outside" by how far it lies outside, at most 1 either way:

    x = clip((+-log(observed / promised) - allowance - tolerance) / SCALE, -1, 1)

``allowance`` is the log of the factor by which the verdict's interval lets the level differ from
its centre. A level within the interval is no drift; the tolerance lies around it and pays for
rhythm and for neighbours that are alike. Clipping makes one wild batch worth no more than a clear
one. The mix is compared by whole days, since nights are always another mix than days:

    x = (sum of |share - weight| / 2) / MIX_TOLERANCE - 1

Evidence adds up by ``edetector``. A look without evidence is none: no request, a restart of the
engine, a look that was missed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.core.edetector import EDetector, Flags, Floats, kept_array

BATCH_S = 1200.0
"""Seconds of evidence in a batch, at least. Some 18 are needed for an alarm. With 10 minutes a
shift of 10 % was found in 5 hours and not 9, but text that stays alike for 3 hours raised 1.8
alarms a month and not 0.3 (the worlds of ``infra/bench/watch.py``)."""
MIN_DRAFTS = 1000.0
"""In a batch, at least: some ten answers. At night a batch takes longer."""
SCALE = 0.05
"""How far outside, as a logarithm, a batch counts in full."""
DAY_S = 86_400.0
MIN_REQUESTS = 500
"""In a day's mix, at least: shares of fewer requests lie apart by chance."""
MIX_TOLERANCE = 0.2
"""Share of the output tokens, 0 to 1, that may fall into other cells than the weights say."""
MONTH_S = 30 * DAY_S
NUM_DIRECTIONS = 5
"""Of all tests together: acceptance and step time both ways, and the mix."""
MONTHS_TO_FALSE_ALARM = 12.0
"""Of all tests together, if batches were as the bound asks. One month is asked for; the rest is for
neighbours that are alike."""
_RECENT = 0.9
"""What a batch weighs in the level that is told, against the one after it."""

OVER, UNDER = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """What one look at each stream shows, against what was promised; arrays [num]."""

    observed: Floats
    """Sum whose ratio to ``promised`` is the level, above 0 where there is evidence."""
    promised: Floats
    allowance: Floats
    """Log of the factor that the verdict's interval allows, 0 or more."""
    drafts: Floats
    """Behind it; 0 is no evidence."""
    seconds: float
    """Since the look before."""


class LevelTest:
    """Tests whether a level, observed / promised, has left the verdict's interval."""

    def __init__(self, num: int, *, tolerance: float) -> None:
        """Begin without evidence.

        Args:
            num: Streams.
            tolerance: Relative difference beyond the interval that is no drift yet, 0 or more.
        """
        self._tolerance = float(np.log1p(tolerance))
        self._sums = np.zeros((5, num))
        """[observed, promised, allowance * promised, drafts, seconds]"""
        self._recent = np.zeros((3, num))
        self.detector = EDetector(num, num_directions=2, threshold=_threshold(BATCH_S))

    @property
    def level(self) -> Floats:
        """Observed / promised of some ten batches, [num]; nan before the first."""
        return _ratio(self._recent[0], self._recent[1])

    @property
    def allowance(self) -> Floats:
        """Factor that the level may differ by, of the same batches, tolerance included, [num]."""
        allowed = _ratio(self._recent[2], self._recent[1])
        return np.asarray(np.exp(allowed + self._tolerance))

    def update(self, looks: Looks) -> Flags:
        """Take one look; return [num] where an alarm was opened or closed by it."""
        seen = (looks.drafts > 0) & (looks.observed > 0) & (looks.promised > 0)
        added = np.stack(
            [
                looks.observed,
                looks.promised,
                looks.allowance * looks.promised,
                looks.drafts,
                np.full(len(seen), looks.seconds),
            ]
        )
        self._sums += np.where(seen, added, 0.0)
        full: Flags = (self._sums[4] >= BATCH_S) & (self._sums[3] >= MIN_DRAFTS)
        if not full.any():
            return full
        changed = self.detector.feed(self._outside(), full)
        # Shares of one batch each, so that a busy hour does not hide the last one.
        batch = self._sums[:3] / np.where(full, self._sums[1], 1.0)
        self._recent = np.where(full, _RECENT * self._recent + batch, self._recent)
        self._sums = np.where(full, 0.0, self._sums)
        return changed

    def _outside(self) -> Floats:
        observed, promised, allowed = self._sums[:3]
        filled = promised > 0
        safe = np.where(filled, promised, 1.0)
        log_ratio = np.log(np.where(filled, observed, 1.0) / safe)
        bound = allowed / safe + self._tolerance
        beyond = np.stack([log_ratio - bound, -log_ratio - bound], axis=1)
        return np.clip(beyond / SCALE, -1.0, 1.0)

    def state(self) -> dict[str, Any]:
        """Return what it has seen as plain JSON."""
        return {
            "sums": self._sums.tolist(),
            "recent": self._recent.tolist(),
            "detector": self.detector.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of as many streams.

        Raises:
            ValueError: It is another's, as with KeyError and TypeError; nothing was taken from it.
        """
        sums = kept_array(state, "sums", self._sums.shape)
        recent = kept_array(state, "recent", self._recent.shape)
        self.detector.restore(state["detector"])
        self._sums, self._recent = sums, recent


class MixTest:
    """Tests whether the shares of the output tokens by cell are the verdict's weights."""

    def __init__(self, num: int, weights: Floats) -> None:
        """Begin without evidence.

        Args:
            num: Streams.
            weights: [num_cells] shares, summing to 1.
        """
        self._weights = weights
        self._tokens = np.zeros((num, len(weights)))
        self._requests = np.zeros(num)
        self._seconds = np.zeros(num)
        self.shares = np.full((num, len(weights)), np.nan)
        """[num, num_cells] of the last whole day; nan before it."""
        self.detector = EDetector(num, num_directions=1, threshold=_threshold(DAY_S))

    @property
    def distance(self) -> Floats:
        """Share of the last day's tokens that fell into other cells, [num], 0 to 1."""
        return np.asarray(np.abs(self.shares - self._weights).sum(axis=1) / 2)

    def update(self, tokens: Floats, requests: Floats, seconds: float) -> Flags:
        """Take what was seen since the look before; return [num] where an alarm changed.

        Args:
            tokens: [num, num_cells] output tokens.
            requests: [num] that were behind them.
            seconds: Since then; time that nobody looked at makes a day no longer.
        """
        self._tokens += tokens
        self._requests += requests
        self._seconds += seconds
        full: Flags = (self._seconds >= DAY_S) & (self._requests >= MIN_REQUESTS)
        full &= self._tokens.sum(axis=1) > 0
        if not full.any():
            return full
        totals = np.where(full, self._tokens.sum(axis=1), 1.0)
        self.shares = np.where(full[:, None], self._tokens / totals[:, None], self.shares)
        x = np.where(full, self.distance / MIX_TOLERANCE - 1.0, 0.0)
        changed = self.detector.feed(x[:, None], full)
        self._tokens = np.where(full[:, None], 0.0, self._tokens)
        self._requests = np.where(full, 0.0, self._requests)
        self._seconds = np.where(full, 0.0, self._seconds)
        return changed

    def state(self) -> dict[str, Any]:
        """Return what it has seen as plain JSON."""
        return {
            "tokens": self._tokens.tolist(),
            "requests": self._requests.tolist(),
            "seconds": self._seconds.tolist(),
            "shares": [
                None if np.isnan(row).any() else [float(share) for share in row]
                for row in self.shares
            ],
            "detector": self.detector.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of as many streams and cells.

        Raises:
            ValueError: It is another's, as with KeyError and TypeError; nothing was taken from it.
        """
        tokens = kept_array(state, "tokens", self._tokens.shape)
        requests = kept_array(state, "requests", self._requests.shape)
        seconds = kept_array(state, "seconds", self._seconds.shape)
        is_known = np.array([row is not None for row in state["shares"]])
        rows = [self._weights.tolist() if row is None else row for row in state["shares"]]
        known = kept_array({"shares": rows}, "shares", self.shares.shape)
        self.detector.restore(state["detector"])
        self._tokens, self._requests, self._seconds = tokens, requests, seconds
        self.shares = np.where(is_known[:, None], known, np.nan)


def _ratio(a: Floats, b: Floats) -> Floats:
    """Return a / b; nan where there is no b."""
    return np.asarray(np.divide(a, b, out=np.full(len(b), np.nan), where=b > 0))


def _threshold(batch_s: float) -> float:
    """Return the mean batches to a false alarm that each direction must keep."""
    return NUM_DIRECTIONS * MONTHS_TO_FALSE_ALARM * MONTH_S / batch_s
