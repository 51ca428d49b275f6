"""What canaries and scored tasks say of an arm beside its control, and the gate that asks them.

The control is the same target served without the arm's speculation. What it fails too says nothing
of the arm: a small model calls no tools, and a server without a parser refuses them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from orchestrator.core.promotion import Gate
from orchestrator.core.proportions import ProportionContrast, compare_proportions

NEAR_ZERO = 0.1
"""Share of items at or below which a score is no score but a fault of the evaluation, likely.

Published: 0.055 where 0.82 is normal, from answers that no parser understood. Tasks of choices have
their chance instead, where that is higher."""

UNPARSED_SHARE = 0.5
"""Share of answers that could not be read above which a score says nothing."""

NORMAL_SHARE = 0.5
"""A control below this share of its normal score is not what was measured then."""


CONTEXT = "context_length"
"""Name of the comparison of what two servers say of their context: it asks nothing, so that it can
fail an arm and not pass one."""


class CanaryFault(StrEnum):
    """In which way a canary failed."""

    WRONG = "wrong"
    """Text, but not what was asked for."""
    GARBAGE = "garbage"
    TRUNCATED = "truncated"
    """Cut by the limit of tokens, or a stream that ended before its answer did."""
    UNSUPPORTED = "not supported by this server"
    """The server refuses the request as one that cannot be right (HTTP 4xx)."""
    LOST = "no answer"
    """No connection, no time, HTTP 5xx, or no form of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryResult:
    """What one canary found on one server."""

    name: str
    passed: bool | None
    """None: not applicable."""
    reason: str
    fault: CanaryFault | None = None
    """None unless it failed."""
    evidence: str = ""
    """The answer that decided, shortened, on one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryComparison:
    """One canary on the arm beside the control."""

    name: str
    passed: bool | None
    """None: it says nothing of the arm."""
    reason: str
    arm: CanaryResult
    control: CanaryResult


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore:
    """What one scored task found on one server."""

    task: str
    hits: int
    total: int
    """Items; 0 where there is no score."""
    num_unparsed: int = 0
    """Items whose answer had no form that can be judged; none of them is a hit."""
    chance: float = 0.0
    """Share of items that guessing hits, 0 to 1."""
    refused: str | None = None
    """Why there is no score."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """What the requests were seen to ask for."""
    items: tuple[bool, ...] = ()
    """[total] whether each item was a hit, in the order of the task."""
    example: str = ""
    """An answer that was no hit, shortened, on one line."""

    @property
    def rate(self) -> float | None:
        """Share of hits, 0 to 1; None without a score."""
        return self.hits / self.total if self.total and self.refused is None else None


class TaskAnswer(StrEnum):
    """What the comparison of two scores says."""

    WORSE = "worse"
    NOT_WORSE = "not worse"
    CANNOT_TELL = "cannot tell"
    PLUMBING = "eval plumbing?"
    """The control's own score is none that this target can have: the evaluation is at fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """How scores are compared."""

    margin: float = 0.1
    """Loss that must be excluded, as a share of the items, above 0 to 1."""
    confidence: float = 0.95
    """Two-sided, above 0 and below 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskComparison:
    """One scored task on the arm beside the control."""

    task: str
    answer: TaskAnswer
    reason: str
    arm: TaskScore
    control: TaskScore
    contrast: ProportionContrast | None = None
    """None without two scores."""

    @property
    def passed(self) -> bool | None:
        """Whether the arm is not worse; None where that cannot be told."""
        return {TaskAnswer.NOT_WORSE: True, TaskAnswer.WORSE: False}.get(self.answer)


def context_result(own: int | None, wanted: int | None) -> CanaryResult:
    """Return whether a server keeps the context length that it is held against.

    Args:
        own: Its ``max_model_len``, in tokens; None where it does not say.
        wanted: The control's, likewise.
    """
    if own is None or wanted is None:
        reason = "a server does not say its max_model_len"
        return CanaryResult(name=CONTEXT, passed=None, reason=reason)
    if own < wanted:
        reason = f"{own:,} tokens, the control has {wanted:,}"
        return CanaryResult(name=CONTEXT, passed=False, reason=reason, fault=CanaryFault.WRONG)
    return CanaryResult(name=CONTEXT, passed=True, reason=f"{own:,} tokens")


def compare_canary(arm: CanaryResult, control: CanaryResult) -> CanaryComparison:
    """Return what a canary says of the arm, given what it says of the control.

    Passed where the arm passes. Failed where the control passes and the arm does not, be it that
    the arm's server refuses what the control's takes. Nothing is said where both fail, even if the
    arm's answer is garbage.

    Raises:
        ValueError: The two are of different canaries.
    """
    if arm.name != control.name:
        raise ValueError(f"canary '{arm.name}' compared with '{control.name}'")
    passed: bool | None
    if arm.passed:
        passed, reason = True, arm.reason
    elif control.passed:
        passed, reason = False, f"{_told(arm)}; the control passes"
    elif arm.passed is None:
        passed, reason = None, arm.reason
    else:
        passed, reason = None, f"control fails too: says nothing ({_told(control)})"
    return CanaryComparison(name=arm.name, passed=passed, reason=reason, arm=arm, control=control)


def _told(result: CanaryResult) -> str:
    if result.passed is None:
        return f"not applicable: {result.reason}"
    return f"{result.fault}: {result.reason}" if result.fault else result.reason


def compare_task(
    arm: TaskScore,
    control: TaskScore,
    settings: TaskSettings | None = None,
    *,
    normal: float | None = None,
) -> TaskComparison:
    """Return whether the arm scores worse than the control, by the interval of two shares.

    A control that scores next to nothing, no better than chance, far below what it is known to
    score, or whose answers mostly cannot be read, is no measure: then nothing is concluded of the
    arm, whatever it scores.

    Args:
        arm: The judged server's score.
        control: The score of the target without speculation, same items, same settings.
        settings: Margin and confidence.
        normal: Score of the control in earlier evaluations, 0 to 1; None where there are none.

    Raises:
        ValueError: The two are of different tasks.
    """
    if arm.task != control.task:
        raise ValueError(f"task '{arm.task}' compared with '{control.task}'")
    settings = settings or TaskSettings()
    told = _no_comparison(arm, control)
    if told is not None:
        return _judged(arm, control, TaskAnswer.CANNOT_TELL, told)
    contrast = compare_proportions(
        arm.hits, arm.total, control.hits, control.total, settings.confidence
    )
    doubt = plumbing_doubt(control, normal)
    if doubt is not None:
        shown = f"control {control.hits} of {control.total}, arm {arm.hits} of {arm.total}"
        reason = f"eval plumbing? {doubt}; {shown}"
        return _judged(arm, control, TaskAnswer.PLUMBING, reason, contrast)
    answer = {
        "worse": TaskAnswer.WORSE,
        "not_worse": TaskAnswer.NOT_WORSE,
        "cannot_tell": TaskAnswer.CANNOT_TELL,
    }[contrast.answer(settings.margin)]
    reason = contrast.sentence(settings.margin) + _items_apart(arm, control)
    if arm.num_unparsed:
        reason += f" Of the arm's answers {arm.num_unparsed} could not be read."
    return _judged(arm, control, answer, reason, contrast)


def plumbing_doubt(control: TaskScore, normal: float | None = None) -> str | None:
    """Return why a control's score cannot be the target's, or None.

    Args:
        control: A score; one without items raises no doubt of its own.
        normal: Its score in earlier evaluations, 0 to 1.
    """
    rate = control.rate
    if rate is None:
        return None
    if control.num_unparsed > UNPARSED_SHARE * control.total:
        return f"{control.num_unparsed} of {control.total} answers of the control cannot be read"
    if normal is not None and rate < NORMAL_SHARE * normal:
        return f"the control scores {rate:.3f} where {normal:.3f} is normal"
    floor = max(NEAR_ZERO, control.chance)
    if rate <= floor:
        kind = "chance" if control.chance >= NEAR_ZERO else "next to nothing"
        return f"the control scores {rate:.3f}, {kind}"
    return None


def _no_comparison(arm: TaskScore, control: TaskScore) -> str | None:
    """Return why two scores cannot be compared, or None."""
    for side, score in (("arm", arm), ("control", control)):
        if score.refused is not None:
            return f"no score of the {side}: {score.refused}"
        if not score.total:
            return f"no score of the {side}: it has no items"
    if dict(arm.settings) != dict(control.settings):
        keys = sorted(
            key
            for key in {*arm.settings, *control.settings}
            if arm.settings.get(key) != control.settings.get(key)
        )
        return f"the two were asked with different settings: {', '.join(keys)}"
    return None


def _items_apart(arm: TaskScore, control: TaskScore) -> str:
    """Return on how many of the same items the two differ; empty where that is not known."""
    if not arm.items or len(arm.items) != len(control.items):
        return ""
    pairs = list(zip(arm.items, control.items, strict=True))
    lost, won = pairs.count((False, True)), pairs.count((True, False))
    return f" Item by item: {lost} lost, {won} won."


def _judged(
    arm: TaskScore,
    control: TaskScore,
    answer: TaskAnswer,
    reason: str,
    contrast: ProportionContrast | None = None,
) -> TaskComparison:
    return TaskComparison(
        task=arm.task, answer=answer, reason=reason, arm=arm, control=control, contrast=contrast
    )


def canaries_gate(
    canaries: Sequence[CanaryComparison],
    tasks: Sequence[TaskComparison] = (),
    *,
    required: bool = False,
) -> Gate:
    """Return whether canaries and scored tasks let the arm pass.

    Failed where one canary fails that the control passes, or one task is worse. Passed where at
    least one canary passes, none fails, and every task is not worse. Else it cannot be told: no
    canary says anything, a score is missing, its interval is too wide, or the evaluation is at
    fault.

    Args:
        canaries: The comparisons; empty where none was made.
        tasks: The comparisons of scored tasks; empty where none was run, which the reason says.
        required: Whether what cannot be told keeps the arm out.
    """
    failed = [
        *(f"canary {c.name}: {c.reason}" for c in canaries if c.passed is False),
        *(f"task {t.task}: {t.reason}" for t in tasks if t.passed is False),
    ]
    if failed:
        return Gate(name="canaries", passed=False, reason="; ".join(failed), required=required)
    if not canaries:
        reason = "not tested: no answer was checked for content"
        return Gate(name="canaries", passed=None, reason=reason, required=required)
    passing = [c.name for c in canaries if c.passed and c.name != CONTEXT]
    silent = [c.name for c in canaries if c.passed is None]
    open_tasks = [f"task {t.task}: {t.reason}" for t in tasks if t.passed is None]
    if not passing:
        open_tasks.insert(0, f"no canary says anything of the arm ({', '.join(silent)})")
    if open_tasks:
        reason = "; ".join(open_tasks)
        return Gate(name="canaries", passed=None, reason=reason, required=required)
    reason = f"{', '.join(passing)} as the control"
    if silent:
        reason += f"; nothing said by {', '.join(silent)}"
    done = ", ".join(t.task for t in tasks)
    reason += f"; not worse in {done}" if done else "; no scored task was run"
    return Gate(name="canaries", passed=True, reason=reason, required=required)
