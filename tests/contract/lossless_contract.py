"""What the lossless test needs of a server, and what it owes a server that is right.

A subclass gives the fixtures; it runs on the fake, whose distributions are known, and on vLLM.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest

from orchestrator.core.sampling import Shaping
from orchestrator.errors import MeasurementError
from orchestrator.load.call import Call, Sampling
from orchestrator.load.scoring import TokenClient, TokenServer
from orchestrator.load.token_answers import WHOLE, Sample, Scores
from orchestrator.load.workload import Workload
from orchestrator.lossless import run_text_test
from orchestrator.lossless_answers import TextTest
from orchestrator.lossless_greedy import run_greedy_test

MAX_TOKENS = 48
TOKENS = 2_000
"""Within which a wrong temperature is to be found."""

T = TypeVar("T")


def call(server: TokenServer, seed: int = 1, **changes: Any) -> Call:
    sampling = Sampling(
        temperature=1.0, shaping=Shaping(), seed=seed, max_tokens=MAX_TOKENS, ignore_eos=True
    )
    return Call(
        request_id=f"contract-{seed}",
        prompt_id="p",
        prompt="def total(values):\n    result = 0\n",
        endpoint="completions",
        model=server.model,
        sampling=replace(sampling, **changes),
    )


def ask(
    server: TokenServer,
    work: Callable[[TokenClient], Coroutine[Any, Any, T]],
    *,
    timeout_s: float = 120.0,
) -> T:
    """Do the work with one client."""

    async def inside() -> T:
        async with TokenClient(server, timeout_s=timeout_s, wait_s=0.01) as client:
            return await work(client)

    return asyncio.run(inside())


def sample(server: TokenServer, seed: int = 1, **changes: Any) -> Sample:
    return ask(server, lambda client: client.sample(call(server, seed, **changes)))


def score(server: TokenServer, found: Sample, num_top: int = 20) -> Scores:
    return ask(
        server,
        lambda client: client.score(found.prompt_ids, found.output_ids, num_top=num_top),
    )


class LosslessContract:
    """Subclass with the fixtures ``server`` and ``workload``."""

    @pytest.fixture
    def server(self) -> TokenServer:
        """Return a server that is right, allows the whole vocabulary, and has 80 tokens or more."""
        raise NotImplementedError

    @pytest.fixture
    def workload(self) -> Workload:
        """Return plain prompts that fit its context."""
        raise NotImplementedError

    def test_sample_has_the_ids_of_prompt_and_answer(self, server: TokenServer) -> None:
        found = sample(server)

        assert len(found.output_ids) == MAX_TOKENS
        assert found.prompt_ids
        assert found.build

    def test_sample_repeats_with_its_seed_only(self, server: TokenServer) -> None:
        first, again, other = (sample(server, seed) for seed in (1, 1, 2))

        assert first.output_ids == again.output_ids
        assert first.output_ids != other.output_ids

    def test_scores_are_the_answer_s_own_and_in_order(self, server: TokenServer) -> None:
        found = sample(server)

        scores = score(server, found)

        assert scores.top.logprobs.shape == (MAX_TOKENS, 20)
        assert (np.diff(scores.top.logprobs, axis=1) <= 1e-4).all()
        inside = np.flatnonzero(scores.ranks <= 20)
        assert len(inside) > MAX_TOKENS / 4
        columns = scores.ranks[inside] - 1
        assert (scores.top.ids[inside, columns] == np.array(found.output_ids)[inside]).all()
        assert (scores.top.logprobs[inside, columns] == scores.logprobs[inside]).all()

    def test_scores_of_the_whole_vocabulary_sum_to_one_and_agree_with_the_top(
        self, server: TokenServer
    ) -> None:
        found = sample(server)

        whole, top = score(server, found, WHOLE), score(server, found)

        assert whole.is_whole
        assert not top.is_whole
        assert np.exp(whole.top.logprobs).sum(axis=1) == pytest.approx(1.0, abs=1e-4)
        assert whole.top.logprobs[:, :20] == pytest.approx(top.top.logprobs, abs=1e-3)
        assert whole.logprobs == pytest.approx(top.logprobs, abs=1e-3)

    def test_scores_of_a_token_do_not_depend_on_what_follows(self, server: TokenServer) -> None:
        found = sample(server)
        half = replace(found, output_ids=found.output_ids[: MAX_TOKENS // 2])

        whole, part = score(server, found), score(server, half)

        assert part.logprobs == pytest.approx(whole.logprobs[: MAX_TOKENS // 2], abs=1e-3)

    def test_sampling_and_scoring_have_one_distribution(self, server: TokenServer) -> None:
        found = ask(server, lambda client: client.sample(call(server), num_logprobs=5))

        scores = score(server, found)

        assert found.decoded is not None
        assert found.decoded.logprobs == pytest.approx(scores.top.logprobs[:, :5], abs=1e-3)

    def test_more_probabilities_than_there_are_tokens_become_as_many_as_there_are(
        self, server: TokenServer
    ) -> None:
        widest = ask(server, lambda client: client.widest_top(10**6))

        whole = score(server, sample(server), WHOLE)
        assert widest == whole.top.ids.shape[1]

    def test_token_outside_the_vocabulary_is_refused_in_words(self, server: TokenServer) -> None:
        found = replace(sample(server), output_ids=(10**7,))

        with pytest.raises(MeasurementError, match="vocab"):
            score(server, found)

    def test_server_that_is_right_is_not_rejected(
        self, server: TokenServer, workload: Workload
    ) -> None:
        test = TextTest(
            workload=workload, seed=11, token_budget=TOKENS, control_tokens=TOKENS // 2,
            max_tokens=100,
        )  # fmt: skip

        outcome = run_text_test(server, server, test)

        assert outcome.result.kind == "cannot_tell"
        assert outcome.result.p_value > 0.01
        assert TOKENS <= outcome.result.num_tokens < TOKENS + 100 * test.num_streams
        assert outcome.result.seen is not None
        assert 0.01 < outcome.result.seen < 0.2
        assert outcome.result.more_tokens is not None
        assert outcome.result.more_tokens > TOKENS
        assert outcome.control is not None
        assert outcome.control.floor is not None
        assert 0 <= outcome.control.floor < 1e-3
        assert outcome.refused == {}

    def test_temperature_of_0_9_is_rejected_within_2000_tokens(
        self, server: TokenServer, workload: Workload
    ) -> None:
        outcomes = [
            run_text_test(
                server,
                server,
                TextTest(
                    workload=workload, seed=seed, token_budget=TOKENS, max_tokens=100,
                    num_streams=8, temperature=0.9,
                ),
            )
            for seed in (12, 13, 14)
        ]  # fmt: skip

        found = [outcome.result for outcome in outcomes]
        assert [result.kind for result in found] == ["rejected"] * 3
        assert all(result.p_value <= 0.001 for result in found)
        assert all(result.num_tokens <= TOKENS for result in found)

    def test_greedy_answers_are_the_scorer_s_choice(
        self, server: TokenServer, workload: Workload
    ) -> None:
        test = TextTest(
            workload=workload, seed=13, token_budget=400, max_tokens=50, temperature=0.0
        )
        same = replace(server, base_url=server.base_url.replace("127.0.0.1", "localhost"))

        outcome = run_greedy_test(server, same, test)

        assert outcome.result.arm.num_tokens >= 400
        assert outcome.result.arm == outcome.result.control
        assert outcome.result.arm.num_disagreements == 0
        assert outcome.result.kind == "cannot_tell"
