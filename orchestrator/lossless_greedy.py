"""The rule of temperature 0 over HTTP: does the arm take the target's most likely tokens?

Arm and control answer the same prompts greedily, and the control says how likely each token was
beside the most likely one. The control's own disagreements, by rounding, are the scale.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.core.lossless.greedy import (
    Agreement,
    GreedyResult,
    GreedySettings,
    agreement,
    judge_greedy,
)
from orchestrator.core.lossless.observations import Floats
from orchestrator.errors import ConfigError
from orchestrator.load.scoring import TokenClient, TokenServer
from orchestrator.lossless_answers import Answers, ScoredAnswer, TextTest

NUM_TOP = 1
"""Probabilities a token: the most likely token's; the answer's own is always given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyOutcome:
    """The verdict and what it rests on."""

    result: GreedyResult
    num_requests: int
    """Of the arm; the control has as many."""
    num_cut: int
    """Answers of the arm whose end the control's context had no room for."""
    refused: Mapping[str, str]
    """By prompt id, why the arm does not take it."""
    builds: Mapping[str, tuple[str, ...]]


def run_greedy_test(
    arm: TokenServer,
    control: TokenServer,
    test: TextTest,
    settings: GreedySettings | None = None,
) -> GreedyOutcome:
    """Compare an arm's greedy tokens with the control's choice, and the control's own with it.

    Args:
        arm: Answers.
        control: Answers and scores; the target without speculation, another server than the arm.
        test: Its budget is for each of the two; its temperature is 0.
        settings: Margin, tolerance and confidence.

    Raises:
        ConfigError: There is no control beside the arm, it cannot score, or no prompt is taken.
        MeasurementError: A server contradicts itself, or refuses a text that it must score.
        TransientError: A server does not answer.
    """
    if test.temperature != 0:
        raise ConfigError(
            "lossless.temperature", f"{test.temperature:g} is not greedy", "set it to 0"
        )
    if arm.base_url == control.base_url:
        raise ConfigError(
            "control_url", "greedy answers are compared with those of the control",
            "name the target's server without speculation",
        )  # fmt: skip
    return asyncio.run(_run(arm, control, test, settings or GreedySettings()))


def measure_agreement(
    server: TokenServer, test: TextTest, settings: GreedySettings | None = None
) -> Agreement:
    """Count how a server's greedy tokens agree with what it scores as most likely itself.

    Args:
        server: Answers and scores; scoring is a prefill and does not speculate.
        test: Its budget is the server's; its temperature is 0.
        settings: The margin.

    Raises:
        ConfigError: The server cannot score, or takes none of the prompts.
        MeasurementError: The server contradicts itself, or refuses a text that it must score.
        TransientError: The server does not answer.
    """

    async def measure() -> Agreement:
        async with TokenClient(server, timeout_s=test.timeout_s, wait_s=test.wait_s) as client:
            await client.widest_top(NUM_TOP)
            length = await client.max_model_len()
            answers = _answers(client, client, test, length)
            return await _agreement(answers, settings or GreedySettings())

    return asyncio.run(measure())


async def _run(
    arm: TokenServer, control: TokenServer, test: TextTest, settings: GreedySettings
) -> GreedyOutcome:
    async with (
        TokenClient(arm, timeout_s=test.timeout_s, wait_s=test.wait_s) as source,
        TokenClient(control, timeout_s=test.timeout_s, wait_s=test.wait_s) as scorer,
    ):
        await scorer.widest_top(NUM_TOP)
        length = await scorer.max_model_len()
        both = [_answers(server, scorer, test, length) for server in (source, scorer)]
        counts = [await _agreement(answers, settings) for answers in both]
    return GreedyOutcome(
        result=judge_greedy(*counts, settings=settings),
        num_requests=both[0].num_requests,
        num_cut=both[0].num_cut,
        refused=both[0].refused,
        builds={
            name: tuple(sorted(answers.builds))
            for name, answers in zip(("arm", "control"), both, strict=True)
        },
    )


def _answers(
    source: TokenClient, scorer: TokenClient, test: TextTest, scorer_length: int | None
) -> Answers[Floats]:
    return Answers(
        source=source, scorer=scorer, test=test, num_top=NUM_TOP, keep=_gaps,
        scorer_length=scorer_length, salt=True, order="greedy",
    )  # fmt: skip


async def _agreement(answers: Answers[Floats], settings: GreedySettings) -> Agreement:
    gaps: list[Floats] = []
    while answers.num_tokens < answers.test.token_budget:
        gaps += await answers.batch(answers.test.token_budget)
    return agreement(gaps, margin=settings.margin)


def _gaps(found: ScoredAnswer) -> Floats:
    scores = found.scores
    gaps = scores.top.logprobs[:, 0] - scores.logprobs
    gaps[scores.ranks == 1] = 0.0
    return gaps
