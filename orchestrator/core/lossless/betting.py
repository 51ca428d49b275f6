"""Betting against "the mean of x is m": wealth that cannot grow unless the null is false.

Every observation x in [0, 1] has the mean m under the null, given everything before it. A bettor
multiplies his wealth by 1 + lambda * (x - m), lambda fixed beforehand in [-1 / (1 - m), 1 / m]: a
factor that is never negative, and 1 on average if the null is true. Wealth is then a martingale
from 1, and so is the mean wealth of any bettors chosen beforehand; by Ville's inequality (1939) the
chance that it ever reaches 1 / alpha is at most alpha. So 1 / (highest wealth so far) is a p-value
at every look (Shafer, JRSS A 184, 2021, 407; Waudby-Smith and Ramdas, JRSS B 86, 2024, 1).

Two forms of bets, in both directions, each over a geometric grid of sizes:

- share: lambda = f / m or -f / (1 - m). The factor is the likelihood ratio of "a share f of the
  events is replaced by this one" or "a share f of these events is replaced by others".
- tilt: the factor (1 + k x) / (1 + k m), which is lambda = k / (1 + k m). For x in {0, 1} it is the
  likelihood ratio of odds multiplied by 1 + k, as another temperature makes them.

The null may be wider than a point: the mean lies between a lower and an upper limit around m, by
rounding (SLACK) and by a numeric floor. A bet upwards is then against the upper limit and a bet
downwards against the lower one; the mean of its factor is at most 1 for every mean within.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from orchestrator.core.lossless.observations import SLACK, Floats

Direction = Literal["more", "fewer"]
"""Of the events than the null says."""

SHARES: Floats = np.exp2(-np.arange(1.0, 13.0))
"""From a half to 0.02 %. Between neighbours a bet is off by sqrt(2) at most, which costs 9 to 17 %
of its growth; 10^6 tokens show a share of 0.05 % in a bucket of 1 % of the mass."""

TILTS: Floats = np.exp2(np.arange(3.0, -9.0, -1.0))
"""Log of the factor on the odds, 8 to 1/256; the large ones are for events that are next to
impossible under the null."""

ODDS: Floats = np.expm1(TILTS)[:, None]
"""k of the tilts, [num, 1]."""

NUM_BETS = 2 * (len(SHARES) + len(TILTS))

BLOCK = 16
"""Wealth is looked at after every so many observations, and where the stream stands. One logarithm
a block instead of one an observation; a block's factors stay within e^-128 and 10^92."""

CHUNK = 2048 * BLOCK
"""Observations at a time; a table of factors [12, CHUNK / BLOCK] then fits a cache."""


class BettingProcess:
    """Wealth of all bettors on one kind of observation, fed in pieces of any size."""

    def __init__(self, *, floor: float = 0.0) -> None:
        """Start every bettor with the same wealth, 1 altogether.

        Args:
            floor: By how much numerics may move the log odds of an event, 0 or more.
        """
        self._floor = floor
        self._log_wealths = np.zeros(NUM_BETS)
        self._log_peak = 0.0
        self._rest: tuple[Floats, Floats] = (np.empty(0), np.empty(0))

    @property
    def log_peak(self) -> float:
        """Log of the highest wealth so far, now included; 0 or more."""
        return max(self._log_peak, self.log_wealth)

    @property
    def log_wealth(self) -> float:
        """Log of the wealth now."""
        x, m = self._rest
        now = self._log_wealths + log_factors(x, m, floor=self._floor).sum(axis=1)
        return float(_log_mean(now[:, None])[0])

    def update(self, x: Floats, m: Floats) -> None:
        """Bet on more observations; how they are divided changes nothing.

        Args:
            x: [num], 0 to 1.
            m: [num], 0 to 1.
        """
        x, m = np.concatenate([self._rest[0], x]), np.concatenate([self._rest[1], m])
        whole = len(x) - len(x) % BLOCK
        for start in range(0, whole, CHUNK):
            end = min(start + CHUNK, whole)
            self._advance(x[start:end], m[start:end])
        self._rest = (x[whole:], m[whole:])

    def _advance(self, x: Floats, m: Floats) -> None:
        low, high = null_limits(m, floor=self._floor)
        # Fewer of an event are more of its opposite: the same bets on 1 - x against 1 - m.
        paths = np.concatenate([_log_blocks(x, high), _log_blocks(1 - x, 1 - low)])
        paths[:, 0] += self._log_wealths
        np.cumsum(paths, axis=1, out=paths)
        self._log_wealths = paths[:, -1].copy()
        # The mean lies between the highest divided by the bettors' number and the highest itself:
        # few moments can be the peak, and exp is needed for those alone.
        highest = paths.max(axis=0)
        bound = max(self._log_peak, float(highest.max()) - math.log(NUM_BETS))
        if (moments := np.flatnonzero(highest > bound)).size:
            self._log_peak = max(self._log_peak, float(_log_mean(paths[:, moments]).max()))


def log_factors(x: Floats, m: Floats, *, floor: float = 0.0) -> Floats:
    """Return the log of what each bettor's wealth is multiplied by, [NUM_BETS, num].

    The first half of the rows bets on more than m, the second on fewer; in each half shares come
    first, then tilts.
    """
    low, high = null_limits(m, floor=floor)
    return np.asarray(np.log(np.concatenate([_factors(x, high), _factors(1 - x, 1 - low)])))


def null_limits(m: Floats, *, floor: float) -> tuple[Floats, Floats]:
    """Return the smallest and the largest mean that the null allows, each [num] and within 0 to 1.

    Args:
        m: [num], 0 to 1.
        floor: Log odds of m may be off by this much.
    """
    low, high = (m, m) if floor == 0 else (tilted(m, -floor), tilted(m, floor))
    return np.maximum(low - SLACK, 0.0), np.minimum(high + SLACK, 1.0)


def tilted(m: Floats, log_odds: float) -> Floats:
    """Return probabilities m with log odds larger by ``log_odds``."""
    growth = math.expm1(log_odds)
    return m * (1 + growth) / (1 + growth * m)


def _factors(x: Floats, m: Floats) -> Floats:
    return np.concatenate([1 + SHARES[:, None] * (x / m - 1), (1 + ODDS * x) / (1 + ODDS * m)])


def _log_blocks(x: Floats, m: Floats) -> Floats:
    """Return the log factors of one direction summed over blocks, [NUM_BETS / 2, num / BLOCK]."""
    over, under = _product(SHARES[:, None], x / m - 1), _product(ODDS, m)
    return np.concatenate([np.log(over), np.log(_product(ODDS, x)) - np.log(under)])


def _product(stake: Floats, gain: Floats) -> Floats:
    """Return the products of 1 + stake * gain over blocks, [num stakes, num gains / BLOCK]."""
    columns = np.ascontiguousarray(gain.reshape(-1, BLOCK).T)
    product: Floats = stake * columns[0] + 1
    factor = np.empty_like(product)
    for column in columns[1:]:
        np.multiply(stake, column, out=factor)
        factor += 1
        product *= factor
    return product


def _log_mean(log_wealths: Floats) -> Floats:
    top = log_wealths.max(axis=0)
    return np.asarray(top + np.log(np.exp(log_wealths - top).mean(axis=0)))
