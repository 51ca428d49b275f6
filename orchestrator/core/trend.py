"""Whether a series drifts: a rank test of its values against their order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.core.distributions import t_tail

FEWEST = 4
"""Values below which no order is unlikely: of three even the most orderly has p = 1/6."""
NO_TREND = 1e-12
MOST_EXACT = 8
"""Values up to which all orders are gone through; 8! is 40320."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A series against its order."""

    rho: float
    """Spearman's rank correlation, -1 to 1; above 0 the values rise."""
    p_value: float
    """One-sided, in the direction of ``rho``: chance of one as large by the order alone."""
    is_exact: bool
    """Whether all orders were gone through; else by Student's t."""


def rank_trend(values: Sequence[float]) -> Trend | None:
    """Return the test of a drift; None for too few values or values that are all equal.

    Spearman's rho of values and positions, mean ranks for ties; exact over all orders up to
    MOST_EXACT values, beyond by t = rho * sqrt((n - 2) / (1 - rho^2)) with n - 2 degrees of freedom
    (Kendall and Gibbons, Rank Correlation Methods, 5th ed., chapters 1 and 4).
    """
    count = len(values)
    if count < FEWEST or len(set(values)) == 1:
        return None
    # Equal values share the mean of their ranks.
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    order = np.arange(1.0, count + 1)
    rho = _rho(ranks, order)
    if count <= MOST_EXACT:
        orders = np.array(list(itertools.permutations(order)))
        centred = ranks - ranks.mean()
        sums = (orders - order.mean()) @ centred
        seen = float((order - order.mean()) @ centred)
        # Sums of ranks are multiples of a quarter; 1e-9 is rounding.
        as_large = sums >= seen - 1e-9 if rho >= 0 else sums <= seen + 1e-9
        return Trend(rho=rho, p_value=float(np.mean(as_large)), is_exact=True)
    t = abs(rho) * math.sqrt((count - 2) / max(1e-12, 1 - rho**2))
    return Trend(rho=rho, p_value=t_tail(t, count - 2), is_exact=False)


def _rho(ranks: np.ndarray, order: np.ndarray) -> float:
    rho = float(np.corrcoef(ranks, order)[0, 1])
    # Rounding would give a series without a trend a direction.
    return 0.0 if abs(rho) < NO_TREND else rho
