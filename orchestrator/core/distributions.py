"""Quantiles and tails of the distributions that intervals are made of.

From ``scipy.special``: ``scipy.stats`` has the same and takes a second to import, which every
command would pay for.
"""

from __future__ import annotations

from scipy import special

MAX_CONFIDENCE = 0.9999
"""Largest coverage of an interval that may be asked for: near 1 a float holds no quantile of it."""


def t_quantile(probability: float, degrees: float) -> float:
    """Return the value that Student's t with these degrees of freedom stays below, 0 to 1."""
    return float(special.stdtrit(degrees, probability))


def t_tail(value: float, degrees: float) -> float:
    """Return the probability that Student's t exceeds the value."""
    return float(special.stdtr(degrees, -value))


def f_tail(value: float, between: int, within: int) -> float:
    """Return the probability that F with these degrees of freedom exceeds the value."""
    return float(special.fdtrc(between, within, value))
