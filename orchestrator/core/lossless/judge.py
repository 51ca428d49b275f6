"""The verdict of a lossless test: rejected, passed, or cannot tell, each with its evidence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from orchestrator.core.lossless.betting import BettingProcess, Direction
from orchestrator.core.lossless.observations import (
    FAMILIES,
    LEAST_LOG,
    LOG_PROBABILITY,
    Floats,
    Observations,
    kind_weights,
)
from orchestrator.core.lossless.power import (
    FamilyPower,
    KindPower,
    smallest_seen,
    tokens_needed,
)
from orchestrator.errors import ConfigError

__all__ = ["LosslessResult", "LosslessSettings", "LosslessTest", "Observations", "judge"]

MAX_SAMPLE = 4096
"""Means of a kind that are kept to compute what would have been seen: every second, fourth, ...
of all once there are more. What is computed from 2,048 of them or more is known to 1 or 2 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LosslessSettings:
    """How often a lossless arm may be rejected, and what a pass must exclude."""

    alpha: float = 0.001
    """Chance of rejecting a lossless arm, however often one looks, 0 to 1."""
    power: float = 0.95
    """How often the displacement that a pass excludes would have been rejected, 0 to 1."""
    displacement: float = 0.01
    """Largest share of displaced tokens that a pass may leave unseen, 0 to 1."""
    floor: float = 0.0
    """By how much numerics may move the log odds of an event; from the control, 0 or more."""

    def __post_init__(self) -> None:
        for name in ("alpha", "power", "displacement"):
            value = getattr(self, name)
            if not 0 < value < 1:
                raise ConfigError(
                    f"lossless.{name}", f"{value} is not between 0 and 1", "give a share"
                )
        if not 0 <= self.floor < math.inf:
            raise ConfigError(
                "lossless.floor", f"{self.floor} is no size of log odds", "give 0 or more"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LosslessResult:
    """What a test of an arm found."""

    kind: Literal["passed", "rejected", "cannot_tell"]
    p_value: float
    """1 / (highest wealth of the bets), 0 to 1; valid at whatever moment one looks."""
    num_tokens: int
    num_observations: Mapping[str, int]
    """By kind."""
    displacement: float | None
    """Estimated share of the tokens that were displaced, 0 to 1: of all families of kinds the
    largest total variation over its kinds, so a lower bound. None without observations."""
    chance: float | None
    """What chance alone shows of it on average in a lossless arm, 0 to 1."""
    seen: float | None
    """Smallest displacement that would have been rejected with the wanted power, 0 to 1."""
    more_tokens: int | None
    """Until ``displacement`` of the settings would be seen; None unless the answer is
    ``cannot_tell``, and where no number of tokens would do."""
    where: str
    """The kind with the strongest evidence, its direction and its counts."""
    sentence: str


class _Kind:
    """One kind's bets and what else is kept of its observations."""

    def __init__(self, *, floor: float) -> None:
        self.bets = BettingProcess(floor=floor)
        self.num = 0
        self.happened = 0.0
        self.expected = 0.0
        self.variance = 0.0
        self._stride = 1
        self._sample: list[Floats] = []

    def update(self, found: Observations) -> None:
        self.bets.update(found.x, found.m)
        first = -self.num % self._stride
        self._sample.append(found.m[first :: self._stride])
        self.num += len(found)
        self.happened += float(found.x.sum())
        self.expected += float(found.m.sum())
        self.variance += float((found.m * (1 - found.m)).sum())
        while sum(map(len, self._sample)) > MAX_SAMPLE:
            self._sample = [np.concatenate(self._sample)[::2]]
            self._stride *= 2

    @property
    def sample(self) -> Floats:
        """Means of every ``stride``-th observation, counted from the first of all."""
        return np.concatenate(self._sample)

    @property
    def excess(self) -> float:
        """Events beyond the expected ones; below 0 when there were fewer."""
        return self.happened - self.expected


class LosslessTest:
    """A test that is fed as observations arrive and may be looked at after any of them."""

    def __init__(self, settings: LosslessSettings | None = None) -> None:
        """Begin without observations."""
        self.settings = settings or LosslessSettings()
        self._kinds: dict[str, _Kind] = {}

    def update(self, observations: Mapping[str, Observations]) -> None:
        """Take more observations; how they are divided over calls changes nothing.

        Args:
            observations: By kind, later than all that the test has of this kind.

        Raises:
            ValueError: A kind is unknown.
        """
        kind_weights(observations)
        for name, found in observations.items():
            if len(found):
                kind = self._kinds.setdefault(name, _Kind(floor=self.settings.floor))
                kind.update(found)

    @property
    def p_value(self) -> float:
        """1 / (highest wealth so far), 0 to 1; 1 without observations.

        Every kind bets its share of the wealth. Its peak counts, and not the peak of the sum, which
        is no smaller: the order of events of different kinds is not known here.
        """
        return min(1.0, math.exp(-max(self._log_evidence().values(), default=0.0)))

    def result(self, num_tokens: int) -> LosslessResult:
        """Return the verdict now.

        Args:
            num_tokens: Tokens that the test covers, all that the arm emitted in it.
        """
        counts = {name: kind.num for name, kind in self._kinds.items()}
        if num_tokens < 1 or not counts:
            return _nothing(max(0, num_tokens))
        families = self._families()
        seen = smallest_seen(families, num_tokens=num_tokens)
        p_value = self.p_value
        is_rejected = p_value <= self.settings.alpha
        is_passed = seen is not None and seen <= self.settings.displacement
        needed = None if is_rejected or is_passed else self.tokens_to_pass(num_tokens)
        more = None if needed is None else max(1, needed - num_tokens)
        evidence = self._log_evidence()
        strongest = max(evidence, key=lambda name: evidence[name])
        displacement, chance = self._displacement(num_tokens) or (None, None)
        result = LosslessResult(
            kind="rejected" if is_rejected else "passed" if is_passed else "cannot_tell",
            p_value=p_value,
            num_tokens=num_tokens,
            num_observations=counts,
            displacement=displacement,
            chance=chance,
            seen=seen,
            more_tokens=more,
            where=_where(strongest, self._kinds[strongest]),
            sentence="",
        )
        return replace(result, sentence=_sentence(result, self.settings))

    def tokens_to_pass(self, num_tokens: int) -> int | None:
        """Return how many tokens see the displacement that a pass excludes.

        Args:
            num_tokens: Tokens that the test covers; more are taken to bring more of the same.

        Returns:
            Fewer than ``num_tokens`` if fewer would do; None when no number would, or when there
            are no observations.
        """
        return tokens_needed(
            self._families(), displacement=self.settings.displacement, num_tokens=num_tokens
        )

    def _log_evidence(self) -> dict[str, float]:
        """Return the log of every kind's highest wealth times its share."""
        weights = kind_weights(self._kinds)
        return {
            name: kind.bets.log_peak + math.log(weights[name]) for name, kind in self._kinds.items()
        }

    def _families(self) -> list[FamilyPower]:
        weights = kind_weights(self._kinds)
        settings = self.settings
        found = []
        for family, names in FAMILIES.items():
            kinds = {name: self._kinds[name] for name in names if name in self._kinds}
            if not kinds:
                continue
            powers = {
                name: KindPower(
                    kind.sample,
                    num=kind.num,
                    log_threshold=-math.log(settings.alpha * weights[name]),
                    power=settings.power,
                    floor=settings.floor,
                )
                for name, kind in kinds.items()
            }
            num = max(kind.num for kind in kinds.values())
            found.append(FamilyPower(name=family, num=num, kinds=powers))
        return found

    def _displacement(self, num_tokens: int) -> tuple[float, float] | None:
        """Return (the largest family's displaced share of the tokens, what chance shows of it)."""
        families = (
            [self._kinds[name] for name in names if name in self._kinds]
            for names in FAMILIES.values()
        )
        shares = [
            (_variation(kinds) / num_tokens, _chance_variation(kinds) / num_tokens)
            for kinds in families
            if kinds
        ]
        return max(shares, default=None)


def judge(
    observations: Mapping[str, Observations],
    *,
    num_tokens: int,
    settings: LosslessSettings | None = None,
) -> LosslessResult:
    """Return the verdict on all observations of a test.

    Args:
        observations: By kind, each in the order in which they happened.
        num_tokens: Tokens that the test covers, all that the arm emitted in it.
        settings: Error, power and the displacement that a pass excludes.

    Raises:
        ValueError: A kind is unknown.
    """
    test = LosslessTest(settings)
    test.update(observations)
    return test.result(num_tokens)


def _variation(kinds: Sequence[_Kind]) -> float:
    """Return half the sum of all kinds' excesses, what none of them counts included, in events."""
    excesses = [kind.excess for kind in kinds]
    return (sum(map(abs, excesses)) + abs(sum(excesses))) / 2


def _chance_variation(kinds: Sequence[_Kind]) -> float:
    """Return the mean of the variation in a lossless arm, in events, by the normal approximation.

    The events that no kind counts have a variance that is at most that of as many events alike, and
    at most the sum of the others'.
    """
    num = max(kind.num for kind in kinds)
    rest = max(0.0, num - sum(kind.expected for kind in kinds))
    variances = [kind.variance for kind in kinds]
    variances.append(min(sum(variances), rest * (1 - rest / num)))
    return math.sqrt(2 / math.pi) * sum(map(math.sqrt, variances)) / 2


def _where(name: str, kind: _Kind) -> str:
    direction: Direction = "more" if kind.excess > 0 else "fewer"
    if name == LOG_PROBABILITY:
        words = "higher" if direction == "more" else "lower"
        return (
            f"{name}: sampled tokens have a {words} mean log probability than expected, "
            f"{_nats(kind.happened / kind.num):.3f} against "
            f"{_nats(kind.expected / kind.num):.3f} over {kind.num:,}"
        )
    return (
        f"{name}: {direction} than expected, {kind.happened:,.0f} against {kind.expected:,.1f} of "
        f"{kind.num:,}"
    )


def _nats(height: float) -> float:
    """Return the mean log probability that an observation's 0 to 1 stands for."""
    return LEAST_LOG * (1 - height)


def _nothing(num_tokens: int) -> LosslessResult:
    return LosslessResult(
        kind="cannot_tell",
        p_value=1.0,
        num_tokens=num_tokens,
        num_observations={},
        displacement=None,
        chance=None,
        seen=None,
        more_tokens=None,
        where="nowhere: there are no observations",
        sentence="Cannot tell: there are no observations.",
    )


def _sentence(result: LosslessResult, settings: LosslessSettings) -> str:
    start = f"{result.num_tokens:,} tokens, p = {result.p_value:.2g}"
    if result.kind == "rejected":
        return f"Rejected after {start}: {result.where}{_displaced(result)}."
    if result.seen is None:
        return f"Cannot tell after {start}: no kind of observation says how many tokens moved."
    seen = f"{result.seen:.2%} of the tokens displaced would have been seen"
    if result.kind == "passed":
        return f"Passed after {start}: {seen} {settings.power:.0%} of the time."
    return (
        f"Cannot tell after {start}: no less than {seen} {settings.power:.0%} of the time; "
        f"{_more(result, settings)}."
    )


def _displaced(result: LosslessResult) -> str:
    if result.displacement is None or result.chance is None:
        return ""
    return (
        f"; events beyond their means are about {result.displacement:.2%} of all tokens "
        f"(chance shows {result.chance:.2%})"
    )


def _more(result: LosslessResult, settings: LosslessSettings) -> str:
    if result.more_tokens is None:
        return (
            f"no number of tokens would show {settings.displacement:.2%} beside a numeric floor "
            f"of {settings.floor:g} in log odds"
        )
    return f"{settings.displacement:.2%} takes about {result.more_tokens:,} tokens more"
