"""What every OpenAI-compatible server owes the client, and the client owes every server.

A subclass gives the fixture ``server``; it runs on the fake and on a real vLLM.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest

from orchestrator.core.exposition import parse_counters
from orchestrator.core.requests import RequestFault, RequestRecord, TokenSource
from orchestrator.core.sampling import Shaping
from orchestrator.core.types import CounterSnapshot
from orchestrator.load.call import Call, Sampling
from orchestrator.load.client import SseClient

MAX_TOKENS = 24
TIMEOUT_S = 50.0
ENDPOINTS: tuple[Literal["chat"], Literal["completions"]] = ("chat", "completions")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerUnderTest:
    """An idle server that nobody else uses."""

    base_url: str
    model: str
    max_model_len: int
    """Longest prompt and answer together, in tokens; a word is a token at least."""
    read_metrics: Callable[[], str]
    """Returns the text of its ``/metrics``."""
    temperature: float = 0.7

    def call(self, number: int = 0, **changes: Any) -> Call:
        """Return a call with a prompt of its own."""
        sampling = Sampling(
            temperature=self.temperature,
            shaping=Shaping(),
            seed=100 + number,
            max_tokens=MAX_TOKENS,
            ignore_eos=True,
        )
        call = Call(
            request_id=f"contract-{number}",
            prompt_id=f"p{number}",
            prompt=f"def number_{number}(value):\n    return",
            endpoint="completions",
            model=self.model,
            sampling=sampling,
        )
        return replace(call, **changes)

    def counters(self) -> CounterSnapshot:
        """Return the counters once nothing runs: an engine may count after it has answered."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            counters = parse_counters(self.read_metrics()).total
            if not counters.num_requests_running or time.monotonic() > deadline:
                return counters
            time.sleep(0.05)


def run(
    server: ServerUnderTest, work: Callable[[SseClient], Coroutine[Any, Any, list[RequestRecord]]]
) -> list[RequestRecord]:
    """Do the work with one client."""

    async def inside() -> list[RequestRecord]:
        client = SseClient(
            server.base_url, timeout_s=TIMEOUT_S, clock=time.monotonic, origin_s=time.monotonic()
        )
        async with client:
            return await work(client)

    return asyncio.run(inside())


def ask_all(server: ServerUnderTest, calls: Sequence[Call]) -> list[RequestRecord]:
    """Make the calls at once."""

    async def work(client: SseClient) -> list[RequestRecord]:
        return await asyncio.gather(*(client.complete(call) for call in calls))

    return run(server, work)


def ask(server: ServerUnderTest, call: Call) -> RequestRecord:
    return ask_all(server, [call])[0]


class ServerContract:
    """Subclass with a fixture ``server``."""

    @pytest.fixture
    def server(self) -> ServerUnderTest:
        raise NotImplementedError

    @pytest.mark.parametrize("endpoint", ENDPOINTS)
    def test_server_ends_ignored_gives_all_tokens_and_says_so_in_usage(
        self, server: ServerUnderTest, endpoint: str
    ) -> None:
        record = ask(server, server.call(endpoint=endpoint))

        assert (record.fault, record.error) == (None, None)
        assert record.output_tokens == record.max_tokens == MAX_TOKENS
        assert record.token_source is TokenSource.USAGE
        assert record.finish_reason == "length"
        assert record.prompt_tokens is not None
        assert record.prompt_tokens > 0
        assert record.text

    @pytest.mark.parametrize("max_tokens", [1, 2, 17])
    def test_server_max_tokens_is_respected(self, server: ServerUnderTest, max_tokens: int) -> None:
        call = server.call()

        record = ask(server, replace(call, sampling=replace(call.sampling, max_tokens=max_tokens)))

        assert record.output_tokens == max_tokens

    @pytest.mark.parametrize("endpoint", ENDPOINTS)
    def test_server_chunk_tokens_rise_to_the_output_tokens(
        self, server: ServerUnderTest, endpoint: str
    ) -> None:
        record = ask(server, server.call(endpoint=endpoint))

        assert record.chunk_tokens is not None
        assert len(record.chunk_tokens) == len(record.chunk_times_s)
        assert all(a < b for a, b in itertools.pairwise((0, *record.chunk_tokens)))
        assert record.chunk_tokens[-1] == record.output_tokens

    def test_server_chunk_times_never_fall_and_lie_within_the_request(
        self, server: ServerUnderTest
    ) -> None:
        record = ask(server, server.call())

        assert record.ttft_s is not None
        assert record.e2e_s is not None
        assert 0 < record.ttft_s == record.chunk_times_s[0]
        assert list(record.chunk_times_s) == sorted(record.chunk_times_s)
        assert record.chunk_times_s[-1] <= record.e2e_s

    @pytest.mark.parametrize("endpoint", ENDPOINTS)
    def test_server_same_seed_repeats_the_text(
        self, server: ServerUnderTest, endpoint: str
    ) -> None:
        call = server.call(endpoint=endpoint)

        first, second = (ask(server, call) for _ in range(2))

        assert first.text == second.text

    def test_server_other_seed_gives_other_text(self, server: ServerUnderTest) -> None:
        call = server.call()

        texts = {
            ask(server, replace(call, sampling=replace(call.sampling, seed=seed))).text
            for seed in (1, 2, 3)
        }

        assert len(texts) > 1

    def test_server_without_continuous_usage_still_counts_the_whole(
        self, server: ServerUnderTest
    ) -> None:
        record = ask(server, server.call(continuous_usage=False))

        assert record.output_tokens == MAX_TOKENS
        assert record.chunk_tokens is None

    def test_server_openai_dialect_is_understood(self, server: ServerUnderTest) -> None:
        call = server.call()
        sampling = replace(call.sampling, ignore_eos=False)

        record = ask(server, replace(call, sampling=sampling, dialect="openai"))

        assert record.fault is None
        assert record.output_tokens is not None
        assert 1 <= record.output_tokens <= MAX_TOKENS

    def test_server_unknown_model_is_refused_with_its_message(
        self, server: ServerUnderTest
    ) -> None:
        record = ask(server, server.call(model="no-such-model"))

        assert record.fault is RequestFault.HTTP
        assert record.error is not None
        assert "no-such-model" in record.error
        assert record.output_tokens is None

    def test_server_prompt_that_is_too_long_is_refused_with_its_message(
        self, server: ServerUnderTest
    ) -> None:
        record = ask(server, server.call(prompt="word " * (server.max_model_len + 1)))

        assert record.fault is RequestFault.HTTP
        assert record.error is not None
        assert str(server.max_model_len) in record.error

    def test_server_sixteen_at_a_time_all_succeed_and_its_counters_agree(
        self, server: ServerUnderTest
    ) -> None:
        before = server.counters()

        records = ask_all(server, [server.call(number) for number in range(16)])

        after = server.counters()
        assert [record.fault for record in records] == [None] * 16
        assert moved(before.generation_tokens, after.generation_tokens) == 16 * MAX_TOKENS
        prompts = sum(record.prompt_tokens or 0 for record in records)
        assert moved(before.prompt_tokens, after.prompt_tokens) == prompts

    def test_server_request_that_is_given_up_does_not_hurt_the_others(
        self, server: ServerUnderTest
    ) -> None:
        async def work(client: SseClient) -> list[RequestRecord]:
            tasks = [asyncio.create_task(client.complete(server.call(n))) for n in range(4)]
            await asyncio.sleep(0.02)
            tasks[0].cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            return [record for record in done[1:] if isinstance(record, RequestRecord)]

        records = run(server, work)

        assert [record.output_tokens for record in records] == [MAX_TOKENS] * 3
        assert server.counters().num_requests_running == 0


def moved(before: float | None, after: float | None) -> float:
    assert before is not None
    assert after is not None
    return after - before
