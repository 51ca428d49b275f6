"""Effects of the keys of an arm, as linear contrasts of a fitted model of the boots.

A contrast is a sum of coefficients times the arms' mean log scores; the means are independent, so

    var(sum of c * mean) = variance of one boot * sum of c^2 / boots of the arm

and main effects, interactions and pairs are one function with other coefficients (Montgomery,
Design and Analysis of Experiments, 8th ed., sections 3.5 and 6.2: contrasts, and the effects of a
factorial as contrasts).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from orchestrator.core.boot_model import (
    BootFit,
    BootScore,
    fit_boots,
    half_width,
    unreplicated,
)
from orchestrator.core.builds import by_build
from orchestrator.core.comparable import comparable_boots
from orchestrator.core.estimate import Contrast, independent_boots, known_arms
from orchestrator.core.types import Arm, BoardModel, Boot, BootStatus

METHOD = "linear contrast of the boots' log scores, t interval"
RULES = ("draft_sample_method", "rejection_sample_method")
DEPTH = "num_speculative_tokens"

_BASE_LEVELS = ("greedy", "standard")
"""Levels that others are compared with: vLLM's own defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What one key, or two together, do to the seconds per output token."""

    kind: Literal["main", "interaction"]
    keys: tuple[str, ...]
    """vLLM's names of the keys, one or two."""
    name: str
    """In words, for example ``probabilistic against greedy``."""
    num_pairs: int
    """Pairs of arms, alike in all other keys, that the effect is the mean of; of an interaction
    the groups of four."""
    contrast: Contrast
    """Log ratio; of an interaction, of what both do together to what each does alone."""


def boot_fit(
    boots: Sequence[Boot], score: Callable[[Boot], float | None], board: BoardModel | None
) -> BootFit | None:
    """Return the model of the boots that ended well and have a score; None without any.

    Args:
        boots: All boots; copies and boots of another kind are left out.
        score: Seconds per output token of one boot, or None.
        board: Source of modelled step times; the arm without speculation then counts once.
    """
    ended = [boot for boot in comparable_boots(boots) if boot.status is BootStatus.OK]
    fixed = known_arms({boot.arm for boot in ended}, board)
    scores: list[BootScore] = []
    seen: set[Arm] = set()
    for boot in independent_boots(ended):
        value = score(boot)
        if value is None or value <= 0 or (boot.arm in fixed and boot.arm in seen):
            continue
        seen.add(boot.arm)
        scores.append(BootScore(arm=boot.arm, boot=boot.trial_id, log_score=math.log(value)))
    return fit_boots(scores, fixed=fixed) if scores else None


def linear_contrast(
    fit: BootFit,
    coefficients: Mapping[Arm, float],
    *,
    confidence: float,
    fixed: Collection[Arm] = (),
) -> Contrast:
    """Return the sum of coefficient * mean log score with its interval.

    Args:
        fit: The model.
        coefficients: By arm; an arm that the model does not have makes the contrast unknown.
        confidence: Coverage of the interval, 0 to 1.
        fixed: Arms whose score is known; they add no variance.
    """
    sides = [
        sum(fit.num_boots.get(arm, 0) for arm, c in coefficients.items() if c * sign > 0)
        for sign in (1, -1)
    ]
    none = Contrast(
        log_ratio=None,
        low=None,
        high=None,
        confidence=confidence,
        num_boots=(sides[0], sides[1]),
        degrees_of_freedom=0,
        method=METHOD,
        reason=None,
    )
    absent = [arm.label for arm in coefficients if arm not in fit.means]
    if absent:
        return replace(none, reason=f"{' and '.join(absent)}: no scored boot")
    value = sum(c * fit.means[arm] for arm, c in coefficients.items())
    known = replace(none, log_ratio=value)
    raced = {arm: c for arm, c in coefficients.items() if arm not in fixed}
    parts = fit.parts_of(raced)
    if parts is None:
        return replace(known, reason=unreplicated(fit, tuple(raced)))
    parts = tuple(part for part in parts if part.value > 0)
    if not parts:
        return replace(known, reason="the boots agree to the last digit: copies, not replicates")
    degrees = min(part.degrees_of_freedom for part in parts)
    half = half_width(parts, confidence)
    return replace(known, low=value - half, high=value + half, degrees_of_freedom=degrees)


def pair(
    fit: BootFit, a: Arm, b: Arm, *, confidence: float, fixed: Collection[Arm] = ()
) -> Contrast:
    """Return the log ratio of two arms' scores with its interval."""
    return linear_contrast(fit, {a: 1.0, b: -1.0}, confidence=confidence, fixed=fixed)


def effects(fit: BootFit, *, confidence: float) -> tuple[Effect, ...]:
    """Return main effects of both rules and of the depth, and all interactions of two of them.

    Each effect is the mean over those pairs (groups of four) of arms that are alike in all other
    keys, so arms without a partner do not bend it. Depths are compared with the next smaller one:
    a cliff between two depths is one effect and not a slope. All arms are of one engine build: the
    mean over the pairs of two builds would be an effect in neither.
    """
    assert len(by_build(fit.means)) <= 1, "effects are of one engine build"
    arms = [arm for arm in fit.means if not arm.is_baseline]
    steps = {key: tuple(_steps(arms, key)) for key in (*RULES, DEPTH)}
    found: list[Effect] = []
    for key, pairs in steps.items():
        for low, high in pairs:
            found += _effect(fit, arms, [(key, low, high)], confidence)
    keys = list(steps)
    for index, first in enumerate(keys):
        for second in keys[index + 1 :]:
            for one in steps[first]:
                for other in steps[second]:
                    factors = [(first, *one), (second, *other)]
                    found += _effect(fit, arms, factors, confidence)
    return tuple(found)


def _effect(
    fit: BootFit,
    arms: Sequence[Arm],
    factors: Sequence[tuple[str, object, object]],
    confidence: float,
) -> Iterator[Effect]:
    """Yield the effect of one or two factors, if a group of arms has all their levels."""
    groups = [group for arm in arms if (group := _group(arm, arms, factors)) is not None]
    if not groups:
        return
    coefficients: dict[Arm, float] = {}
    for group in groups:
        for arm, sign in group.items():
            coefficients[arm] = coefficients.get(arm, 0.0) + sign / len(groups)
    names = [f"{_level(key, high)} against {_level(key, low)}" for key, low, high in factors]
    yield Effect(
        kind="main" if len(factors) == 1 else "interaction",
        keys=tuple(key for key, _, _ in factors),
        name=" with ".join(names),
        num_pairs=len(groups),
        contrast=linear_contrast(fit, coefficients, confidence=confidence),
    )


def _group(
    arm: Arm, arms: Sequence[Arm], factors: Sequence[tuple[str, object, object]]
) -> dict[Arm, float] | None:
    """Return the arms that differ from ``arm`` in the factors only, with their signs.

    None unless ``arm`` has every factor's high level and all partners are there.
    """
    if any(getattr(arm, key) != high for key, _, high in factors):
        return None
    group: dict[Arm, float] = {arm: 1.0}
    for key, low, _ in factors:
        for member, sign in list(group.items()):
            group[replace(member, **{key: low})] = -sign  # type: ignore[arg-type]  # by name
    return group if all(member in arms for member in group) else None


def _steps(arms: Sequence[Arm], key: str) -> Iterator[tuple[object, object]]:
    """Yield the pairs of levels of a key that are compared."""
    levels = sorted(
        {getattr(arm, key) for arm in arms}, key=lambda level: (level not in _BASE_LEVELS, level)
    )
    if key == DEPTH:
        yield from itertools.pairwise(levels)
    else:
        yield from ((levels[0], level) for level in levels[1:])


def _level(key: str, level: object) -> str:
    return f"depth {level}" if key == DEPTH else str(level)
