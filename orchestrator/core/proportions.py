"""Two shares of hits compared: worse, not worse within a margin, or cannot tell.

The interval of one share is Wilson's score interval (JASA 22, 1927, 209), that of the difference of
two independent shares is Newcombe's hybrid of two of them (Statistics in Medicine 17, 1998, 873,
method 10). Both stay honest near 0 and 1 and with few items. Where the same items were asked of
both sides the interval is wider than it need be, since their luck with an item is in common.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

ProportionAnswer = Literal["worse", "not_worse", "cannot_tell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProportionContrast:
    """Share of hits of a minus that of b, with its interval; more hits are better."""

    a_hits: int
    a_total: int
    b_hits: int
    b_total: int
    confidence: float
    """Of the two-sided interval, 0 to 1."""
    difference: float | None
    """-1 to 1; None when a side has no items, as are both ends."""
    low: float | None
    high: float | None

    @property
    def differs(self) -> bool:
        """Whether the interval excludes no difference."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    def answer(self, margin: float) -> ProportionAnswer:
        """Return whether a is worse than b.

        ``not_worse``: the interval excludes a loss of more than ``margin``, a share of the items
        from 0 to 1. ``worse``: it does not, and it excludes no difference. A loss that is certain
        and certainly smaller than the margin is ``not_worse``: that is what the margin is for.
        """
        if self.low is None or self.high is None:
            return "cannot_tell"
        if self.low >= -margin:
            return "not_worse"
        return "worse" if self.high < 0 else "cannot_tell"

    def items_needed(self, margin: float, *, power: float = 0.8) -> int | None:
        """Return how many items each side needs to be found not worse when it is not.

        By the normal approximation, at the two sides' common share of hits.

        Args:
            margin: Loss that is to be excluded, above 0.
            power: How often the answer is to be ``not_worse`` when both shares are equal, 0 to 1.

        Returns:
            Items of each side, or None when nothing was asked and no share is known.
        """
        total = self.a_total + self.b_total
        if total == 0:
            return None
        z = _normal_quantile(0.5 + self.confidence / 2)
        # The centre of Wilson's interval: a share of 0 or 1 has a spread all the same.
        share = (self.a_hits + self.b_hits + z * z / 2) / (total + z * z)
        spread = 2 * share * (1 - share)
        return math.ceil(spread * ((z + _normal_quantile(power)) / margin) ** 2)

    def sentence(self, margin: float) -> str:
        """Return the comparison, its interval and the answer."""
        if self.difference is None or self.low is None or self.high is None:
            return "Cannot tell: a side has no items."
        shares = (
            f"{self.a_hits / self.a_total:.1%} of {self.a_total:,} against "
            f"{self.b_hits / self.b_total:.1%} of {self.b_total:,}, {self.low * 100:+.1f} to "
            f"{self.high * 100:+.1f} points"
        )
        answer = self.answer(margin)
        if answer == "worse":
            return f"Worse: {shares}."
        if answer == "not_worse":
            return f"Not worse within {margin * 100:g} points: {shares}."
        return (
            f"Cannot tell, no difference is shown: {shares}; a loss of {margin * 100:g} points "
            f"would be excluded by about {self.items_needed(margin):,} items of each."
        )


def wilson_interval(hits: int, total: int, *, confidence: float) -> tuple[float, float] | None:
    """Return the score interval of one share of hits, or None when there are no items.

    Args:
        hits: 0 to ``total``.
        total: Items.
        confidence: Two-sided, 0 to 1.
    """
    if not 0 <= hits <= total:
        raise ValueError(f"{hits} hits of {total} items")
    if total == 0:
        return None
    z = _normal_quantile(0.5 + confidence / 2)
    share = hits / total
    centre = share + z * z / (2 * total)
    half = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    # Its ends at no hits and at hits only are 0 and 1 exactly; rounding must not say otherwise.
    low = 0.0 if hits == 0 else (centre - half) / scale
    high = 1.0 if hits == total else (centre + half) / scale
    return low, high


def compare_proportions(
    a_hits: int, a_total: int, b_hits: int, b_total: int, confidence: float = 0.95
) -> ProportionContrast:
    """Return the difference of two shares of hits, a minus b, with its interval.

    Args:
        a_hits: Hits of the side that is judged, 0 to ``a_total``.
        a_total: Items that it was asked; 0 makes the answer ``cannot_tell``.
        b_hits: Hits of the side that it is compared with.
        b_total: Items that that side was asked.
        confidence: Of the two-sided interval, above 0 and below 1.

    Raises:
        ValueError: More hits than items, fewer than none, or no such confidence.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence} is not between 0 and 1")
    ours = wilson_interval(a_hits, a_total, confidence=confidence)
    theirs = wilson_interval(b_hits, b_total, confidence=confidence)
    difference = low = high = None
    if ours is not None and theirs is not None:
        a, b = a_hits / a_total, b_hits / b_total
        difference = a - b
        low = difference - math.hypot(a - ours[0], theirs[1] - b)
        high = difference + math.hypot(ours[1] - a, b - theirs[0])
    return ProportionContrast(
        a_hits=a_hits,
        a_total=a_total,
        b_hits=b_hits,
        b_total=b_total,
        confidence=confidence,
        difference=difference,
        low=low,
        high=high,
    )


def _normal_quantile(probability: float) -> float:
    return NormalDist().inv_cdf(probability)
