"""What a study promised of the arm that it chose, and whether production keeps it.

One block of one new boot is measured through the production path. It is one more observation of
each kind: a boot of the step time, and some drafts of the acceptance. So it is held against the
interval in which the study's own boots let such an observation be expected, and not against the
interval of their mean, which one honest boot misses as often as not:

    log step_time   mean +- t * sqrt(V * (1 + boots / 1))        V: variance of the boots' mean
    log length      mean +- t * sqrt(V * (1 + drafts / new))     V: variance of the pooled length

V of the length is taken to be no smaller than independent drafts make it: a few short blocks agree
by chance now and then, and an honest block would then be far off. With K accepted tokens a draft
and r_i the share of drafts whose i-th token was accepted, E K = sum r_i and E K^2 =
sum (2 i - 1) r_i, since the i-th is accepted only behind all before it.

The spread between boots is that of all arms of the build (``boot_model``), the spread of acceptance
the arm's own (``acceptance``). Only the slow side counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.core.acceptance import ArmAcceptance, log_length_variance
from orchestrator.core.boot_model import BootScore, fit_boots
from orchestrator.core.comparison import Measured, measured
from orchestrator.core.distributions import t_quantile
from orchestrator.core.formulas import acceptance_length, step_time_s, stream_seconds
from orchestrator.core.promotion import Gate
from orchestrator.core.types import Arm, Block, BoardModel, Boot, Cell, CounterSnapshot

PROMISE_GATE = "promise"
MAX_EXPONENT = 700.0
"""Largest logarithm of a factor that a float holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """A quantity that was estimated from observations, and how another one of them would spread."""

    mean: float
    variance: float
    """Of the logarithm of the mean."""
    weight: float
    """What the mean stands on: boots, or drafts."""
    degrees_of_freedom: int

    def __post_init__(self) -> None:
        """Refuse what no estimate comes to: a promise may be read from a registry."""
        numbers = (self.mean, self.variance, self.weight)
        if not all(math.isfinite(number) and number > 0 for number in numbers):
            raise ValueError(f"mean, variance and weight must be above 0, got {numbers}")
        if self.degrees_of_freedom < 1:
            raise ValueError(f"degrees_of_freedom must be at least 1, is {self.degrees_of_freedom}")

    def factor(self, weight: float, confidence: float, *, least: float = 0.0) -> float:
        """Return by which factor a new observation may miss the mean, above 1.

        Args:
            weight: What it stands on, like the mean's.
            confidence: Of the two-sided interval, 0 to 1.
            least: Variance of the logarithm of an observation of weight 1, at least.
        """
        single = max(self.variance * self.weight, least)
        spread = math.sqrt(single * (1 / self.weight + 1 / weight))
        exponent = t_quantile((1 + confidence) / 2, self.degrees_of_freedom) * spread
        return math.exp(exponent) if exponent < MAX_EXPONENT else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What the boots of a study let one expect of one more block of the arm."""

    arm: Arm
    cell: Cell
    confidence: float
    """Coverage of the two-sided intervals, 0 to 1."""
    is_modelled: bool
    """Whether step times come from a board model, so that none is promised."""
    step_time: Expected | None
    """Seconds; None where times are modelled, or the boots show no spread."""
    acceptance: Expected | None
    """Tokens a step; None for an arm without speculation, or where the blocks show no spread."""

    def __post_init__(self) -> None:
        """Refuse what no study promises: a promise may be read from a registry."""
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence must lie between 0 and 1, is {self.confidence}")
        if self.cell.streams < 1 or not math.isfinite(self.cell.temperature):
            raise ValueError(f"{self.cell} is no cell")

    @property
    def missing(self) -> str | None:
        """Why the promise can be held against nothing; None when it can."""
        if not self.is_modelled and self.step_time is None:
            return "the study's boots show no spread of step times"
        if not self.arm.is_baseline and self.acceptance is None:
            return "the study's blocks show no spread of acceptance"
        return None


def make_promise(
    arm: Arm,
    boots: Sequence[Boot],
    *,
    cells: Sequence[Cell],
    cell: Cell,
    board: BoardModel | None,
    confidence: float,
) -> Promise:
    """Return what the boots promise of the arm in one cell.

    Args:
        arm: What was chosen.
        boots: All boots of the study: those of other arms tell how far boots lie apart.
        cells: The study's cells.
        cell: The one that is measured in production.
        board: Source of modelled step times; None when they were measured.
        confidence: Coverage of the intervals, 0 to 1.
    """
    taken = measured(boots, cells=cells, board=board)
    return Promise(
        arm=arm,
        cell=cell,
        confidence=confidence,
        is_modelled=board is not None,
        step_time=None if board is not None else _step_time(arm, taken, cell),
        acceptance=_acceptance(taken.acceptance.get(arm), cell),
    )


def promise_gate(promise: Promise, block: Block, *, promise_tolerance: float) -> Gate:
    """Return whether a block through the production path is no slower than was promised.

    Args:
        promise: Of the version that was measured.
        block: One valid block of the promise's cell.
        promise_tolerance: Share of a step that the way through Serve may cost besides, 0 to 1.
    """
    if promise.missing is not None:
        return Gate(name=PROMISE_GATE, passed=None, reason=promise.missing, required=True)
    judged = [_judge_step(promise, block, promise_tolerance), _judge_acceptance(promise, block)]
    reason = "; ".join(words for _, words in judged)
    answers = [passed for passed, _ in judged]
    if False in answers:
        return Gate(name=PROMISE_GATE, passed=False, reason=reason, required=True)
    return Gate(
        name=PROMISE_GATE, passed=None if None in answers else True, reason=reason, required=True
    )


def _judge_step(promise: Promise, block: Block, tolerance: float) -> tuple[bool | None, str]:
    expected = promise.step_time
    if expected is None:
        return True, "step time not compared: it is modelled"
    found = step_time_s(
        block.counters,
        busy_s=stream_seconds([block]),
        output_tokens=block.output_tokens,
        speculates=not promise.arm.is_baseline,
    )
    if found is None:
        return None, "no step was counted"
    most = expected.mean * expected.factor(1.0, promise.confidence) * (1 + tolerance)
    words = (
        f"{1000 * found:.1f} ms a step, {1000 * expected.mean:.1f} promised and "
        f"{1000 * most:.1f} at most"
    )
    return found <= most, words


def _judge_acceptance(promise: Promise, block: Block) -> tuple[bool | None, str]:
    expected, drafts = promise.acceptance, block.counters.num_drafts
    if expected is None:
        return True, "acceptance not compared: nothing is drafted"
    found = acceptance_length(block.counters)
    if found is None or not drafts:
        return None, "no draft was counted"
    noise = _draft_noise(block.counters)
    least = expected.mean / expected.factor(drafts, promise.confidence, least=noise)
    words = f"{found:.2f} tokens a step, {expected.mean:.2f} promised and {least:.2f} at least"
    return found >= least, words


def _draft_noise(counters: CounterSnapshot) -> float:
    """Return the variance of the logarithm of the length of one draft, were drafts independent.

    0 where the engine does not count accepted tokens by position.
    """
    by_position, drafts = counters.num_accepted_tokens_per_pos, counters.num_drafts
    if not by_position or not drafts:
        return 0.0
    rates = [count / drafts for count in by_position]
    mean = sum(rates)
    square = sum((2 * index + 1) * rate for index, rate in enumerate(rates))
    return max(0.0, square - mean**2) / (1 + mean) ** 2


def _step_time(arm: Arm, taken: Measured, cell: Cell) -> Expected | None:
    fit = fit_boots(
        [
            BootScore(arm=boot.arm, boot=boot.trial_id, log_score=math.log(steps[cell]))
            for boot, steps in zip(taken.boots, taken.steps_s, strict=True)
            if cell in steps
        ]
    )
    parts = fit.parts_of({arm: 1.0}) if arm in fit.means else None
    if not parts or parts[0].value <= 0:
        return None
    return Expected(
        mean=math.exp(fit.means[arm]),
        variance=parts[0].value,
        weight=fit.num_boots[arm],
        degrees_of_freedom=parts[0].degrees_of_freedom,
    )


def _acceptance(own: ArmAcceptance | None, cell: Cell) -> Expected | None:
    if own is None or cell not in own.group_of:
        return None
    observations = own.groups[own.group_of[cell]]
    variance = log_length_variance(observations)
    if variance is None or variance.value <= 0:
        return None
    return Expected(
        mean=own.length(cell),
        variance=variance.value,
        weight=sum(item.drafts for item in observations),
        degrees_of_freedom=variance.degrees_of_freedom,
    )
