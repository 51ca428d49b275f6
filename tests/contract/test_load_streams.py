"""The closed loop over HTTP: what only the real load client can show."""

from __future__ import annotations

import threading
import time

import pytest
from load_setup import MAX_TOKENS, PACE, WORKLOAD, Edges, http_load, nothing, request

from orchestrator.core.requests import Moment, RequestFault, RequestRecord, TokenSource
from orchestrator.core.sampling import Shaping
from orchestrator.core.window import tokens_between
from orchestrator.errors import TransientError
from orchestrator.fakes.openai import (
    Act,
    EngineSettings,
    Script,
    SseServer,
    engine_server,
    good,
    one_fault,
    refused,
    serving,
    text,
)
from orchestrator.load.arrivals import LONGEST_WAIT_S, wait_s


def test_load_client_and_engine_agree_to_the_token_between_idle_moments() -> None:
    with serving(engine_server(PACE)) as server:
        edges = Edges(server.engine.metrics)
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
    http_load(shaping=Shaping(top_p=0.8, top_k=5), ignore_eos=False).run(
        request(sse_server.url), nothing
    )

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


@pytest.mark.parametrize("streams", [1, 4])
def test_load_whose_engine_falls_silent_is_given_up_as_a_whole(streams: int) -> None:
    """E13: every completion hangs; nobody waits for three failures of a stream in a row."""
    with serving(engine_server(PACE)) as server:
        answer = server.behaviour
        hang = Script(parts=(text("a"), Act.HANG))
        last = 3 * streams
        server.behaviour = lambda number, body: hang if number >= last else answer(number, body)

        client = http_load(block_s=20.0, stall_timeout_s=20.0, block_silence_s=0.5)
        result = client.run(request(server.url, streams=streams), nothing)

    assert result.silent_s is not None
    assert result.silent_s >= 0.5
    given_up = [record for record in result.records if record.fault is not None]
    assert {record.fault for record in given_up} == {RequestFault.STALLED}
    assert len(given_up) == streams
    assert all("no request got a token" in (record.error or "") for record in given_up)
    assert any(record.fault is None for record in result.records)


def test_load_whose_engine_is_silent_from_the_first_request_on_opens_no_window() -> None:
    moments: list[Moment] = []
    with serving(engine_server(PACE)) as server:
        server.behaviour = lambda _number, _body: Script(parts=(Act.HANG,))

        client = http_load(stall_timeout_s=20.0, block_silence_s=0.3)
        result = client.run(request(server.url), moments.append)

    assert result.silent_s is not None
    assert (result.records, result.window) == ((), None)
    assert moments == [Moment.BEFORE, Moment.AFTER]


def test_load_with_one_stuck_stream_among_others_is_not_silent() -> None:
    hang = Script(parts=(text("a"), Act.HANG))
    with serving(engine_server(PACE)) as server:
        answer = server.behaviour
        server.behaviour = lambda number, body: hang if number == 5 else answer(number, body)

        # It hangs for longer than the block may be silent, and its window outlasts that.
        client = http_load(block_s=4.0, stall_timeout_s=2.4, block_silence_s=2.0)
        result = client.run(request(server.url), nothing)

    assert [r.error for r in result.records if r.fault] == ["no byte for 2.4 s after 1 chunks"]
    assert result.silent_s is None


def test_load_of_a_server_without_room_is_not_silent() -> None:
    """A refusal is an answer, however often it comes and whatever else hangs meanwhile."""
    with serving(engine_server(PACE)) as server:
        hang, full = Script(parts=(Act.HANG,)), refused(retry_after="0.02")
        server.behaviour = lambda number, _body: full if number else hang

        client = http_load(
            request_timeout_s=3.0,
            stall_timeout_s=2.0,
            block_silence_s=1.0,
            warmup_requests_per_stream=0,
        )
        result = client.run(request(server.url), nothing)

    assert result.silent_s is None
    assert [r.error for r in result.records if r.fault is RequestFault.STALLED] == [
        "no byte for 2 s after 0 chunks"
    ]
    assert result.num_refused > 10


def test_load_whose_tokens_come_slowly_is_not_silent() -> None:
    """An answer may take longer than a block may be silent, as long as tokens come."""
    pace = EngineSettings(ttft_s=0.004, gap_s=0.25, tokens_per_chunk=3)
    with serving(engine_server(pace)) as server:
        client = http_load(block_silence_s=1.2, warmup_requests_per_stream=0)
        result = client.run(request(server.url, streams=1), nothing)

    assert result.silent_s is None
    assert max(record.e2e_s or 0.0 for record in result.records) > 1.2
