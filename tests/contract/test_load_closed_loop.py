"""The closed loop: what every load client owes the trial, and what only the real one can show."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from sse_server import Act, Script, SseServer, free_port, good, serving, text

from orchestrator.core.exposition import parse_counters
from orchestrator.core.types import Arm, Cell, CounterSnapshot, LoadResult
from orchestrator.errors import MeasurementError
from orchestrator.fakes.board import FakeBoard, Faults
from orchestrator.fakes.engine import FakeEngine
from orchestrator.fakes.load import FakeLoad
from orchestrator.load.streams import ClosedLoop, LoadSettings
from orchestrator.load.workload import Prompt, Workload
from orchestrator.ports import LoadClient, LoadHooks, LoadRequest

WORKLOAD = Workload(
    name="w",
    digest="d",
    prompts=tuple(Prompt(prompt_id=f"p{i}", category="c", text=f"text {i}") for i in range(7)),
)
ARM = Arm(
    engine_build="0.32.0",
    num_speculative_tokens=7,
    draft_sample_method="probabilistic",
    rejection_sample_method="block",
)
NO_HOOKS = LoadHooks(on_window_start=lambda: None, on_window_end=lambda: None)
MAX_TOKENS = 24


def ticking(step_s: float = 0.01) -> Callable[[], float]:
    """Return a clock that moves by each reading, so that a window needs no waiting."""
    ticks = itertools.count(0.0, step_s)
    return lambda: next(ticks)


def settings(**changes: Any) -> LoadSettings:
    values: dict[str, Any] = {
        "top_p": 1.0,
        "top_k": 0,
        "endpoint": "completions",
        "max_tokens": MAX_TOKENS,
        "ignore_eos": True,
        "block_s": 1.0,
        "warmup_requests_per_stream": 1,
        "warmup_max_tokens": 16,
        "request_timeout_s": 10.0,
    }
    return LoadSettings(**(values | changes))


def closed_loop(**changes: Any) -> ClosedLoop:
    return ClosedLoop(WORKLOAD, settings=settings(**changes), clock=ticking())


def request(base_url: str, *, streams: int = 2, seed: int = 5) -> LoadRequest:
    cell = Cell(streams=streams, temperature=0.7)
    return LoadRequest(base_url=base_url, model="m", cell=cell, seed=seed)


@dataclass(frozen=True, slots=True)
class Setup:
    """A load client and where it sends."""

    client: LoadClient
    base_url: str
    fail_every: Callable[[int], Setup]
    dead_url: str


def real_setup(server: SseServer) -> Setup:
    def fail_every(count: int) -> Setup:
        reset = Script(parts=(text("a"), Act.RESET))
        server.behaviour = lambda number, body: reset if number % count == 0 else good(body)
        return real

    dead_url = f"http://127.0.0.1:{free_port()}"
    real = Setup(closed_loop(), server.url, fail_every, dead_url)
    return real


def fake_setup(faults: Faults | None = None) -> Setup:
    board = FakeBoard(faults={ARM: faults or Faults()})
    FakeEngine(board).start(ARM, lambda _line: None)
    client = FakeLoad(board, block_s=5.0, max_tokens=MAX_TOKENS)

    def fail_every(count: int) -> Setup:
        return fake_setup(Faults(reset_every=count))

    return Setup(client, board.base_url, fail_every, "http://elsewhere.invalid:8000")


@pytest.fixture(params=["closed_loop", "fake"])
def setup(request: pytest.FixtureRequest) -> Iterator[Setup]:
    if request.param == "fake":
        yield fake_setup()
        return
    with serving() as server:
        yield real_setup(server)


class TestLoadClientContract:
    def test_run_calls_each_hook_once_in_order(self, setup: Setup) -> None:
        calls: list[str] = []
        hooks = LoadHooks(
            on_window_start=lambda: calls.append("start"),
            on_window_end=lambda: calls.append("end"),
        )

        setup.client.run(request(setup.base_url), hooks)

        assert calls == ["start", "end"]

    def test_run_counts_tokens_requests_and_reasons(self, setup: Setup) -> None:
        result = setup.client.run(request(setup.base_url), NO_HOOKS)

        assert result.duration_s > 0
        assert result.num_failed == 0
        assert result.output_tokens == MAX_TOKENS * len(result.records)
        assert result.finish_reasons == {"length": len(result.records)}

    def test_run_records_are_whole(self, setup: Setup) -> None:
        result = setup.client.run(request(setup.base_url), NO_HOOKS)

        for record in result.records:
            assert record.error is None
            assert record.text
            assert record.ttft_s is not None
            assert record.e2e_s is not None
            assert 0 < record.ttft_s <= record.e2e_s <= result.duration_s
            assert record.tpot_s is not None
        assert len({record.request_id for record in result.records}) == len(result.records)
        starts = [record.started_s for record in result.records]
        assert starts == sorted(starts)

    def test_run_every_stream_asks_more_than_once(self, setup: Setup) -> None:
        result = setup.client.run(request(setup.base_url, streams=3), NO_HOOKS)

        assert len(result.records) > 3

    def test_run_some_failures_are_counted_and_the_window_goes_on(self, setup: Setup) -> None:
        failing = setup.fail_every(5)

        result = failing.client.run(request(failing.base_url), NO_HOOKS)

        assert 0 < result.num_failed < len(result.records)
        failed = [record for record in result.records if record.error is not None]
        assert len(failed) == result.num_failed
        assert all(record.e2e_s is None for record in failed)

    def test_run_nobody_answers_is_a_measurement_error_with_the_cause(self, setup: Setup) -> None:
        with pytest.raises(MeasurementError, match="the first: "):
            setup.client.run(request(setup.dead_url), NO_HOOKS)

    def test_run_every_request_fails_is_a_measurement_error(self, setup: Setup) -> None:
        failing = setup.fail_every(1)

        with pytest.raises(MeasurementError, match="requests succeeded; the first: "):
            failing.client.run(request(failing.base_url), NO_HOOKS)

    def test_run_same_seed_asks_the_same_prompts(self, setup: Setup) -> None:
        first = setup.client.run(request(setup.base_url, streams=1), NO_HOOKS)
        second = setup.client.run(request(setup.base_url, streams=1), NO_HOOKS)
        other = setup.client.run(request(setup.base_url, streams=1, seed=6), NO_HOOKS)

        def prompts(result: LoadResult) -> list[str]:
            return [record.prompt_id for record in result.records][:5]

        assert prompts(first) == prompts(second)
        assert prompts(first) != prompts(other)


def test_closed_loop_warm_up_is_drained_before_the_window(sse_server: SseServer) -> None:
    seen: list[tuple[int, int]] = []

    def look() -> None:
        num_asked = len(sse_server.bodies)
        # The client is done at [DONE], the server a moment later, when it has closed the answer.
        deadline = time.monotonic() + 5.0
        while sse_server.in_flight and time.monotonic() < deadline:
            time.sleep(0.001)
        seen.append((num_asked, sse_server.in_flight))

    hooks = LoadHooks(on_window_start=look, on_window_end=look)

    result = closed_loop(warmup_requests_per_stream=2, warmup_max_tokens=4).run(
        request(sse_server.url, streams=4), hooks
    )

    (before, running_before), (after, running_after) = seen
    assert (before, running_before, running_after) == (8, 0, 0)
    assert after == 8 + len(result.records)
    assert {body["max_tokens"] for body in sse_server.bodies[:8]} == {4}
    assert {body["max_tokens"] for body in sse_server.bodies[8:]} == {MAX_TOKENS}


def test_closed_loop_hooks_may_block_because_they_have_a_thread(sse_server: SseServer) -> None:
    threads: list[int] = []
    hooks = LoadHooks(
        on_window_start=lambda: threads.append(threading.get_ident()),
        on_window_end=lambda: threads.append(threading.get_ident()),
    )

    closed_loop().run(request(sse_server.url), hooks)

    assert threading.get_ident() not in threads


def test_closed_loop_keeps_its_concurrency_and_never_more(sse_server: SseServer) -> None:
    closed_loop().run(request(sse_server.url, streams=6), NO_HOOKS)

    assert sse_server.most_in_flight == 6


def test_closed_loop_never_sends_a_prompt_twice_in_a_boot(sse_server: SseServer) -> None:
    client = closed_loop()
    for seed in (5, 6):
        client.run(request(sse_server.url, seed=seed), NO_HOOKS)

    prompts = [body["prompt"] for body in sse_server.bodies]
    assert len(set(prompts)) == len(prompts) > 3 * len(WORKLOAD.prompts)


def test_closed_loop_two_arms_get_the_same_prompts_and_seeds(sse_server: SseServer) -> None:
    def asked() -> dict[str, int]:
        sse_server.bodies.clear()
        closed_loop().run(request(sse_server.url, streams=3), NO_HOOKS)
        return {body["prompt"]: body["seed"] for body in sse_server.bodies}

    first, second = asked(), asked()

    both = first.keys() & second.keys()
    assert len(both) > 10
    assert all(first[prompt] == second[prompt] for prompt in both)
    assert len(set(first.values())) == len(first)


def test_closed_loop_writes_the_cell_and_the_settings_into_requests(
    sse_server: SseServer,
) -> None:
    client = closed_loop(top_p=0.8, top_k=5, ignore_eos=False)
    client.run(request(sse_server.url), NO_HOOKS)

    body = sse_server.bodies[-1]
    expected = {"temperature": 0.7, "top_p": 0.8, "top_k": 5, "ignore_eos": False, "model": "m"}
    assert body.items() >= expected.items()


def test_closed_loop_engine_that_dies_is_not_asked_for_ever(sse_server: SseServer) -> None:
    sse_server.behaviour = lambda _number, _body: Script(status=500, parts=(b"EngineDeadError",))

    with pytest.raises(MeasurementError, match=r"none of 6 requests .* HTTP 500: EngineDeadError"):
        closed_loop().run(request(sse_server.url), NO_HOOKS)


def test_closed_loop_stuck_stream_is_ended_by_the_timeout(sse_server: SseServer) -> None:
    hang = Script(parts=(text("a"), Act.HANG))
    stuck = 2 * 2 + 1
    sse_server.behaviour = lambda number, body: hang if number == stuck else good(body)

    client = ClosedLoop(WORKLOAD, settings=settings(block_s=0.2, request_timeout_s=0.5))
    result = client.run(request(sse_server.url), NO_HOOKS)

    assert [r.error for r in result.records if r.error] == ["no complete answer within 0.5 s"]
    assert 0.5 <= result.duration_s < 5


def test_closed_loop_failing_hook_ends_the_run(sse_server: SseServer) -> None:
    def fail() -> None:
        raise MeasurementError("no counters")

    hooks = LoadHooks(on_window_start=fail, on_window_end=lambda: None)

    with pytest.raises(MeasurementError, match="no counters"):
        closed_loop().run(request(sse_server.url), hooks)


def test_closed_loop_window_ends_with_its_last_answer(sse_server: SseServer) -> None:
    clock = ticking()
    client = ClosedLoop(WORKLOAD, settings=settings(), clock=clock)

    result = client.run(request(sse_server.url), NO_HOOKS)

    first = min(record.started_s for record in result.records)
    last = max(record.started_s + (record.e2e_s or 0.0) for record in result.records)
    assert result.duration_s >= last - first
    assert result.duration_s == pytest.approx(last - first, abs=0.15)


class TestFakeLoad:
    """What the fake adds: counters of the engine that move with the load."""

    def counters(self, faults: Faults) -> tuple[CounterSnapshot, CounterSnapshot, LoadResult]:
        board = FakeBoard(faults={ARM: faults})
        engine = FakeEngine(board)
        engine.start(ARM, lambda _line: None)
        edges: list[CounterSnapshot] = []

        def read() -> None:
            edges.append(parse_counters(engine.metrics_text()))

        hooks = LoadHooks(on_window_start=read, on_window_end=read)
        result = FakeLoad(board).run(request(board.base_url, streams=4), hooks)
        return edges[0], edges[1], result

    def test_engine_and_client_agree_on_the_tokens_of_the_window(self) -> None:
        before, after, result = self.counters(Faults())

        assert before.generation_tokens is not None
        assert after.generation_tokens is not None
        assert before.generation_tokens > 0
        assert after.generation_tokens - before.generation_tokens == result.output_tokens

    def test_foreign_traffic_shows_in_the_engine_only(self) -> None:
        before, after, result = self.counters(Faults(foreign_tokens=500))

        assert after.generation_tokens is not None
        assert before.generation_tokens is not None
        generated = after.generation_tokens - before.generation_tokens
        assert generated == result.output_tokens + 500

    def test_positions_fall_and_add_up_to_the_accepted_tokens(self) -> None:
        _, after, _ = self.counters(Faults())

        per_pos = after.num_accepted_tokens_per_pos
        assert per_pos is not None
        assert list(per_pos) == sorted(per_pos, reverse=True)
        assert sum(per_pos) == after.num_accepted_tokens

    def test_garbage_accepts_nothing_and_repeats_itself(self) -> None:
        _, after, result = self.counters(Faults(is_garbage=True))

        assert after.num_accepted_tokens == 0
        assert set(result.records[0].text.split()) == {"a"}

    def test_runs_of_one_seed_are_equal(self) -> None:
        assert self.counters(Faults()) == self.counters(Faults())
