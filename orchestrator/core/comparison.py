"""Arms against each other: step times and acceptance lengths apart, then together.

The objective of an arm is the traffic's mean seconds per output token of one stream,

    J = sum over cells of weight * step_time / acceptance_length

and two arms are compared by log(J of a / J of b). Step time is tight inside a boot and differs
between boots; acceptance varies with the prompts and neither with streams nor with boots, if a test
says so. So each is estimated where it is sharp:

    y[boot] = log(sum of weight * step_time[boot] / pooled acceptance_length)
    var(log ratio) = var of the boots' y between boots           (``boot_model``)
                   + sum over groups of share^2 * var(log acceptance ratio)  (``acceptance``)

with share[group] the group's part of J, by the delta method. Where an arm's acceptance shows no
spread of its own yet (one block a cell in one boot), the boots' own objectives are compared, whose
spread holds both. ``docs/estimating.md`` derives the formulas and shows how often they hold.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.core.acceptance import (
    ArmAcceptance,
    Variance,
    add_variances,
    log_length_variance,
    log_ratio_variance,
    pool_acceptance,
)
from orchestrator.core.boot_model import (
    BootFit,
    BootScore,
    Outlier,
    find_outliers,
    fit_boots,
    half_width,
    unreplicated,
)
from orchestrator.core.comparable import comparable_boots
from orchestrator.core.estimate import (
    Contrast,
    cell_score,
    cell_step_time,
    cell_ttft,
    independent_boots,
    known_arms,
)
from orchestrator.core.types import Arm, BoardModel, Boot, BootStatus, Cell

POOLED = "step times by boot, acceptance lengths pooled over blocks, t interval of the log ratio"
MODELLED = "step times modelled, acceptance lengths pooled over blocks, t interval of the log ratio"
BY_BOOT = "scores of whole boots, t interval of the log ratio"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The boots of a study that count, and what their cells came to."""

    boots: tuple[Boot, ...]
    """Ended well, of one kind, without copies; by arm and replicate."""
    copies: Mapping[Arm, int]
    """Boots left out because they repeat an earlier one's counters to the token."""
    board: BoardModel | None
    acceptance: Mapping[Arm, ArmAcceptance | None]
    """None for an arm without speculation, whose length is 1."""
    steps_s: tuple[Mapping[Cell, float], ...]
    """[num_boots] step time by cell; a cell without a score is absent."""
    seconds: tuple[Mapping[Cell, float], ...]
    """[num_boots] seconds per output token by cell, by the boot's own acceptance."""

    def compare(self, weights: Mapping[Cell, float]) -> Comparison:
        """Return all arms, ready to be compared under one traffic.

        A boot that lacks a cell of positive weight takes no part.

        Args:
            weights: The traffic's share by cell; one cell alone compares in that cell.
        """
        shares = {cell: weight for cell, weight in weights.items() if weight > 0}
        boots: dict[Arm, tuple[Boot, ...]] = {}
        terms: dict[Arm, list[dict[Cell, float]]] = {}
        pooled: list[BootScore] = []
        whole: list[BootScore] = []
        for boot, steps, seconds in zip(self.boots, self.steps_s, self.seconds, strict=True):
            if not shares or not shares.keys() <= seconds.keys():
                continue
            own = self.acceptance[boot.arm]
            parts = {
                cell: weight * steps[cell] / (1.0 if own is None else own.length(cell))
                for cell, weight in shares.items()
            }
            boots[boot.arm] = (*boots.get(boot.arm, ()), boot)
            terms.setdefault(boot.arm, []).append(parts)
            pooled.append(_score(boot, sum(parts.values())))
            whole.append(_score(boot, sum(w * seconds[cell] for cell, w in shares.items())))
        fixed = known_arms(boots, self.board)
        return Comparison(
            boots=boots,
            acceptance={arm: self.acceptance[arm] for arm in boots},
            shares={arm: _shares(own) for arm, own in terms.items()},
            pooled=fit_boots(pooled, fixed=fixed),
            whole=fit_boots(whole, fixed=fixed),
            fixed=fixed,
            is_modelled=self.board is not None,
            scores=(tuple(pooled), tuple(whole)),
        )

    def compare_ttft(self, cell: Cell, *, a: Arm, b: Arm, confidence: float) -> Contrast:
        """Return the log ratio of the boots' median times to first token in one cell."""
        times = [(boot, cell_ttft(boot, cell)) for boot in self.boots]
        fit = fit_boots([_score(boot, ttft_s) for boot, ttft_s in times if ttft_s])
        return compare_scores(fit, a=a, b=b, confidence=confidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All arms with a scored boot, ready to be compared in pairs."""

    boots: Mapping[Arm, tuple[Boot, ...]]
    """Scored boots by replicate; an arm without one is absent."""
    acceptance: Mapping[Arm, ArmAcceptance | None]
    shares: Mapping[Arm, Mapping[Cell, float]]
    """Each cell's part of the arm's objective, 0 to 1."""
    pooled: BootFit
    """Of the boots' objectives with the arm's pooled acceptance lengths."""
    whole: BootFit
    """Of the boots' objectives with their own."""
    fixed: frozenset[Arm]
    """Arms whose score a board model states."""
    is_modelled: bool
    """Whether a board model states all step times."""
    scores: tuple[tuple[BootScore, ...], tuple[BootScore, ...]]
    """What ``pooled`` and ``whole`` were fitted to."""

    def seconds(self, arm: Arm) -> float | None:
        """Return the arm's objective, in seconds a token; None without a scored boot."""
        fit = self.pooled if self._is_pooled(arm) else self.whole
        return math.exp(fit.means[arm]) if arm in fit.means else None

    def num_blocks(self, arm: Arm) -> int:
        """Return the valid blocks that the arm's number stands on."""
        own, cells = self.acceptance.get(arm), self.shares.get(arm, {})
        if own is not None:
            return sum(own.num_blocks[group] for group in {own.group_of[cell] for cell in cells})
        blocks = [block for boot in self.boots.get(arm, ()) for block in boot.blocks]
        return sum(block.is_valid and block.cell in cells for block in blocks)

    def outliers(self) -> tuple[Outlier, ...]:
        """Return the boots that are far from their arm's others; none is left out for it."""
        pooled, whole = self.scores
        alike = not self.is_modelled and all(self._is_pooled(arm) for arm in self.boots)
        return find_outliers([s for s in (pooled if alike else whole) if s.arm not in self.fixed])

    def contrast(self, a: Arm, b: Arm, *, confidence: float) -> Contrast:
        """Return the log ratio of the objectives of two arms with its interval.

        Args:
            a: First arm.
            b: Second arm.
            confidence: Coverage of the interval, 0 to 1.
        """
        blocks = (self.num_blocks(a), self.num_blocks(b))
        if not (self._is_pooled(a) and self._is_pooled(b)):
            return compare_scores(
                self.whole,
                a=a,
                b=b,
                confidence=confidence,
                fixed=self.fixed,
                num_blocks=blocks,
            )
        draft = _Draft(fit=self.pooled, a=a, b=b, confidence=confidence, num_blocks=blocks)
        acceptance = self._acceptance_part(a, b)
        if self.is_modelled:
            return draft.interval((), acceptance, method=MODELLED)
        between = _between_boots(self.pooled, (a, b))
        if between is None:
            return draft.without(unreplicated(self.pooled, (a, b)), method=POOLED)
        return draft.interval(between, acceptance, method=POOLED)

    def _is_pooled(self, arm: Arm) -> bool:
        """Whether the arm's acceptance shows its spread in every group that counts."""
        if arm not in self.acceptance:
            return False
        own = self.acceptance[arm]
        return own is None or all(
            len(own.groups[own.group_of[cell]]) > 1 for cell in self.shares[arm]
        )

    def _acceptance_part(self, a: Arm, b: Arm) -> Variance:
        """Return the variance that both arms' acceptance lengths add to the log ratio."""
        one, other = self.acceptance[a], self.acceptance[b]
        ours, theirs = self._group_shares(a), self._group_shares(b)
        parts: list[tuple[float, Variance | None]] = []
        if one is not None and other is not None and ours.keys() == theirs.keys():
            for group, share in ours.items():
                variance = log_ratio_variance(one.groups[group], other.groups[group])
                parts.append(((share + theirs[group]) / 2, variance))
        else:
            for own, shares in ((one, ours), (other, theirs)):
                if own is not None:
                    parts += [(s, log_length_variance(own.groups[g])) for g, s in shares.items()]
        return add_variances(
            [
                Variance(
                    value=share**2 * variance.value, degrees_of_freedom=variance.degrees_of_freedom
                )
                for share, variance in parts
                if variance is not None
            ]
        )

    def _group_shares(self, arm: Arm) -> dict[Hashable, float]:
        own = self.acceptance[arm]
        shares: dict[Hashable, float] = {}
        if own is not None:
            for cell, share in self.shares[arm].items():
                shares[own.group_of[cell]] = shares.get(own.group_of[cell], 0.0) + share
        return shares


def measured(boots: Sequence[Boot], *, cells: Sequence[Cell], board: BoardModel | None) -> Measured:
    """Return what counts of the boots.

    Boots that did not end well, repeat another's counters or ran on something else than the others
    are left out.

    Args:
        boots: All boots, whatever their end.
        cells: The study's cells; acceptance is pooled over those of one temperature and workload.
        board: Source of modelled step times; None when they were measured.
    """
    ended = [boot for boot in comparable_boots(boots) if boot.status is BootStatus.OK]
    kept = independent_boots(ended)
    arms = list(dict.fromkeys(boot.arm for boot in kept))
    steps: list[dict[Cell, float]] = []
    seconds: list[dict[Cell, float]] = []
    for boot in kept:
        steps.append({})
        seconds.append({})
        for cell in cells:
            step_s, score = cell_step_time(boot, cell, board), cell_score(boot, cell, board)
            if step_s is not None and score is not None:
                steps[-1][cell], seconds[-1][cell] = step_s, score
    return Measured(
        boots=kept,
        copies={
            arm: sum(boot.arm == arm for boot in ended) - sum(boot.arm == arm for boot in kept)
            for arm in arms
        },
        board=board,
        acceptance={arm: pool_acceptance(arm, kept, cells) for arm in arms},
        steps_s=tuple(steps),
        seconds=tuple(seconds),
    )


def compare_scores(
    fit: BootFit,
    *,
    a: Arm,
    b: Arm,
    confidence: float,
    fixed: frozenset[Arm] = frozenset(),
    num_blocks: tuple[int, int] | None = None,
) -> Contrast:
    """Return the log ratio of two arms' scores by the spread of whole boots alone.

    Args:
        fit: Of the boots' log scores.
        a: First arm.
        b: Second arm.
        confidence: Coverage of the interval, 0 to 1.
        fixed: Arms whose score is known and not measured.
        num_blocks: Blocks behind a and b, where they are known.
    """
    draft = _Draft(fit=fit, a=a, b=b, confidence=confidence, num_blocks=num_blocks)
    raced = [arm for arm in (a, b) if arm not in fixed]
    between = _between_boots(fit, raced)
    if between is None:
        return draft.without(unreplicated(fit, raced), method=BY_BOOT)
    return draft.interval(between, None, method=BY_BOOT)


_COPIES = "the observations agree to the last digit: copies, not replicates"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """A contrast before its interval."""

    fit: BootFit
    a: Arm
    b: Arm
    confidence: float
    num_blocks: tuple[int, int] | None

    def interval(
        self, boots: Sequence[Variance], acceptance: Variance | None, *, method: str
    ) -> Contrast:
        """Return the contrast with its interval; the spread of boots has a part for each build."""
        between = [part for part in boots if part.value > 0]
        rest = [part for part in (acceptance,) if part is not None and part.value > 0]
        parts = [*between, *rest]
        if self._absent or not parts:
            return self.without(_COPIES, method=method)
        half = half_width(parts, self.confidence)
        ratio = self._log_ratio
        assert ratio is not None
        share = None
        if boots and acceptance is not None:
            of_boots = sum(part.value for part in boots)
            share = of_boots / (of_boots + acceptance.value)
        elif acceptance is not None:
            share = 0.0
        degrees = min(part.degrees_of_freedom for part in between or rest)
        return self._contrast(
            bounds=(ratio - half, ratio + half), method=method, share=share, degrees=degrees
        )

    def without(self, reason: str, *, method: str) -> Contrast:
        """Return the contrast without an interval; an arm without a boot is the better reason."""
        absent = f"{' and '.join(self._absent)}: no scored boot" if self._absent else None
        return self._contrast(method=method, reason=absent or reason)

    @property
    def _absent(self) -> list[str]:
        is_one_build = self.a.engine_build == self.b.engine_build
        return [
            arm.label if is_one_build else arm.key
            for arm in (self.a, self.b)
            if arm not in self.fit.means
        ]

    @property
    def _log_ratio(self) -> float | None:
        return None if self._absent else self.fit.means[self.a] - self.fit.means[self.b]

    def _contrast(
        self,
        *,
        method: str,
        bounds: tuple[float, float] | None = None,
        share: float | None = None,
        degrees: int = 0,
        reason: str | None = None,
    ) -> Contrast:
        counts = self.fit.num_boots
        return Contrast(
            log_ratio=self._log_ratio,
            low=None if bounds is None else bounds[0],
            high=None if bounds is None else bounds[1],
            confidence=self.confidence,
            num_boots=(counts.get(self.a, 0), counts.get(self.b, 0)),
            num_blocks=self.num_blocks,
            degrees_of_freedom=degrees,
            boot_share=share,
            method=method,
            reason=reason,
        )


def _between_boots(fit: BootFit, arms: Sequence[Arm]) -> tuple[Variance, ...] | None:
    """Return the variance of the arms' means from the spread of boots; None when it is unknown."""
    if any(arm not in fit.num_boots for arm in arms):
        return None
    return fit.parts_of(dict.fromkeys(arms, 1.0))


def _score(boot: Boot, seconds: float) -> BootScore:
    return BootScore(arm=boot.arm, boot=boot.trial_id, log_score=math.log(seconds))


def _shares(terms: Sequence[Mapping[Cell, float]]) -> dict[Cell, float]:
    """Return each cell's part of the objective, averaged over boots."""
    return {
        cell: float(np.mean([own[cell] / sum(own.values()) for own in terms])) for cell in terms[0]
    }
