"""The text test: do an arm's sampled tokens follow the target's distribution? Over HTTP alone.

The arm samples at temperature 1 with nothing cut off; the control, the target without speculation,
says how likely each of the tokens was. It works on any engine that speaks vLLM's completions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from orchestrator.core.lossless.judge import LosslessResult, LosslessTest, Observations
from orchestrator.core.lossless.ranks import text_observations
from orchestrator.load.scoring import TokenClient, TokenServer
from orchestrator.load.token_answers import WHOLE
from orchestrator.lossless_answers import NUM_DECODED, NUM_TOP, Answers, ScoredAnswer, TextTest
from orchestrator.lossless_floor import DriftMeter

SAME_SERVER = (
    "the arm scores its own tokens: scoring is a prefill and does not speculate, but what differs "
    "from the target in weights or numerics goes unseen"
)
NO_FLOOR = (
    "the numeric floor was not measured: in half precision, sampling and scoring round "
    "differently, which enough tokens show (--control-samples)"
)
FEW_RANKS = (
    "the control gives {} probabilities a token: what moves among the ranks above goes unseen "
    "(--max-logprobs 64 of the control's server gives all that the test looks at)"
)
LARGE_FLOOR = 0.1
"""Log odds: two steps of bfloat16 between logits of 8 and 16 move one token by as much, and the
mean over many tokens by far less."""
NO_ROUNDING = (
    "sampling and scoring of the control differ by {:.3g} in log odds, more than rounding does: "
    "it seems not to score what it samples from, and the arm is judged with that much room"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The test at one of its looks."""

    num_tokens: int
    p_value: float
    seen: float | None
    """Smallest displacement that would have been seen by now, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlCheck:
    """The control, sampled and scored by itself."""

    result: LosslessResult
    floor: float | None
    """Log odds, as ``DriftMeter`` has it; None where the control does not say how likely its tokens
    were when it sampled them."""
    most_drift: float | None
    """Largest drift of a bucket's mass at one token, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOutcome:
    """The verdict and what it rests on."""

    result: LosslessResult
    control: ControlCheck | None
    """None where the control was not sampled."""
    looks: tuple[Look, ...]
    num_top: int
    """Probabilities a token; ``WHOLE`` for the vocabulary."""
    num_requests: int
    num_cut: int
    """Answers whose end the control's context had no room for."""
    num_impossible: int
    """Sampled tokens that have probability 0 under the control."""
    refused: Mapping[str, str]
    """By prompt id, why the arm does not take it."""
    builds: Mapping[str, tuple[str, ...]]
    """What the ``arm`` and the ``control`` say of theirs."""
    remarks: tuple[str, ...]


OnLook = Callable[[str, Look], None]
"""Told ``arm`` or ``control``, and what was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """What is kept of one scored answer."""

    observations: Mapping[str, Observations]
    impossible: tuple[str, ...]


def run_text_test(
    arm: TokenServer,
    control: TokenServer,
    test: TextTest,
    *,
    on_look: OnLook = lambda _whose, _look: None,
) -> TextOutcome:
    """Test an arm until the answer is known or the tokens are spent.

    Args:
        arm: Samples.
        control: Scores: the target without speculation, or the arm itself.
        test: What to ask for; a temperature above 0.
        on_look: Called at every look.

    Raises:
        ConfigError: The control cannot score, or the arm takes none of the prompts.
        MeasurementError: A server contradicts itself, or refuses a text that it must score.
        TransientError: A server does not answer.
    """
    return asyncio.run(_run(arm, control, test, on_look))


def check_control(
    control: TokenServer, test: TextTest, *, on_look: OnLook = lambda _whose, _look: None
) -> ControlCheck:
    """Sample a control and score it by itself: whether it is a scale, and the numeric floor.

    Args:
        control: The target without speculation.
        test: What to ask for; its ``control_tokens`` are sampled.
        on_look: Called once, at the end.

    Raises:
        ConfigError: The control cannot score, or takes none of the prompts.
        MeasurementError: The server contradicts itself, or refuses a text that it must score.
        TransientError: The server does not answer.
    """

    async def check() -> ControlCheck:
        async with TokenClient(control, timeout_s=test.timeout_s, wait_s=test.wait_s) as scorer:
            found, _builds = await _check_control(await _answers(scorer, scorer, test), on_look)
            return found

    return asyncio.run(check())


async def _answers(source: TokenClient, scorer: TokenClient, test: TextTest) -> Answers[_Piece]:
    num_top = await scorer.widest_top(test.num_top)
    return Answers(
        source=source, scorer=scorer, test=test, num_top=num_top, keep=_piece, order="arm",
        scorer_length=await scorer.max_model_len(),
    )  # fmt: skip


async def _run(
    arm: TokenServer, control: TokenServer, test: TextTest, on_look: OnLook
) -> TextOutcome:
    async with (
        TokenClient(arm, timeout_s=test.timeout_s, wait_s=test.wait_s) as source,
        TokenClient(control, timeout_s=test.timeout_s, wait_s=test.wait_s) as scorer,
    ):
        answers = await _answers(source, scorer, test)
        num_top = answers.num_top
        check, builds = (
            await _check_control(answers, on_look) if test.control_tokens else (None, ())
        )
        if check is not None and check.floor is not None:
            test = replace(test, judging=replace(test.judging, floor=check.floor))
        watch = _Watch(test, on_look)
        if check is None or check.result.kind != "rejected":
            await watch.until_known(answers)
    return TextOutcome(
        result=_explained(watch, check),
        control=check,
        looks=tuple(watch.looks),
        num_top=num_top,
        num_requests=answers.num_requests,
        num_cut=answers.num_cut,
        num_impossible=len(watch.impossible),
        refused=answers.refused,
        builds={"arm": tuple(sorted(answers.builds)), "control": builds},
        remarks=tuple(_remarks(arm, control, num_top, check)),
    )


async def _check_control(
    template: Answers[_Piece], on_look: OnLook
) -> tuple[ControlCheck, tuple[str, ...]]:
    """Sample the control and score it by itself; no early end, since the floor wants all tokens."""
    test, meter = template.test, DriftMeter()

    def keep(found: ScoredAnswer) -> _Piece:
        if found.sample.decoded is not None:
            meter.update(found.scores, found.sample.decoded)
        return _piece(found)

    answers = Answers(
        source=template.scorer, scorer=template.scorer, test=test, num_top=template.num_top,
        keep=keep, order="control", scorer_length=template.scorer_length,
        num_logprobs=NUM_DECODED if template.num_top == WHOLE else template.num_top,
    )  # fmt: skip
    pieces: list[_Piece] = []
    while answers.num_tokens < test.control_tokens:
        pieces += await answers.batch(test.control_tokens)
    floor = meter.floor or 0.0
    judge = LosslessTest(replace(test.judging, floor=floor))
    for piece in pieces:
        judge.update(piece.observations)
    result = judge.result(answers.num_tokens)
    on_look("control", _look(result))
    check = ControlCheck(result=result, floor=meter.floor, most_drift=meter.most)
    return check, tuple(sorted(answers.builds))


class _Watch:
    """Looks at an arm's tokens after every batch."""

    def __init__(self, test: TextTest, on_look: OnLook) -> None:
        self._test = test
        self._on_look = on_look
        self._judge = LosslessTest(test.judging)
        self.result = self._judge.result(0)
        self.looks: list[Look] = []
        self.impossible: list[str] = []

    async def until_known(self, answers: Answers[_Piece]) -> None:
        budget = self._test.token_budget
        while answers.num_tokens < budget:
            for piece in await answers.batch(budget):
                self._judge.update(piece.observations)
                self.impossible += piece.impossible
            self.result = self._judge.result(answers.num_tokens)
            self.looks.append(_look(self.result))
            self._on_look("arm", self.looks[-1])
            if self.impossible or self.result.kind != "cannot_tell":
                return


def _explained(watch: _Watch, check: ControlCheck | None) -> LosslessResult:
    """Return the verdict, with what the tokens alone do not say of it."""
    result, num = watch.result, len(watch.impossible)
    if check is not None and check.result.kind == "rejected":
        return replace(
            result, where=f"the control: {check.result.where}",
            sentence="Cannot tell: the control's own tokens do not follow its own probabilities: "
            f"it is no scale for the arm. {check.result.sentence}",
        )  # fmt: skip
    if num:
        return replace(
            result, kind="rejected", p_value=0.0, more_tokens=None,
            where=f"support: {num:,} sampled tokens have probability 0 under the control",
            sentence=f"Rejected: {num:,} of {result.num_tokens:,} sampled tokens have probability "
            f"0 under the control, the first {watch.impossible[0]}: arm and scorer differ in "
            "support.",
        )  # fmt: skip
    return result


def _remarks(
    arm: TokenServer, control: TokenServer, num_top: int, check: ControlCheck | None
) -> Iterator[str]:
    if arm.base_url == control.base_url:
        yield SAME_SERVER
    yield from rank_remarks(num_top)
    yield from floor_remarks(None if check is None else check.floor)


def rank_remarks(num_top: int) -> tuple[str, ...]:
    """Return what goes unseen with so many probabilities a token."""
    return (FEW_RANKS.format(num_top),) if num_top != WHOLE and num_top < NUM_TOP else ()


def floor_remarks(floor: float | None) -> tuple[str, ...]:
    """Return what a numeric floor, in log odds, or its absence means for a result."""
    if floor is None:
        return (NO_FLOOR,)
    return (NO_ROUNDING.format(floor),) if floor > LARGE_FLOOR else ()


def _piece(found: ScoredAnswer) -> _Piece:
    scores = found.scores
    output = found.sample.output_ids
    impossible: Sequence[int] = np.flatnonzero(np.isneginf(scores.logprobs)).tolist()
    probabilities = np.exp(scores.top.logprobs)
    # By rounding alone they may sum to a little more than 1.
    probabilities /= np.maximum(1.0, probabilities.sum(axis=1, keepdims=True))
    return _Piece(
        observations=text_observations(probabilities, scores.ranks, is_whole=scores.is_whole),
        impossible=tuple(
            f"token {output[at]} at {at} of the answer to '{found.prompt_id}'" for at in impossible
        ),
    )


def _look(result: LosslessResult) -> Look:
    return Look(num_tokens=result.num_tokens, p_value=result.p_value, seen=result.seen)
