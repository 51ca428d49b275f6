"""Answers of one server and their probabilities by another, a batch at a time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from orchestrator.core.lossless.judge import LosslessSettings
from orchestrator.core.sampling import Shaping
from orchestrator.errors import ConfigError
from orchestrator.load.call import Call, Sampling
from orchestrator.load.scoring import Refused, TokenClient
from orchestrator.load.token_answers import WHOLE, Sample, Scores
from orchestrator.load.workload import Workload, draw

NUM_TOP = 64
"""Probabilities a token where the server gives them: the last bucket of ranks begins after them,
and what they leave of 1 is its mass. More change nothing."""

NUM_DECODED = 20
"""Probabilities of a sampled token where the whole vocabulary is scored: what any server allows."""

GROWTH = 0.25
"""Tokens of a batch as a share of all before it, so that looks cost a share of the whole test."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTest:
    """What to ask for, how much of it, and how to judge it."""

    workload: Workload
    seed: int
    """Of the order of prompts and of every request's own seed."""
    token_budget: int = 200_000
    """Output tokens of the arm after which the answer is given, whatever it is."""
    control_tokens: int = 0
    """Output tokens of the control that are scored by itself, for the numeric floor."""
    max_tokens: int = 256
    """Of an answer."""
    num_streams: int = 16
    """Answers at a time."""
    num_scorers: int = 4
    """Scored texts at a time; each holds its answer's JSON in memory."""
    num_top: int = NUM_TOP
    """Probabilities wanted of a token; ``WHOLE`` for the vocabulary."""
    temperature: float = 1.0
    """That is sent. The claim is 1, so that another one shows what the test sees; 0 is greedy."""
    timeout_s: float = 600.0
    """Of one request."""
    wait_s: float = 0.5
    """Before a request that failed is made again; doubled each time."""
    judging: LosslessSettings = field(default_factory=LosslessSettings)

    def __post_init__(self) -> None:
        whole = self.num_top == WHOLE
        ranges = (
            ("token_budget", self.token_budget >= 1, "1 or more"),
            ("control_tokens", self.control_tokens >= 0, "0 or more"),
            ("max_tokens", self.max_tokens >= 1, "1 or more"),
            ("num_streams", self.num_streams >= 1, "1 or more"),
            ("num_scorers", self.num_scorers >= 1, "1 or more"),
            ("num_top", whole or self.num_top >= 1, "1 or more, or -1 for the vocabulary"),
            ("temperature", 0 <= self.temperature <= 2, "0 to 2"),
            ("timeout_s", 0 < self.timeout_s < math.inf, "seconds above 0"),
        )
        for name, is_fine, wanted in ranges:
            if not is_fine:
                value = getattr(self, name)
                raise ConfigError(f"lossless.{name}", f"{value} is out of range", f"give {wanted}")
        if self.workload.needs_chat:
            raise ConfigError(
                "load.workload", f"'{self.workload.name}' holds conversations",
                "use one of plain prompts: the test sends token ids to the completions endpoint",
            )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredAnswer:
    """An answer with the probabilities that the scorer gives its tokens."""

    prompt_id: str
    sample: Sample
    scores: Scores


@dataclass(slots=True)
class Answers(Generic[_T]):
    """Makes the answers of one server, scores them, and keeps what is wanted of each.

    Attributes:
        refused: By prompt id, why the server takes no such prompt; for all lengths alike, so that
            leaving it out says nothing of its answer.
        num_cut: Answers whose end is not scored, since they fill the scorer's context.
        builds: What the servers say of theirs.
    """

    source: TokenClient
    scorer: TokenClient
    test: TextTest
    num_top: int
    scorer_length: int | None
    """Longest text that the scorer takes and one more token, in tokens."""
    keep: Callable[[ScoredAnswer], _T]
    order: str
    """Names the sequence of seeds and salts: equal ones make equal requests."""
    salt: bool = False
    """Whether prompts that come again are told apart, where equal ones have equal answers."""
    num_logprobs: int = 0
    """Of the sampled tokens, by the source itself."""
    num_tokens: int = 0
    num_requests: int = 0
    num_cut: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    builds: set[str] = field(default_factory=set)

    async def batch(self, budget: int) -> list[_T]:
        """Return the next answers in the order of their requests, whichever ended first.

        Args:
            budget: Tokens of all batches together that are wanted, above those that there are.

        Raises:
            ConfigError: The source takes none of the prompts.
            MeasurementError: A server contradicts itself, or takes no text for scoring.
            TransientError: A server does not answer.
        """
        test = self.test
        left = max(1, math.ceil((budget - self.num_tokens) / test.max_tokens))
        growth = math.ceil(GROWTH * self.num_tokens / test.max_tokens)
        first = self.num_requests
        self.num_requests += min(left, max(test.num_streams, growth))
        streams, scorers = asyncio.Semaphore(test.num_streams), asyncio.Semaphore(test.num_scorers)
        answers = await _all(
            self._answer(turn, streams, scorers) for turn in range(first, self.num_requests)
        )
        kept = []
        for found in answers:
            if found is not None:
                num_tokens, item = found
                self.num_tokens += num_tokens
                kept.append(item)
        if not self.num_tokens and self.num_requests >= len(test.workload.prompts):
            reason = next(iter(self.refused.values()), "texts leave no room in the context")
            raise ConfigError(
                "load.workload", f"none of its prompts gives a token to test: {reason}",
                "do what the server says: mostly a shorter prompt or fewer tokens an answer",
            )  # fmt: skip
        return kept

    async def _answer(
        self, turn: int, streams: asyncio.Semaphore, scorers: asyncio.Semaphore
    ) -> tuple[int, _T] | None:
        call = self._call(turn)
        async with streams:
            try:
                sample = await self.source.sample(call, num_logprobs=self.num_logprobs)
            except Refused as error:
                self.refused[call.prompt_id] = str(error)
                return None
        if sample.build is not None:
            self.builds.add(sample.build)
        output = self._within(sample)
        if not output:
            return None
        async with scorers:
            scores = await self.scorer.score(sample.prompt_ids, output, num_top=self.num_top)
        found = ScoredAnswer(prompt_id=call.prompt_id, sample=sample, scores=scores)
        return len(output), self.keep(found)

    def _within(self, sample: Sample) -> tuple[int, ...]:
        """Return what can be scored: how much is decided by lengths, not by what was sampled."""
        if self.scorer_length is None:
            return sample.output_ids
        room = max(0, self.scorer_length - 1 - len(sample.prompt_ids))
        self.num_cut += len(sample.output_ids) > room
        return sample.output_ids[:room]

    def _call(self, turn: int) -> Call:
        test, server = self.test, self.source.server
        choice = draw(
            test.workload,
            seed=test.seed,
            cell_key=f"lossless/{self.order}",
            streams=1,
            stream=0,
            turn=turn,
            salt=self.salt,
        )
        return Call(
            request_id=f"lossless-{test.seed}-{turn}",
            prompt_id=choice.prompt_id,
            prompt=choice.text,
            endpoint="completions",
            model=server.model,
            sampling=Sampling(
                temperature=test.temperature,
                shaping=Shaping(),
                seed=choice.seed,
                max_tokens=test.max_tokens,
                # An end that stops an answer is not among its tokens in every version.
                ignore_eos=True,
            ),
        )


async def _all(work: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Return all results in order; when one fails nothing goes on in the background."""
    tasks = [asyncio.create_task(item) for item in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
