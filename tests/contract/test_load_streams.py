"""The load: what every load client owes the trial, and what only the real one can show."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from sse_server import Act, Script, SseServer, free_port, good, serving, text

from orchestrator.core.exposition import parse_counters
from orchestrator.core.types import (
    Arm,
    Cell,
    LoadResult,
    Moment,
    RequestFault,
    RequestRecord,
    TokenSource,
)
from orchestrator.core.window import tokens_between
from orchestrator.errors import TransientError
from orchestrator.fakes.board import FakeBoard, Faults
from orchestrator.fakes.engine import FakeEngine
from orchestrator.fakes.load import FakeLoad
from orchestrator.fakes.openai import EngineSettings, engine_server, one_fault, refused
from orchestrator.load.arrivals import LONGEST_WAIT_S, wait_s
from orchestrator.load.sequence import CallSequence
from orchestrator.load.settings import LoadSettings
from orchestrator.load.streams import HttpLoad
from orchestrator.load.workload import Prompt, Workload
from orchestrator.ports import LoadClient, LoadRequest

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
MAX_TOKENS = 24
PACE = EngineSettings(ttft_s=0.004, gap_s=0.002, tokens_per_chunk=3)
"""Answers of about 20 ms, so that a window of 0.3 s holds several."""


def nothing(_moment: Moment) -> None:
    pass


def settings(**changes: Any) -> LoadSettings:
    values: dict[str, Any] = {
        "top_p": 1.0,
        "top_k": 0,
        "endpoint": "completions",
        "max_tokens": MAX_TOKENS,
        "ignore_eos": True,
        "block_s": 0.3,
        "warmup_requests_per_stream": 1,
        "warmup_max_tokens": 16,
        "request_timeout_s": 10.0,
    }
    return LoadSettings(**(values | changes))


def http_load(**changes: Any) -> HttpLoad:
    return HttpLoad(WORKLOAD, settings=settings(**changes))


def request(
    base_url: str, *, streams: int = 2, seed: int = 5, request_rate: float = 0.0
) -> LoadRequest:
    cell = Cell(streams=streams, temperature=0.7, request_rate=request_rate)
    return LoadRequest(base_url=base_url, model="m", cell=cell, seed=seed)


@dataclass(frozen=True, slots=True)
class Setup:
    """A load client and where it sends."""

    client: LoadClient
    base_url: str
    fail_every: Callable[[int], Setup]
    dead_url: str


def real_setup(server: SseServer) -> Setup:
    answer = server.behaviour

    def fail_every(count: int) -> Setup:
        reset = Script(parts=(text("a"), Act.RESET))
        server.behaviour = lambda number, body: (
            reset if number % count == 0 else answer(number, body)
        )
        return real

    real = Setup(http_load(), server.url, fail_every, f"http://127.0.0.1:{free_port()}")
    return real


def fake_setup(faults: Faults | None = None) -> Setup:
    board = FakeBoard(faults={ARM: faults or Faults()})
    FakeEngine(board).start(ARM, lambda _line: None)
    client = FakeLoad(board, block_s=5.0, max_tokens=MAX_TOKENS)

    def fail_every(count: int) -> Setup:
        return fake_setup(Faults(reset_every=count))

    return Setup(client, board.base_url, fail_every, "http://elsewhere.invalid:8000")


@pytest.fixture(params=["http", "fake"])
def setup(request: pytest.FixtureRequest) -> Iterator[Setup]:
    if request.param == "fake":
        yield fake_setup()
        return
    with serving(engine_server(PACE)) as server:
        yield real_setup(server)


def succeeded(result: LoadResult) -> list[RequestRecord]:
    return [record for record in result.records if record.fault is None]


class TestLoadClientContract:
    def test_run_observes_each_moment_in_its_order(self, setup: Setup) -> None:
        moments: list[Moment] = []

        setup.client.run(request(setup.base_url), moments.append)

        around = [moment for moment in moments if moment is not Moment.DURING]
        assert around == [Moment.BEFORE, Moment.OPEN, Moment.CLOSE, Moment.AFTER]
        during = [index for index, moment in enumerate(moments) if moment is Moment.DURING]
        assert during
        assert all(1 < index < len(moments) - 2 for index in during)

    def test_run_records_are_whole(self, setup: Setup) -> None:
        result = setup.client.run(request(setup.base_url), nothing)

        assert (result.num_failed, result.num_refused, result.num_lost_streams) == (0, 0, 0)
        for record in result.records:
            assert record.text
            assert record.ttft_s is not None
            assert record.e2e_s is not None
            assert 0 < record.ttft_s <= record.e2e_s
            assert record.output_tokens == record.max_tokens
            assert record.token_source is TokenSource.USAGE
            assert record.chunk_tokens is not None
            assert len(record.chunk_tokens) == len(record.chunk_times_s)
            assert list(record.chunk_tokens) == sorted(set(record.chunk_tokens))
            assert record.chunk_tokens[-1] == record.output_tokens
        assert len({record.request_id for record in result.records}) == len(result.records)
        starts = [record.started_s for record in result.records]
        assert starts == sorted(starts)

    def test_run_every_stream_is_busy_at_both_edges_of_the_window(self, setup: Setup) -> None:
        """No ramp inside: at either edge as many requests run as there are streams."""
        result = setup.client.run(request(setup.base_url, streams=3), nothing)

        assert result.opening is not None
        assert result.closing is not None
        for edge in (result.opening, result.closing):
            running = [
                record
                for record in succeeded(result)
                if record.started_s <= edge.start_s
                and record.started_s + (record.e2e_s or 0.0) >= edge.end_s
            ]
            # A stream may be between two answers while an edge is observed.
            assert len(running) <= 3
        first = [r for r in result.records if r.started_s <= result.opening.start_s]
        assert len(first) >= 3
        last_s = max(record.started_s for record in result.records)
        assert last_s <= result.closing.end_s
        assert max(r.started_s + (r.e2e_s or 0.0) for r in succeeded(result)) > last_s

    def test_run_every_stream_asks_more_than_once(self, setup: Setup) -> None:
        result = setup.client.run(request(setup.base_url, streams=3), nothing)

        assert len(result.records) > 6

    def test_run_some_failures_are_counted_and_the_window_goes_on(self, setup: Setup) -> None:
        """B19: a reset costs its request and not the cell."""
        failing = setup.fail_every(5)

        result = failing.client.run(request(failing.base_url), nothing)

        assert result.window is not None
        assert 0 < result.num_failed < len(result.records)
        assert result.num_lost_streams == 0
        failed = [record for record in result.records if record.fault is not None]
        assert {record.fault for record in failed} == {RequestFault.CONNECTION}
        assert all(record.error and record.e2e_s is None for record in failed)

    def test_run_nobody_answers_every_stream_gives_up(self, setup: Setup) -> None:
        result = setup.client.run(request(setup.dead_url), nothing)

        assert result.window is None
        assert result.num_lost_streams >= 1
        assert result.records
        assert {record.fault for record in result.records} == {RequestFault.CONNECTION}

    def test_run_same_seed_asks_the_same_prompts(self, setup: Setup) -> None:
        first = setup.client.run(request(setup.base_url, streams=1), nothing)
        second = setup.client.run(request(setup.base_url, streams=1), nothing)
        other = setup.client.run(request(setup.base_url, streams=1, seed=6), nothing)

        def prompts(result: LoadResult) -> list[str]:
            return [record.prompt_id for record in result.records][:5]

        assert prompts(first) == prompts(second)
        assert prompts(first) != prompts(other)


class _Edges:
    """Reads an engine's output tokens at each moment."""

    def __init__(self, read: Callable[[], str]) -> None:
        self._read = read
        self.tokens: dict[Moment, float] = {}

    def __call__(self, moment: Moment) -> None:
        counted = parse_counters(self._read()).total.generation_tokens
        assert counted is not None
        self.tokens[moment] = counted


def test_load_client_and_engine_agree_to_the_token_between_idle_moments() -> None:
    with serving(engine_server(PACE)) as server:
        edges = _Edges(server.engine.metrics)
        result = http_load().run(request(server.url, streams=8), edges)

    generated = edges.tokens[Moment.AFTER] - edges.tokens[Moment.BEFORE]
    assert generated == sum(record.output_tokens or 0 for record in result.records)
    assert result.window is not None
    inside = edges.tokens[Moment.CLOSE] - edges.tokens[Moment.OPEN]
    # The server runs beside the client here; what arrived meanwhile is small against the window.
    assert tokens_between(result.records, result.window) == pytest.approx(inside, rel=0.25)


def test_load_warm_up_is_drained_before_anything_is_read() -> None:
    with serving(engine_server(PACE)) as server:
        seen: dict[Moment, tuple[int, int]] = {}

        def look(moment: Moment) -> None:
            # The client is done at [DONE], the server a moment later, when it closed the answer.
            deadline = time.monotonic() + 5.0
            idle = moment in (Moment.BEFORE, Moment.AFTER)
            while idle and server.in_flight and time.monotonic() < deadline:
                time.sleep(0.001)
            seen[moment] = (len(server.bodies), server.in_flight)

        client = http_load(warmup_requests_per_stream=2, warmup_max_tokens=4)
        result = client.run(request(server.url, streams=4), look)

        assert seen[Moment.BEFORE] == (8, 0)
        assert seen[Moment.AFTER] == (8 + len(result.records), 0)
        assert {body["max_tokens"] for body in server.bodies[:8]} == {4}


def test_load_first_answers_are_staggered_and_the_rest_are_full() -> None:
    with serving(engine_server(PACE)) as server:
        http_load(warmup_requests_per_stream=0).run(request(server.url, streams=4), nothing)

        asked = [body["max_tokens"] for body in server.bodies]
    assert sorted(asked[:4]) == [6, 12, 18, 24]
    assert set(asked[4:]) == {MAX_TOKENS}


def test_load_observes_in_a_thread_because_observing_may_block(sse_server: SseServer) -> None:
    threads: list[int] = []

    http_load().run(request(sse_server.url), lambda _m: threads.append(threading.get_ident()))

    assert threading.get_ident() not in threads


def test_load_keeps_its_concurrency_and_never_more(sse_server: SseServer) -> None:
    http_load().run(request(sse_server.url, streams=6), nothing)

    assert sse_server.most_in_flight == 6


def test_load_never_sends_a_prompt_twice_in_a_boot(sse_server: SseServer) -> None:
    client = http_load()
    for seed in (5, 6):
        client.run(request(sse_server.url, seed=seed), nothing)

    prompts = [body["prompt"] for body in sse_server.bodies]
    assert len(set(prompts)) == len(prompts) > 3 * len(WORKLOAD.prompts)


def test_load_without_salt_repeats_prompts_for_a_prefix_cache(sse_server: SseServer) -> None:
    http_load(salt=False).run(request(sse_server.url), nothing)

    assert {body["prompt"] for body in sse_server.bodies} == {p.text for p in WORKLOAD.prompts}


def test_load_two_arms_get_the_same_prompts_and_seeds(sse_server: SseServer) -> None:
    def asked() -> dict[str, int]:
        sse_server.bodies.clear()
        http_load().run(request(sse_server.url, streams=3), nothing)
        return {body["prompt"]: body["seed"] for body in sse_server.bodies}

    first, second = asked(), asked()

    both = first.keys() & second.keys()
    assert len(both) > 10
    assert all(first[prompt] == second[prompt] for prompt in both)
    assert len(set(first.values())) == len(first)


def test_load_writes_the_cell_and_the_settings_into_requests(sse_server: SseServer) -> None:
    http_load(top_p=0.8, top_k=5, ignore_eos=False).run(request(sse_server.url), nothing)

    body = sse_server.bodies[-1]
    expected = {"temperature": 0.7, "top_p": 0.8, "top_k": 5, "ignore_eos": False, "model": "m"}
    assert body.items() >= expected.items()


def test_load_engine_that_dies_is_not_asked_for_ever(sse_server: SseServer) -> None:
    sse_server.behaviour = lambda _number, _body: Script(status=500, parts=(b"EngineDeadError",))

    result = http_load().run(request(sse_server.url), nothing)

    assert result.window is None
    assert len(result.records) <= 6
    assert {record.error for record in result.records} == {"HTTP 500: EngineDeadError"}


def test_load_stream_that_is_lost_ends_the_window_early(sse_server: SseServer) -> None:
    dead = Script(status=500, parts=(b"EngineDeadError",))
    sse_server.behaviour = lambda number, body: good(body) if number < 40 else dead

    result = http_load(block_s=30.0).run(request(sse_server.url), nothing)

    assert result.num_lost_streams >= 1
    assert result.window is not None
    assert result.window.duration_s < 20


def test_load_stuck_stream_is_ended_by_the_timeout() -> None:
    hang = Script(parts=(text("a"), Act.HANG))
    with serving(engine_server(PACE)) as server:
        answer = server.behaviour
        stuck = 2 * 2 + 1
        server.behaviour = lambda number, body: hang if number == stuck else answer(number, body)

        client = http_load(block_s=0.3, stall_timeout_s=0.4)
        result = client.run(request(server.url), nothing)

    stalled = [record for record in result.records if record.fault is not None]
    assert [record.fault for record in stalled] == [RequestFault.STALLED]


@pytest.mark.parametrize("status", [429, 503])
def test_load_refusal_is_asked_again_after_the_time_that_the_server_names(status: int) -> None:
    with serving(engine_server(PACE)) as server:
        answer = server.behaviour
        server.behaviour = one_fault(
            7, refused(status, retry_after="0"), lambda body: answer(0, dict(body))
        )
        result = http_load().run(request(server.url, streams=1), nothing)

    assert (result.num_refused, result.num_failed) == (1, 0)
    (lost,) = [record for record in result.records if record.fault is RequestFault.REFUSED]
    again = [r for r in result.records if r.request_id == f"{lost.request_id}-1"]
    assert [(r.prompt_id, r.fault) for r in again] == [(lost.prompt_id, None)]


def test_load_server_without_room_never_opens_the_window() -> None:
    busy = refused(429, retry_after="0")
    with serving(engine_server(PACE)) as server:
        server.behaviour = lambda _number, _body: busy
        result = http_load(request_timeout_s=0.5, warmup_requests_per_stream=0).run(
            request(server.url), nothing
        )

    assert result.window is None
    assert result.num_refused == len(result.records) > 0


@pytest.mark.parametrize(
    ("asked", "refusals", "waited"), [(None, 0, 0.5), (None, 2, 2.0), (7.0, 0, 7.0), (1e9, 0, 30.0)]
)
def test_wait_after_a_refusal_is_what_the_server_asks_within_reason(
    asked: float | None, refusals: int, waited: float
) -> None:
    record = RequestRecord(
        request_id="r",
        prompt_id="p",
        prompt_tokens=None,
        output_tokens=None,
        token_source=TokenSource.NONE,
        finish_reason=None,
        started_s=0.0,
        ttft_s=None,
        e2e_s=None,
        chunk_times_s=(),
        fault=RequestFault.REFUSED,
        error="HTTP 429",
        retry_after_s=asked,
    )

    assert wait_s(record, refusals) == waited <= LONGEST_WAIT_S


def test_load_failing_observation_ends_the_run(sse_server: SseServer) -> None:
    def fail(moment: Moment) -> None:
        if moment is Moment.OPEN:
            raise TransientError("no counters")

    with pytest.raises(TransientError, match="no counters"):
        http_load().run(request(sse_server.url), fail)


def test_load_token_budget_closes_the_window_before_its_time() -> None:
    with serving(engine_server(PACE)) as server:
        client = http_load(block_s=60.0, block_tokens=10 * MAX_TOKENS)
        result = client.run(request(server.url), nothing)

    assert result.window is not None
    assert result.window.duration_s < 30
    spent = sum(record.output_tokens or 0 for record in result.records)
    assert spent >= 10 * MAX_TOKENS


class TestOpenLoop:
    def test_arrivals_do_not_wait_for_answers(self) -> None:
        slow = EngineSettings(ttft_s=0.2, gap_s=0.01, tokens_per_chunk=12)
        with serving(engine_server(slow)) as server:
            result = http_load(block_s=0.6).run(
                request(server.url, streams=64, request_rate=60.0), nothing
            )

            assert server.most_in_flight > 3
        assert result.num_delayed == 0
        assert result.window is not None
        assert succeeded(result)

    def test_arrivals_are_the_same_for_every_arm(self) -> None:
        def asked() -> list[str]:
            with serving(engine_server(PACE)) as server:
                result = http_load().run(
                    request(server.url, streams=64, request_rate=80.0), nothing
                )
                return [record.prompt_id for record in result.records][:10]

        assert asked() == asked()

    def test_gaps_between_arrivals_have_the_mean_of_the_rate(self) -> None:
        with serving(engine_server(PACE)) as server:
            result = http_load(block_s=1.0).run(
                request(server.url, streams=256, request_rate=200.0), nothing
            )

        starts = [record.started_s for record in result.records]
        rate = (len(starts) - 1) / (starts[-1] - starts[0])
        # 200 arrivals have a standard error of 7 %.
        assert rate == pytest.approx(200.0, rel=0.35)

    def test_waiting_for_a_connection_is_counted_and_part_of_the_time(self) -> None:
        slow = EngineSettings(ttft_s=0.1, gap_s=0.001, tokens_per_chunk=12)
        with serving(engine_server(slow)) as server:
            result = http_load(block_s=0.5).run(
                request(server.url, streams=1, request_rate=40.0), nothing
            )

        assert result.num_delayed > 0
        longest = max(record.ttft_s or 0.0 for record in succeeded(result))
        assert longest > 0.15

    def test_dead_server_ends_the_load(self) -> None:
        dead = request(f"http://127.0.0.1:{free_port()}", streams=8, request_rate=200.0)

        result = http_load(block_s=30.0, warmup_requests_per_stream=0).run(dead, nothing)

        assert result.num_lost_streams == 1
        assert result.window is None


def test_calls_of_the_open_loop_are_one_sequence_of_full_answers() -> None:
    calls = CallSequence(WORKLOAD, settings(), request("http://x", streams=9, request_rate=1.0))

    made = [calls.measured(0, turn) for turn in range(7)]

    assert {call.sampling.max_tokens for call in made} == {MAX_TOKENS}
    assert len({call.prompt_id for call in made}) == 7


class TestFakeLoad:
    """What the fake adds: counters of the engine that move with the load."""

    def counters(self, faults: Faults) -> tuple[_Edges, LoadResult, FakeEngine]:
        board = FakeBoard(faults={ARM: faults})
        engine = FakeEngine(board)
        engine.start(ARM, lambda _line: None)
        edges = _Edges(engine.metrics_text)
        result = FakeLoad(board).run(request(board.base_url, streams=4), edges)
        return edges, result, engine

    def test_engine_and_client_agree_on_the_tokens(self) -> None:
        edges, result, _ = self.counters(Faults())

        assert edges.tokens[Moment.BEFORE] > 0
        total = edges.tokens[Moment.AFTER] - edges.tokens[Moment.BEFORE]
        assert total == sum(record.output_tokens or 0 for record in result.records)
        assert result.window is not None
        inside = edges.tokens[Moment.CLOSE] - edges.tokens[Moment.OPEN]
        assert tokens_between(result.records, result.window) == inside > 0

    def test_foreign_traffic_shows_in_the_engine_only(self) -> None:
        edges, result, _ = self.counters(Faults(foreign_tokens=500))

        total = edges.tokens[Moment.AFTER] - edges.tokens[Moment.BEFORE]
        assert total == sum(record.output_tokens or 0 for record in result.records) + 500

    def test_positions_fall_and_add_up_to_the_accepted_tokens(self) -> None:
        _, _, engine = self.counters(Faults())

        counters = parse_counters(engine.metrics_text()).total
        per_pos = counters.num_accepted_tokens_per_pos
        assert per_pos is not None
        assert list(per_pos) == sorted(per_pos, reverse=True)
        assert sum(per_pos) == counters.num_accepted_tokens

    def test_garbage_accepts_nothing_and_repeats_itself(self) -> None:
        _, result, engine = self.counters(Faults(is_garbage=True))

        assert parse_counters(engine.metrics_text()).total.num_accepted_tokens == 0
        assert set(result.records[0].text.split()) == {"a"}

    def test_runs_of_one_seed_are_equal(self) -> None:
        first, second = self.counters(Faults()), self.counters(Faults())

        assert (first[0].tokens, first[1]) == (second[0].tokens, second[1])
