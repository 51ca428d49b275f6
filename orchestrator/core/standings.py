"""Who leads a race, how far behind the others are, and how surely.

Scores are compared by their logs: boot = arm + error, errors normal with one spread for all arms,
estimated from the arms that have several boots. Boards are not modelled apart: with two boots more
than arms there would be nothing left to estimate the spread from, so what differs between boards is
part of the spread, here as in the verdict (``boot_model``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from scipy import special

from orchestrator.core.distributions import t_quantile
from orchestrator.core.types import Arm

BASEL = 6 / math.pi**2
"""1 / sum of 1 / n^2 over n = 1, 2, ...: what makes weights of 1 / n^2 add up to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """An arm that does not lead."""

    arm: Arm
    gap: float
    """log(its score / the leader's), at least 0."""
    weight: float
    """sqrt(1 / boots of it + 1 / boots of the leader); an arm with a known score adds 0."""
    num_boots: tuple[int, int]
    """Of it and of the leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standings:
    """The state of the race."""

    leader: Arm
    rivals: tuple[Rival, ...]
    """All others with a score, the nearest first."""
    spread: float | None
    """Standard deviation of one boot's log score; None when no arm has two."""
    means: Mapping[Arm, float]
    """Mean log score of the leader and its rivals."""
    degrees: int
    """Of freedom behind ``spread``: boots beyond the first of each arm."""

    def expected_loss(self, rival: Rival) -> float | None:
        """Return what taking the leader is expected to cost against one rival, as a log ratio.

        Formula: E max(0, true lead of the rival), with the true gap distributed as t about the
        estimate, which is a Bayesian's view under flat priors: s * ((v + z^2) / (v - 1) * f(z) -
        z * (1 - F(z))), s = spread * weight, z = gap / s, f and F of t with v degrees (Chick and
        Inoue, Operations Research 49, 2001, 732). It is no bound, and looking often costs nothing.

        Returns:
            At least 0; None below two degrees of freedom, where it is not finite or not known.
        """
        if self.spread is None or self.degrees < 2:
            return None
        scale = self.spread * rival.weight
        if scale == 0:
            return 0.0
        v, z = self.degrees, rival.gap / scale
        log_norm = special.gammaln((v + 1) / 2) - special.gammaln(v / 2)
        density = math.exp(log_norm - (v + 1) / 2 * math.log1p(z * z / v))
        density /= math.sqrt(v * math.pi)
        return float(scale * ((v + z * z) / (v - 1) * density - z * special.stdtr(v, -z)))

    def is_beaten(self, rival: Rival, *, margin: float, error: float) -> bool:
        """Whether a rival is shown to lead the leader by less than a margin, at any look.

        gap + margin > spread * weight * t, the quantile t of level error / (number of arms) * w(n)
        * w(m), w(n) = 6 / (pi n)^2, n and m the boots of the two. The levels of all pairs of counts
        add up to ``error`` and the mean of an arm's first n boots does not depend on who gets the
        next one, so looking after every boot and choosing what to boot by what was seen is allowed:
        with probability 1 - error the best arm is never more than the margin better than a leader
        by whom it is beaten (a union bound, as in Even-Dar, Mannor and Mansour, JMLR 7, 2006,
        1079). The spread is an estimate, pooled over arms, and t instead of normal quantiles allow
        for that.

        Args:
            rival: One of ``rivals``.
            margin: Lead that would not matter, as a log ratio; 0 asks who is faster at all.
            error: Chance that any arm is wrongly beaten, 0 to 1.
        """
        if self.spread is None:
            return False
        level = error / (len(self.rivals) + 1)
        for count in rival.num_boots:
            level *= BASEL / max(1, count) ** 2
        quantile = t_quantile(1 - level, self.degrees)
        return rival.gap + margin > self.spread * rival.weight * quantile

    def is_told_apart(self, rival: Rival, *, error: float) -> bool:
        """Whether a rival is shown slower than the leader by what is known now.

        A t test with the chances of all arms adding up to ``error`` (Bonferroni); for this look
        only, so it names an end and does not bring it about.
        """
        if self.spread is None:
            return False
        quantile = t_quantile(1 - error / (len(self.rivals) + 1), self.degrees)
        return rival.gap > self.spread * rival.weight * quantile

    def chance_to_show(self, arm: Arm, other: Arm, num_boots: Sequence[int]) -> float:
        """Return how likely new boots show an arm faster, if it is by as much as it seems.

        Formula: F(lead / se - t), se = spread * sqrt(sum of 1 / boots), F of the normal law, t the
        97.5 % quantile of Student's t: the power of a 95 % interval that excludes no difference.

        Args:
            arm: The one that seems faster.
            other: The one that it is compared with.
            num_boots: Boots of each of the two whose score is measured.

        Returns:
            0 to 1; 0 where the spread is not known.
        """
        lead = self.means[other] - self.means[arm]
        if self.spread is None or lead <= 0:
            return 0.0
        error = self.spread * math.sqrt(sum(1 / count for count in num_boots))
        if error == 0:
            return 1.0
        return float(special.ndtr(lead / error - t_quantile(0.975, self.degrees)))


def standings(
    scores: Mapping[Arm, Sequence[float]], *, known: Collection[Arm] = ()
) -> Standings | None:
    """Return the standings of the arms with scores; None without any.

    Args:
        scores: Seconds by boot, by arm; the arms of equal means stand in this order.
        known: Arms whose score a model states: exact, and no part of the spread.
    """
    logs = {arm: [math.log(value) for value in values] for arm, values in scores.items() if values}
    if not logs:
        return None
    means = {arm: sum(values) / len(values) for arm, values in logs.items()}
    order = sorted(means, key=lambda arm: means[arm])
    measured = [arm for arm in order if arm not in known]
    degrees = sum(len(logs[arm]) - 1 for arm in measured)
    squares = sum((value - means[arm]) ** 2 for arm in measured for value in logs[arm])
    leader = order[0]

    def share(arm: Arm) -> float:
        return 0.0 if arm in known else 1 / len(logs[arm])

    return Standings(
        leader=leader,
        rivals=tuple(
            Rival(
                arm=arm,
                gap=means[arm] - means[leader],
                weight=math.sqrt(share(arm) + share(leader)),
                num_boots=(len(logs[arm]), len(logs[leader])),
            )
            for arm in order[1:]
        ),
        spread=math.sqrt(squares / degrees) if degrees else None,
        means=means,
        degrees=degrees,
    )
