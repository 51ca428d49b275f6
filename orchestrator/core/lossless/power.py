"""What a lossless test would have seen, and how many tokens it needs to see more.

For one kind and one direction, let the mean of every x differ from its m by delta. The log wealth
of a bettor whose factor is A if the event happens and B if not has

    mean     = sum (m + delta) log A + (1 - m - delta) log B
    variance = sum (m + delta) (1 - m - delta) (log A - log B)^2

and is close to normal over many observations. Bettors of one direction are rich on the same days,
so the quantile of their mean wealth is the mean of their quantiles. The displacement is seen if the
wealth, where it is exceeded with the wanted power, is beyond the threshold. Higher wealth before
the end is not counted on: the power is a little better than said.

How a displacement of one size is spread over the tokens matters. The worst way puts delta where the
noise is, delta proportional to m (1 - m): of all ways with the same sum it has the smallest
sum delta^2 / (m (1 - m)), by the inequality of Cauchy and Schwarz. Odds that are multiplied by one
factor everywhere have this form, and so it is the one that is assumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from statistics import NormalDist
from typing import TypeAlias

import numpy as np

from orchestrator.core.lossless.betting import NUM_BETS, Direction, log_factors, tilted
from orchestrator.core.lossless.observations import FAMILIES, Floats

MAX_LOG_ODDS = 30.0
"""Where a displacement ends that leaves nothing to displace: odds multiplied by 10^13."""

MAX_SCALE = 1e9
"""Times the tokens at hand beyond which more tokens are not spoken of."""

PRECISION = 1e-3
"""Relative, of sizes found by halving an interval."""


_Pair: TypeAlias = tuple[tuple[float, float], tuple[float, float], float]


class KindPower:
    """How well one kind of observation sees that its events happen more, or less, often."""

    def __init__(self, m: Floats, *, num: int, log_threshold: float, power: float, floor: float):
        """Take what does not depend on the displacement.

        Args:
            m: [num_sample], means of a sample of the observations; at least one.
            num: Observations altogether.
            log_threshold: Log of the wealth at which the kind rejects.
            power: How often a displacement is to be seen, 0 to 1.
            floor: Numeric floor of the test, in log odds.
        """
        self._m = m
        self._num = num
        self._log_threshold = log_threshold
        self._z = NormalDist().inv_cdf(power)
        hit, miss = (
            log_factors(np.full_like(m, x), m, floor=floor).reshape(2, NUM_BETS // 2, -1)
            for x in (1.0, 0.0)
        )
        self._gain = {"more": hit[0] - miss[0], "fewer": hit[1] - miss[1]}
        self._square = {name: gain**2 for name, gain in self._gain.items()}
        self._cost = {"more": miss[0].mean(axis=1), "fewer": miss[1].mean(axis=1)}

    def capacity(self, direction: Direction) -> float:
        """Return the share of the events that can be displaced in this direction, 0 to 1."""
        return float(np.mean(1 - self._m if direction == "more" else self._m))

    def smallest(self, direction: Direction) -> float:
        """Return the smallest displacement that is seen, a share of the events.

        Returns:
            Above 0; inf when none would be, up to displacing everything.
        """
        if not self._sees(direction, MAX_LOG_ODDS, 1.0):
            return math.inf
        log_odds = _smallest(lambda size: self._sees(direction, size, 1.0), MAX_LOG_ODDS)
        return self._shift(direction, log_odds)

    def scale_needed(self, direction: Direction, displacement: float) -> float:
        """Return how many times the observations at hand would see a displacement.

        Args:
            direction: More or fewer events than the null says.
            displacement: Share of the events, above 0.

        Returns:
            Above 0, below 1 if fewer would do; inf when no number would: the bet cannot grow,
            or there is not so much to displace.
        """
        if displacement >= self.capacity(direction):
            return math.inf
        log_odds = _smallest(
            lambda size: self._shift(direction, size) >= displacement, MAX_LOG_ODDS
        )
        if not self._sees(direction, log_odds, MAX_SCALE):
            return math.inf
        return _smallest(lambda scale: self._sees(direction, log_odds, scale), MAX_SCALE)

    def _shift(self, direction: Direction, log_odds: float) -> float:
        return float(abs(np.mean(self._shifted(direction, log_odds) - self._m)))

    def _shifted(self, direction: Direction, log_odds: float) -> Floats:
        return tilted(self._m, log_odds if direction == "more" else -log_odds)

    def _sees(self, direction: Direction, log_odds: float, scale: float) -> bool:
        truth = self._shifted(direction, log_odds)
        num = scale * self._num
        mean = num * (self._cost[direction] + self._gain[direction] @ truth / len(truth))
        variance = num * (self._square[direction] @ (truth * (1 - truth))) / len(truth)
        low = mean - self._z * np.sqrt(variance)
        top = float(low.max())
        log_wealth = top + math.log(float(np.exp(low - top).sum()) / NUM_BETS)
        return log_wealth >= self._log_threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyPower:
    """Kinds that divide the same events among them; what none of them counts is one more."""

    name: str
    num: int
    """Events."""
    kinds: Mapping[str, KindPower]

    def unseen(self) -> float:
        """Return the largest displacement between two of its kinds that might not be seen.

        A share of the events. Of every pair, the kind that loses and the kind that gains are looked
        at, and the sharper of the two counts; no more can be displaced than the pair has room for.
        """
        sizes = [(kind.smallest("fewer"), kind.smallest("more")) for kind in self.kinds.values()]
        return max(min(loser[0], gainer[1], room) for loser, gainer, room in self._pairs(sizes))

    def scale_needed(self, displacement: float) -> float:
        """Return how many times the events would see a displacement between any two of its kinds.

        Args:
            displacement: Share of the events, above 0.

        Returns:
            0 when no pair has room for so much; inf when no number of events would see it.
        """
        scales = [
            (kind.scale_needed("fewer", displacement), kind.scale_needed("more", displacement))
            for kind in self.kinds.values()
        ]
        needed = (
            min(loser[0], gainer[1])
            for loser, gainer, room in self._pairs(scales)
            if displacement < room
        )
        return max(needed, default=0.0)

    def _pairs(self, found: Sequence[tuple[float, float]]) -> Iterator[_Pair]:
        """Yield (what was found of the loser, of the gainer, room) of all pairs of kinds.

        Events that none of the kinds counts are one kind more, of which nothing is known.
        """
        room = [(kind.capacity("fewer"), kind.capacity("more")) for kind in self.kinds.values()]
        counted = min(1.0, sum(held for held, _ in room))
        sides = [*zip(found, room, strict=True), ((math.inf, math.inf), (1 - counted, counted))]
        for (loser, held), (gainer, free) in permutations(sides, 2):
            yield loser, gainer, min(held[0], free[1])


def smallest_seen(families: Sequence[FamilyPower], *, num_tokens: int) -> float | None:
    """Return the smallest displacement that is seen wherever it happens, a share of the tokens.

    Args:
        families: Those with events.
        num_tokens: Tokens that the test covers, at least 1.

    Returns:
        None when there are no families.
    """
    sizes = (family.unseen() * family.num / num_tokens for family in families)
    return max(sizes, default=None)


def tokens_needed(
    families: Sequence[FamilyPower], *, displacement: float, num_tokens: int
) -> int | None:
    """Return how many tokens would see a displacement wherever it happens.

    Args:
        families: Those with events; more tokens are taken to bring more of the same.
        displacement: Share of the tokens, above 0.
        num_tokens: Tokens that the test covers, at least 1.

    Returns:
        None when no number would, or when there are no families.
    """
    scale = max(
        (family.scale_needed(displacement * num_tokens / family.num) for family in families),
        default=math.inf,
    )
    return None if math.isinf(scale) else math.ceil(scale * num_tokens)


def family_of(kind: str) -> str | None:
    """Return the family that a kind belongs to, or None for what is no part of any."""
    return next((name for name, kinds in FAMILIES.items() if kind in kinds), None)


def _smallest(holds: Callable[[float], bool], top: float) -> float:
    """Return the smallest size at which a condition holds that holds at ``top``, by halving."""
    low, high = top * 1e-12, top
    while high > low * (1 + PRECISION):
        middle = math.sqrt(low * high)
        if holds(middle):
            high = middle
        else:
            low = middle
    return high
