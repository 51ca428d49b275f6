"""What a study teaches beside its winner: effects, interactions, depth curves, what would flip it.

All of it rests on whole boots: a boot's seconds per output token hold its steps and its acceptance,
and their spread between boots holds both. Each interval is one by one; of many, some exclude no
difference by chance.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.core.boot_model import BootFit, BootScore, fit_boots
from orchestrator.core.builds import by_build
from orchestrator.core.codec import to_plain
from orchestrator.core.comparable import comparable_boots
from orchestrator.core.effects import Effect, boot_fit, effects, linear_contrast, pair
from orchestrator.core.estimate import (
    Contrast,
    boot_objective,
    cell_score,
    cell_step_time,
    known_arms,
)
from orchestrator.core.flips import Flip, NextBoots, margin_flips, next_boots, traffic_flips
from orchestrator.core.formulas import factor_of
from orchestrator.core.space import reference_arm
from orchestrator.core.types import Arm, BoardModel, Boot, BootStatus, Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthPoint:
    """One depth of a curve."""

    num_speculative_tokens: int
    seconds: float
    """Seconds per output token of one stream, the mean over boots."""
    low: float | None
    """Bounds of its interval; None when there is none."""
    high: float | None
    num_boots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthCurve:
    """Seconds per output token by depth under one pair of rules."""

    draft_sample_method: str | None
    rejection_sample_method: str | None
    cell: Cell | None
    """None for the objective over the traffic."""
    points: tuple[DepthPoint, ...]
    """By depth, the smallest first."""
    best: Arm
    """The fastest depth."""
    against_next: Contrast | None
    """Against the depth that comes closest to it; None with one depth."""
    next_best: Arm | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CellEffects:
    """All effects in one cell, or over the traffic."""

    cell: Cell | None
    effects: tuple[Effect, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TemperatureEffect:
    """What another temperature of the client costs one arm, boot by boot."""

    arm: Arm
    cell: Cell
    """The cell with the higher temperature."""
    from_temperature: float
    contrast: Contrast
    """Log ratio of the seconds per token, the higher temperature to the lower; both sides are
    cells of the same boots, so the boots cancel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a study found."""

    confidence: float
    leader: Arm | None
    """The fastest arm by the mean over its boots; None without a scored boot."""
    reference: Arm | None
    cells: tuple[CellEffects, ...]
    """The traffic first, then by cell; without those that have no effect to show."""
    curves: tuple[DepthCurve, ...]
    temperatures: tuple[TemperatureEffect, ...]
    flips: tuple[Flip, ...]
    next_boots: tuple[NextBoots, ...]

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON types, for tracking."""
        return to_plain(self)


def find(
    arms: Sequence[Arm],
    *,
    boots: Sequence[Boot],
    weights: Mapping[Cell, float],
    board: BoardModel | None,
    incumbent: Arm | None,
    confidence: float,
    set_aside: Collection[Arm] = (),
) -> Findings:
    """Return the findings of a study; all empty where no boot has a score.

    Args:
        arms: The space, of one engine build.
        boots: All boots of that build, whatever their end.
        weights: The traffic's share by cell.
        board: Source of modelled step times; None when they were measured.
        incumbent: What serves now; None too where another build serves.
        confidence: Coverage of each interval, 0 to 1.
        set_aside: Arms whose output is not the target's. Their times are in effects and curves,
            and none of them leads, is a best depth or what the leader is compared with.
    """
    assert len(by_build(boot.arm for boot in boots)) <= 1, "findings are of one engine build"
    overall = boot_fit(boots, lambda boot: boot_objective(boot, weights, board), board)
    cells = {cell: _cell_fit(boots, cell, board) for cell in sorted(weights)}
    fits = [(None, overall), *cells.items()]
    known: list[tuple[Cell | None, BootFit]] = [(c, fit) for c, fit in fits if fit is not None]
    reference = reference_arm(arms, incumbent)
    order = [] if overall is None else _in_order(overall, set_aside)
    leader = next(iter(order), None)
    by_cell = [CellEffects(cell=c, effects=effects(f, confidence=confidence)) for c, f in known]
    rivals: tuple[Arm, ...] = ()
    flips: list[Flip] = []
    buys: list[NextBoots] = []
    if overall is not None and leader is not None:
        fixed = known_arms(overall.means, board)
        rivals = _rivals(overall, order, reference)
        scores = {a: s for a, s in _scores(cells).items() if a in order}
        for rival in rivals:
            seconds = (math.exp(overall.means[leader]), math.exp(overall.means[rival]))
            length = _length(boots, leader, weights=weights, board=board)
            flips += margin_flips(leader, rival, seconds=seconds, length=length)
            buys.append(next_boots(overall, leader, rival, confidence=confidence, fixed=fixed))
        flips += traffic_flips(leader, scores, weights) if leader in scores else []
    return Findings(
        confidence=confidence,
        leader=leader,
        reference=reference,
        cells=tuple(item for item in by_cell if item.effects),
        curves=tuple(curve for c, fit in known for curve in _curves(c, fit, confidence, set_aside)),
        temperatures=_temperatures(
            [arm for arm in (leader, *rivals) if arm is not None],
            boots=boots,
            weights=weights,
            board=board,
            confidence=confidence,
        ),
        flips=tuple(flips),
        next_boots=tuple(buys),
    )


def _cell_fit(boots: Sequence[Boot], cell: Cell, board: BoardModel | None) -> BootFit | None:
    return boot_fit(boots, lambda boot: cell_score(boot, cell, board), board)


def _scores(cells: Mapping[Cell, BootFit | None]) -> dict[Arm, dict[Cell, float]]:
    """Return the seconds per token by arm and cell."""
    scores: dict[Arm, dict[Cell, float]] = {}
    for cell, fit in cells.items():
        for arm, mean in () if fit is None else fit.means.items():
            scores.setdefault(arm, {})[cell] = math.exp(mean)
    return scores


def _in_order(fit: BootFit, set_aside: Collection[Arm]) -> list[Arm]:
    """Return the arms that may be named as the best, the fastest first."""
    return sorted((arm for arm in fit.means if arm not in set_aside), key=lambda a: fit.means[a])


def _rivals(fit: BootFit, order: Sequence[Arm], reference: Arm | None) -> tuple[Arm, ...]:
    """Return the arm that comes closest to the leader, and the reference, set aside or not."""
    leader, *closest = order[:2]
    if reference is not None and reference in fit.means and reference not in (leader, *closest):
        closest.append(reference)
    return tuple(closest)


def _length(
    boots: Sequence[Boot],
    arm: Arm,
    *,
    weights: Mapping[Cell, float],
    board: BoardModel | None,
) -> float | None:
    """Return an arm's acceptance length over the traffic: mean step time / objective.

    Formula: sum of weight * step_time_s / sum of weight * step_time_s / acceptance_length, by
    boots; the value that falls by the share by which the objective rises.
    """
    if arm.is_baseline:
        return None
    logs: list[float] = []
    for boot in comparable_boots(boots):
        objective = boot_objective(boot, weights, board) if boot.arm == arm else None
        steps = [
            (weight, cell_step_time(boot, cell, board))
            for cell, weight in weights.items()
            if weight > 0
        ]
        if objective is not None:
            logs.append(math.log(sum(weight * (step or 0.0) for weight, step in steps) / objective))
    return math.exp(sum(logs) / len(logs)) if logs else None


def _curves(
    cell: Cell | None, fit: BootFit, confidence: float, set_aside: Collection[Arm]
) -> list[DepthCurve]:
    rules: dict[tuple[str | None, str | None], list[Arm]] = {}
    for arm in sorted(arm for arm in fit.means if not arm.is_baseline):
        key = (arm.draft_sample_method, arm.rejection_sample_method)
        rules.setdefault(key, []).append(arm)
    order = _in_order(fit, set_aside)
    # Without an arm that may win there is no best depth; a faulty kernel's times are no advice.
    return [
        _curve(cell, fit, own, [arm for arm in order if arm in own], confidence)
        for own in rules.values()
        if any(arm in order for arm in own)
    ]


def _curve(
    cell: Cell | None,
    fit: BootFit,
    arms: Sequence[Arm],
    order: Sequence[Arm],
    confidence: float,
) -> DepthCurve:
    by_depth = sorted(arms, key=lambda arm: arm.num_speculative_tokens)
    nearest = order[1] if len(order) > 1 else None
    return DepthCurve(
        draft_sample_method=order[0].draft_sample_method,
        rejection_sample_method=order[0].rejection_sample_method,
        cell=cell,
        points=tuple(_point(fit, arm, confidence) for arm in by_depth),
        best=order[0],
        against_next=None
        if nearest is None
        else pair(fit, order[0], nearest, confidence=confidence),
        next_best=nearest,
    )


def _point(fit: BootFit, arm: Arm, confidence: float) -> DepthPoint:
    own = linear_contrast(fit, {arm: 1.0}, confidence=confidence)
    low, high = (None if log is None else factor_of(log) for log in (own.low, own.high))
    if high == math.inf:
        low = high = None
    return DepthPoint(
        num_speculative_tokens=arm.num_speculative_tokens,
        seconds=math.exp(fit.means[arm]),
        low=low,
        high=high,
        num_boots=fit.num_boots[arm],
    )


def _temperatures(
    arms: Collection[Arm],
    *,
    boots: Sequence[Boot],
    weights: Mapping[Cell, float],
    board: BoardModel | None,
    confidence: float,
) -> tuple[TemperatureEffect, ...]:
    """Return the effect of each next higher temperature, at each concurrency."""
    found: list[TemperatureEffect] = []
    ended = [b for b in comparable_boots(boots) if b.status is BootStatus.OK and b.arm in arms]
    by_load: dict[Cell, list[Cell]] = {}
    for cell in sorted(weights):
        by_load.setdefault(replace(cell, temperature=0.0), []).append(cell)
    for cells in by_load.values():
        for cool, warm in itertools.pairwise(cells):
            ratios = [
                BootScore(arm=boot.arm, boot=boot.trial_id, log_score=math.log(hot / cold))
                for boot in ended
                if (hot := cell_score(boot, warm, board))
                and (cold := cell_score(boot, cool, board))
            ]
            fit = fit_boots(ratios) if ratios else None
            found += [
                TemperatureEffect(
                    arm=arm,
                    cell=warm,
                    from_temperature=cool.temperature,
                    contrast=_mean(fit, arm, confidence),
                )
                for arm in arms
                if fit is not None and arm in fit.means and not arm.is_baseline
            ]
    return tuple(found)


def _mean(fit: BootFit, arm: Arm, confidence: float) -> Contrast:
    """Return the mean of an arm's own ratios as a contrast of its boots with themselves."""
    from_zero = linear_contrast(fit, {arm: 1.0}, confidence=confidence)
    return replace(from_zero, num_boots=(fit.num_boots[arm], fit.num_boots[arm]))
