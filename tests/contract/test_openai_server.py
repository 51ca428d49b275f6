"""The fake server under the contract of servers, and what only it can show."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from server_contract import MAX_TOKENS, ServerContract, ServerUnderTest, ask, ask_all, moved

from orchestrator.core.exposition import delta, parse_counters
from orchestrator.errors import MeasurementError
from orchestrator.fakes.openai import EngineSettings, SseServer, engine_server, serving

MODEL = "tiny"


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as response:  # loopback
        text: str = response.read().decode()
        return text


def under_test(url: str) -> ServerUnderTest:
    return ServerUnderTest(
        base_url=url + "/v1",
        model=MODEL,
        max_model_len=512,
        read_metrics=lambda: read(url + "/metrics"),
    )


@contextmanager
def served(
    settings: EngineSettings,
) -> Iterator[tuple[ServerUnderTest, SseServer]]:
    with serving(engine_server(settings)) as server:
        yield under_test(server.url), server


class TestPlainServer(ServerContract):
    @pytest.fixture
    def server(self) -> Iterator[ServerUnderTest]:
        with served(EngineSettings(models=(MODEL,), max_model_len=512)) as (server, _):
            yield server


class TestSpeculatingServer(ServerContract):
    @pytest.fixture
    def server(self) -> Iterator[ServerUnderTest]:
        settings = EngineSettings(
            models=(MODEL,),
            max_model_len=512,
            tokens_per_chunk=5,
            num_speculative_tokens=7,
            ttft_s=0.005,
            gap_s=0.002,
            max_num_seqs=6,
        )
        with served(settings) as (server, _):
            yield server


class TestReplayProcess(ServerContract):
    @pytest.fixture
    def server(self) -> Iterator[ServerUnderTest]:
        options = ["--ttft-ms", "5", "--gap-ms", "1", "--model", MODEL, "--max-model-len", "512"]
        with replaying(*options) as url:
            yield under_test(url)


@contextmanager
def replaying(*options: str) -> Iterator[str]:
    """Run the server as a process of its own; its address."""
    command = [sys.executable, "-m", "orchestrator.fakes.openai", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("listening on http://127.0.0.1:")
            yield line.split()[-1]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(20)


def test_replay_writes_the_truth_of_every_request(tmp_path: Path) -> None:
    truth = tmp_path / "truth.jsonl"
    options = ["--ttft-ms", "20", "--gap-ms", "4", "--tokens-per-chunk", "4"]
    with replaying(*options, "--truth", str(truth)) as url:
        server = under_test(url)
        records = ask_all(server, [server.call(number) for number in range(16)])

    lines = [json.loads(line) for line in truth.read_text(encoding="utf-8").splitlines()]
    by_id = {line["request_id"]: line for line in lines}
    assert len(lines) == 16
    for record in records:
        line = by_id[record.request_id]
        assert line["output_tokens"] == record.output_tokens == MAX_TOKENS
        assert line["prompt_tokens"] == record.prompt_tokens
        assert len(line["chunk_sent_s"]) == len(record.chunk_times_s) == MAX_TOKENS // 4
        due = [0.020 + 0.004 * index for index in range(MAX_TOKENS // 4)]
        sent = [moment - line["received_s"] for moment in line["chunk_sent_s"]]
        assert all(at >= due_at for at, due_at in zip(sent, due, strict=True)), "none is early"


def test_replay_serves_any_model_unless_it_is_told_one() -> None:
    with replaying("--ttft-ms", "0", "--gap-ms", "0") as url:
        server = under_test(url)
        assert ask(server, server.call(model="whatever")).fault is None
        assert json.loads(read(url + "/v1/models"))["data"][0]["id"] == "fake"
        assert read(url + "/health") == ""


def test_server_speculation_counters_make_up_the_tokens() -> None:
    settings = EngineSettings(models=(MODEL,), tokens_per_chunk=3, num_speculative_tokens=4)
    with served(settings) as (server, _):
        before = server.counters()
        ask_all(server, [server.call(number) for number in range(4)])
        after = server.counters()

    drafts = moved(before.num_drafts, after.num_drafts)
    accepted = moved(before.num_accepted_tokens, after.num_accepted_tokens)
    assert drafts == 4 * (MAX_TOKENS // 3 - 1), "the first chunk is the prefill's"
    assert drafts + accepted == 4 * (MAX_TOKENS - 3)
    assert moved(before.num_draft_tokens, after.num_draft_tokens) == 4 * drafts
    assert after.num_accepted_tokens_per_pos == (drafts, drafts, 0.0, 0.0)


def test_server_without_speculation_publishes_no_such_counters() -> None:
    with served(EngineSettings(models=(MODEL,))) as (server, _):
        ask(server, server.call())
        assert server.counters().num_drafts is None


def test_server_foreign_tokens_move_its_counter_only() -> None:
    with served(EngineSettings(foreign_tokens=1000)) as (server, _):
        before = server.counters()
        record = ask(server, server.call())
        after = server.counters()

    assert record.output_tokens == MAX_TOKENS
    assert moved(before.generation_tokens, after.generation_tokens) == MAX_TOKENS + 1000


def test_server_cached_tokens_are_told_to_the_client_and_counted() -> None:
    with served(EngineSettings(cached_share=0.5)) as (server, fake):
        record = ask(server, server.call(prompt="one two three four"))

        assert (record.prompt_tokens, record.cached_tokens) == (4, 2)
        assert fake.engine.counters.prefix_cache_hits == 2
        assert 'vllm:prefix_cache_hits_total{engine="0",model_name="fake"} 2.0' in (
            server.read_metrics()
        )


def test_server_answer_ends_by_itself_unless_ends_are_ignored() -> None:
    with served(EngineSettings(eos_after=5)) as (server, _):
        bound = server.call()
        free = replace(bound, sampling=replace(bound.sampling, ignore_eos=False))

        short, full = ask(server, free), ask(server, bound)

    assert (short.output_tokens, short.finish_reason) == (5, "stop")
    assert (full.output_tokens, full.finish_reason) == (MAX_TOKENS, "length")


def test_server_restart_starts_its_counters_anew_and_says_so() -> None:
    with served(EngineSettings(models=(MODEL,))) as (server, fake):
        ask(server, server.call())
        before = parse_counters(server.read_metrics())

        fake.engine.restart()
        ask(server, server.call())
        ask(server, server.call())

        with pytest.raises(MeasurementError):
            delta(before, parse_counters(server.read_metrics()))


def test_server_full_engine_lets_requests_wait() -> None:
    settings = EngineSettings(max_num_seqs=2, ttft_s=0.2, gap_s=0.001)
    with served(settings) as (server, fake):
        seen: list[tuple[int, int]] = []

        def look() -> None:
            counters = fake.engine.counters
            seen.append((counters.running, counters.waiting))

        async def watch() -> None:
            asking = asyncio.create_task(
                asyncio.to_thread(ask_all, server, [server.call(number) for number in range(5)])
            )
            while not asking.done():
                look()
                await asyncio.sleep(0.01)
            await asking

        asyncio.run(watch())

    assert max(running for running, _ in seen) == 2
    assert (2, 3) in seen


def test_server_request_that_is_not_streamed_is_answered_whole() -> None:
    with served(EngineSettings(models=(MODEL,))) as (_, fake):
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
        request = urllib.request.Request(
            fake.url + "/v1/chat/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as response:  # loopback
            answer = json.load(response)

    assert answer["usage"]["completion_tokens"] == 3
    assert len(answer["choices"][0]["message"]["content"].split()) == 3
