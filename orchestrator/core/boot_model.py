"""The spread between boots: log scores about their arm's mean, with one variance a build.

    y[boot] = mean of its arm + error,  errors independent

One variance for all arms of an engine build assumes that boots of every arm spread by the same
share; it is what lets two boots of each of a few arms decide at all. Another build may choose or
time its kernels otherwise: its boots tell nothing of this one's spread. Nodes are no term of it:
which node a boot meets is left to chance, so that the nodes' differences are part of the spread,
and that keeps the interval right. Taking them out costs degrees of freedom that few boots do not
have (``docs/estimating.md`` has the simulation).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.core.acceptance import Variance
from orchestrator.core.builds import by_build
from orchestrator.core.distributions import t_quantile, t_tail
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
    """A boot that is further from its arm's others than the spread of its build's boots allows."""

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
    spread: Mapping[str, Variance]
    """Variance of one boot's log score about its arm, by engine build; a build without a
    replicated arm is absent."""

    def parts_of(
        self, coefficients: Mapping[Arm, float], *, more: int = 0
    ) -> tuple[Variance, ...] | None:
        """Return the variance of a sum of coefficient * mean, a part for each build.

        Formula: spread * sum of coefficient^2 / boots of the arm, over the arms of the build.

        Args:
            coefficients: By arm; arms whose score is known are left out by the caller.
            more: Boots that each of these arms is thought to have besides; each adds a degree of
                freedom.

        Returns:
            None when the spread of one of the builds is unknown.
        """
        parts: list[Variance] = []
        for build, arms in by_build(coefficients).items():
            spread = self.spread.get(build)
            if spread is None:
                return None
            terms = sum(coefficients[arm] ** 2 / (self.num_boots[arm] + more) for arm in arms)
            degrees = spread.degrees_of_freedom + more * len(arms)
            parts.append(Variance(value=spread.value * terms, degrees_of_freedom=degrees))
        return tuple(parts)


def half_width(parts: Iterable[Variance], confidence: float) -> float:
    """Return the half width of a t interval whose variance is a sum of independent parts.

    The half widths of the parts, each with its own t quantile, add as squares: with two boots their
    variance is too ill known for one common number of degrees of freedom (Zou, Huang and Zhang,
    Stat. Med. 28, 2009: the method of variance estimates recovery).
    """
    level = (1 + confidence) / 2
    widths = [t_quantile(level, p.degrees_of_freedom) * math.sqrt(p.value) for p in parts]
    return math.sqrt(sum(width**2 for width in widths))


def unreplicated(fit: BootFit, arms: Sequence[Arm]) -> str:
    """Return why the spread between these arms' boots is unknown."""
    builds = [build for build in by_build(arms) if build not in fit.spread]
    of_which = f" of vLLM {' and '.join(builds)}" if len({*builds, *fit.spread}) > 1 else ""
    return f"no arm{of_which} has two scored boots, so the spread between boots is unknown"


def fit_boots(scores: Sequence[BootScore], *, fixed: Collection[Arm] = ()) -> BootFit:
    """Return the model of the scores.

    Args:
        scores: One a boot.
        fixed: Arms whose score is known and not measured; they say nothing of the spread.
    """
    by_arm = _by_arm(scores)
    replicated = [arm for arm, values in by_arm.items() if arm not in fixed and len(values) > 1]
    return BootFit(
        means={arm: float(np.mean(values)) for arm, values in by_arm.items()},
        num_boots={arm: len(values) for arm, values in by_arm.items()},
        spread={
            build: _spread([by_arm[arm] for arm in arms])
            for build, arms in by_build(replicated).items()
        },
    )


def _spread(replicated: Sequence[Sequence[float]]) -> Variance:
    degrees = sum(len(values) - 1 for values in replicated)
    squares = sum(_squares(values) for values in replicated)
    return Variance(value=squares / degrees, degrees_of_freedom=degrees)


def find_outliers(scores: Sequence[BootScore]) -> tuple[Outlier, ...]:
    """Return the boots that are far from their arm's others, the least likely first.

    Externally studentised residual, t = e / (s * sqrt(1 - 1 / boots of the arm)) with s from all
    other boots of the build, two-sided, Bonferroni over the boots looked at (Cook and Weisberg,
    Residuals and Influence in Regression, 1982, section 2.2.2). Arms with fewer than three boots
    are not looked at.
    """
    by_arm = _by_arm(scores)
    looked_at = [s for s in scores if len(by_arm[s.arm]) >= _FEWEST_FOR_OUTLIERS]
    totals = {
        build: (sum(len(by_arm[a]) - 1 for a in arms) - 1, sum(_squares(by_arm[a]) for a in arms))
        for build, arms in by_build(by_arm).items()
    }
    found: list[Outlier] = []
    for score in looked_at:
        degrees, squares = totals[score.arm.engine_build]
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
