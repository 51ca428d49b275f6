"""The spread between boots: log scores about their arm's mean, with one variance for all arms.

    y[boot] = mean of its arm + error,  errors independent

One variance for all arms assumes that boots of every arm spread by the same share; it is what lets
two boots of each of a few arms decide at all. Nodes are no term of it: which node a boot meets is
left to chance, so that the nodes' differences are part of the spread, and that keeps the interval
right. Taking them out costs degrees of freedom that few boots do not have (``docs/estimating.md``
has the simulation).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.core.distributions import t_tail
from orchestrator.core.types import Arm

OUTLIER_LEVEL = 0.1
"""Chance that any boot of a study is flagged though all are alike. Generous: a flag drops nothing,
it asks for a fresh boot."""
_FEWEST_FOR_OUTLIERS = 3
"""Of two boots that differ nobody can say which is the odd one."""
_SAME = 1e-12
"""Log scores this near to each other are equal but for rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BootScore:
    """One boot's log score."""

    arm: Arm
    boot: str
    """Its trial id."""
    log_score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlier:
    """A boot that is further from its arm's others than the spread of all arms' boots allows."""

    arm: Arm
    boot: str
    score: float
    others: float
    """Geometric mean of the arm's other scores."""
    p_value: float
    """Chance of one as far among so many boots, if all were alike."""
    num_boots: int
    """Boots that were looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BootFit:
    """The fitted model."""

    means: Mapping[Arm, float]
    """Mean log score by arm."""
    num_boots: Mapping[Arm, int]
    variance: float | None
    """Of one boot's log score about its arm; None when no arm is replicated."""
    degrees_of_freedom: int

    def variance_of(self, arms: Collection[Arm]) -> float | None:
        """Return the variance of a sum or difference of these arms' means; None if unknown."""
        if self.variance is None:
            return None
        return self.variance * sum(1 / self.num_boots[arm] for arm in arms)


def fit_boots(scores: Sequence[BootScore], *, fixed: Collection[Arm] = ()) -> BootFit:
    """Return the model of the scores.

    Args:
        scores: One a boot.
        fixed: Arms whose score is known and not measured; they say nothing of the spread.
    """
    by_arm = _by_arm(scores)
    replicated = [v for arm, v in by_arm.items() if arm not in fixed and len(v) > 1]
    degrees = sum(len(values) - 1 for values in replicated)
    squares = sum(_squares(values) for values in replicated)
    return BootFit(
        means={arm: float(np.mean(values)) for arm, values in by_arm.items()},
        num_boots={arm: len(values) for arm, values in by_arm.items()},
        variance=squares / degrees if degrees else None,
        degrees_of_freedom=degrees,
    )


def find_outliers(scores: Sequence[BootScore]) -> tuple[Outlier, ...]:
    """Return the boots that are far from their arm's others, the least likely first.

    Externally studentised residual, t = e / (s * sqrt(1 - 1 / boots of the arm)) with s from all
    other boots, two-sided, Bonferroni over the boots looked at (Cook and Weisberg, Residuals and
    Influence in Regression, 1982, section 2.2.2). Arms with fewer than three boots are not looked
    at.
    """
    by_arm = _by_arm(scores)
    looked_at = [s for s in scores if len(by_arm[s.arm]) >= _FEWEST_FOR_OUTLIERS]
    degrees = sum(len(values) - 1 for values in by_arm.values()) - 1
    squares = sum(_squares(values) for values in by_arm.values())
    found: list[Outlier] = []
    for score in looked_at:
        count = len(by_arm[score.arm])
        error = score.log_score - float(np.mean(by_arm[score.arm]))
        free = 1 - 1 / count
        rest = max(0.0, squares - error**2 / free)
        scale = max(math.sqrt(rest / degrees * free), _SAME)
        p_value = min(1.0, len(looked_at) * 2 * t_tail(abs(error) / scale, degrees))
        if p_value < OUTLIER_LEVEL and abs(error) > _SAME:
            found.append(
                Outlier(
                    arm=score.arm,
                    boot=score.boot,
                    score=math.exp(score.log_score),
                    others=math.exp(score.log_score - error / free),
                    p_value=p_value,
                    num_boots=len(looked_at),
                )
            )
    return tuple(sorted(found, key=lambda item: item.p_value))


def _by_arm(scores: Sequence[BootScore]) -> dict[Arm, list[float]]:
    by_arm: dict[Arm, list[float]] = {}
    for score in scores:
        by_arm.setdefault(score.arm, []).append(score.log_score)
    return by_arm


def _squares(values: Sequence[float]) -> float:
    """Return the sum of squared deviations; 0 where they are rounding only."""
    if max(values) - min(values) <= _SAME:
        return 0.0
    return float(np.sum((np.array(values) - np.mean(values)) ** 2))
