"""What the router passes, and what it notes of it."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_scene import DONE, SSE, FakeEngine, ask, event, router_of

from orchestrator.traffic import ProfileSettings, profile, read_log
from serve_apps.engine.errors import EngineNotRunning
from serve_apps.router.records import Records, Tally, stated_temperature

BODY = {"prompt": "some secret text", "temperature": 0.7}
USAGE = {"prompt_tokens": 5, "completion_tokens": 12, "total_tokens": 17}
JSON = {"content-type": "application/json"}


def passed(*chunks: object, head: object = (200, SSE), body: object = BODY) -> Any:
    """Return what the client got and the records."""
    router = router_of({"v1": FakeEngine((None, head, *chunks))})
    reply = asyncio.run(ask(router, body))
    return reply, router.requests(0)["records"]


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=12))
def test_chunks_are_passed_as_they_come(chunks: list[bytes]) -> None:
    reply, _ = passed(*chunks)
    assert reply.chunks == chunks


def test_record_of_a_stream_with_usage_holds_its_tokens() -> None:
    before = time.time()
    _, (record,) = passed(
        event(choices=["a"]), event(choices=["bcd"]), event(choices=[], usage=USAGE), DONE
    )
    assert before <= record["started_at"] <= record["ended_at"] <= time.time()
    assert {k: v for k, v in record.items() if not k.endswith("_at")} == {
        "number": 1,
        "temperature": 0.7,
        "streams_at_start": 1,
        "output_tokens": 12,
        "output_tokens_from": "usage",
        "prompt_tokens": 5,
    }


def test_record_of_a_stream_without_usage_counts_its_chunks_and_says_so() -> None:
    events = [event(choices=[n], usage=None) for n in range(7)]
    _, (record,) = passed(*events[:3], b"".join(events[3:5]), *events[5:], DONE)
    assert (record["output_tokens"], record["output_tokens_from"]) == (7, "chunks")
    assert record["prompt_tokens"] is None


ROLE = event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])
SPOKEN = event(choices=[{"index": 0, "delta": {"role": "assistant", "content": "a"}}])
OTHER_ROLE = event(choices=[{"index": 1, "delta": {"role": "assistant", "content": ""}}])
BOTH_ROLES = event(choices=[{"index": n, "delta": {"role": "assistant"}} for n in range(2)])
WORD = event(choices=[{"index": 0, "delta": {"content": '"role"'}}])


@pytest.mark.parametrize(
    ("chunks", "tokens"),
    [
        ((ROLE, WORD, WORD, DONE), 2),
        ((ROLE + WORD, WORD, DONE), 2),
        ((ROLE, DONE), 0),
        ((ROLE,), 0),
        ((ROLE[:-2],), 0),
        ((ROLE, OTHER_ROLE, WORD, WORD, DONE), 2),
        ((BOTH_ROLES, WORD, WORD, DONE), 2),
        ((ROLE[:20], ROLE[20:], WORD, DONE), 1),
        ((ROLE, WORD[:-1], WORD[-1:], DONE), 1),
        ((WORD, DONE[:5], DONE[5:]), 1),
        ((SPOKEN, WORD, DONE), 2),
        ((WORD, ROLE, DONE), 2),
        ((b'data: {"role": 1, "choices": [3]}\n\n', WORD, DONE), 2),
        ((b'data: {"role"\n\n', WORD, DONE), 2),
    ],
)
def test_event_that_says_who_speaks_is_no_token(chunks: tuple[bytes, ...], tokens: int) -> None:
    _, (record,) = passed(*chunks)
    assert (record["output_tokens"], record["output_tokens_from"]) == (tokens, "chunks")


def test_record_of_a_whole_answer_has_its_usage_however_it_is_cut() -> None:
    text = json.dumps(
        {"choices": [{"text": '{"usage": {"completion_tokens": 1}}'}], "usage": USAGE}
    )
    chunks = [text[:30].encode(), text[30:].encode()]
    _, (record,) = passed(*chunks, head=(200, JSON))
    assert (record["output_tokens"], record["prompt_tokens"]) == (12, 5)


def test_record_of_a_whole_answer_that_breaks_off_knows_no_tokens() -> None:
    router = router_of(
        {"v1": FakeEngine((None, (200, JSON), b'{"usage', EngineNotRunning("b", "x")))}
    )
    with pytest.raises(EngineNotRunning):
        asyncio.run(ask(router, BODY))
    (record,) = router.requests(0)["records"]
    assert (record["output_tokens"], record["output_tokens_from"]) == (None, None)
    assert router.counts()["v1"] == {"answered": 0, "failed": 1, "under_way": 0}


def test_stream_that_its_client_leaves_is_recorded_with_what_was_passed() -> None:
    router = router_of({"v1": FakeEngine((None, (200, SSE), *[event(n=n) for n in range(9)]))})
    asyncio.run(ask(router, BODY, leaves_after=4))
    (record,) = router.requests(0)["records"]
    assert record["output_tokens_from"] == "chunks"
    assert 4 <= record["output_tokens"] <= 5


FAILURE = {"message": "EngineCore encountered an issue", "type": "InternalServerError"}


@pytest.mark.parametrize(
    ("head", "chunks", "failed"),
    [
        ((200, SSE), [event(choices=["a"]), event(error={**FAILURE, "code": 500}), DONE], 1),
        ((200, SSE), [event(choices=["a"]) + event(error=FAILURE) + DONE], 1),
        ((200, SSE), [event(object="error", code=500, **FAILURE)], 1),
        ((200, SSE), [event(error={"message": "too long", "code": 400}), DONE], 0),
        ((200, SSE), [event(choices=["a"], error=None), DONE], 0),
        ((200, SSE), [event(choices=[{"text": '{"error": 1}'}]), DONE], 0),
        ((200, SSE), [event(error=FAILURE)[:-9]], 0),
        ((200, JSON), [json.dumps({"error": {**FAILURE, "code": 503}}).encode()], 1),
        ((200, JSON), [json.dumps({"choices": ['"error"']}).encode()], 0),
        ((200, JSON), [b'["error"]'], 0),
        ((400, JSON), [json.dumps({"error": "which engine says so"}).encode()], 0),
    ],
)
def test_answer_that_begins_well_and_tells_a_failure_is_counted_as_one(
    head: object, chunks: list[bytes], failed: int
) -> None:
    """A stream's status is 200 before its first token, whatever happens then."""
    router = router_of({"v1": FakeEngine((None, head, *chunks))})

    reply = asyncio.run(ask(router, BODY))

    assert reply.chunks == chunks
    assert router.counts()["v1"] == {"answered": 1 - failed, "failed": failed, "under_way": 0}


@pytest.mark.parametrize("status", [400, 500])
def test_request_that_the_engine_refuses_is_not_traffic(status: int) -> None:
    reply, records = passed(b"{}", head=(status, JSON))
    assert (reply.status, records) == (status, [])


def test_only_completions_of_clients_are_recorded_and_counted() -> None:
    async def run() -> tuple[int, dict[str, int]]:
        router = router_of({"v1": FakeEngine((None, (200, {}), b'{"data": []}'))})
        for path in ("/health", "/version", "/v1/models"):
            await ask(router, path=path)
        own = {"x-specpilot-token": router.own_token()}
        await ask(router, BODY, headers=own)
        await ask(router, BODY, path="/tokenize")
        await ask(router, BODY, headers={"x-specpilot-app": "v1"})
        await ask(router, BODY, path="/v1/chat/completions")
        return len(router.requests(0)["records"]), router.counts()["v1"]

    assert asyncio.run(run()) == (1, {"answered": 1, "failed": 0, "under_way": 0})


def test_failures_of_probes_and_own_requests_are_not_counted_as_clients() -> None:
    async def run() -> dict[str, int]:
        router = router_of({"v1": FakeEngine((EngineNotRunning("b", "x"),))})
        await ask(router, path="/health")
        await ask(router, BODY, headers={"x-specpilot-token": router.own_token()})
        await ask(router, BODY)
        return router.counts()["v1"]

    assert asyncio.run(run()) == {"answered": 0, "failed": 1, "under_way": 0}


def test_every_request_that_an_engine_answers_is_under_way() -> None:
    async def run() -> list[int]:
        goes_on = asyncio.Event()
        engine = FakeEngine((None, (200, {}), b'{"data": []}', goes_on))
        router = router_of({"v1": engine})
        own = {"x-specpilot-token": router.own_token()}
        asked = [
            asyncio.create_task(each)
            for each in (
                ask(router, BODY),
                ask(router, BODY, headers=own),
                ask(router, BODY, headers={**own, "x-specpilot-app": "v1"}),
                ask(router, BODY, path="/tokenize"),
                ask(router, path="/health"),
                ask(router, path="/v1/models"),
            )
        ]
        await asyncio.sleep(0.02)
        under_way = [router.counts()["v1"]["under_way"]]
        goes_on.set()
        await asyncio.gather(*asked)
        return [*under_way, router.counts()["v1"]["under_way"]]

    assert asyncio.run(run()) == [6, 0]


def test_streams_under_way_are_those_at_the_start() -> None:
    async def run() -> list[int]:
        goes_on = asyncio.Event()
        engine = FakeEngine((None, (200, SSE), event(text="a"), goes_on, DONE))
        router = router_of({"v1": engine})
        asked = []
        for _ in range(3):
            asked.append(asyncio.create_task(ask(router, BODY)))
            await asyncio.sleep(0.02)
        goes_on.set()
        await asyncio.gather(*asked)
        return sorted(record["streams_at_start"] for record in router.requests(0)["records"])

    assert asyncio.run(run()) == [1, 2, 3]


def test_records_hold_no_text_and_no_header() -> None:
    router = router_of({"v1": FakeEngine((None, (200, SSE), event(text="an answer"), DONE))})
    asyncio.run(ask(router, BODY, headers={"x-forwarded-for": "192.0.2.7", "user-agent": "u-a"}))
    told = json.dumps(router.requests(0))
    for hidden in ("secret", "an answer", "192.0.2.7", "u-a"):
        assert hidden not in told


def add(records: Records, number: int) -> None:
    records.add(
        started_at=float(number),
        ended_at=number + 1.5,
        temperature=None if number % 2 else 0.7,
        streams_at_start=1,
        tokens={"output_tokens": 10, "output_tokens_from": "usage", "prompt_tokens": 3},
    )


@given(
    st.integers(1, 5),
    st.lists(st.integers(0, 6), max_size=12),
)
def test_reader_gets_each_record_once_or_hears_that_it_is_lost(
    limit: int, steps: list[int]
) -> None:
    records, after, got, lost, total = Records(limit), 0, list[int](), 0, 0
    for step in steps:
        for _ in range(step):
            total += 1
            add(records, total)
        found = records.since(after)
        got += [record["number"] for record in found["records"]]
        lost += found["lost"]
        after = found["last"]
    assert after == total
    assert len(got) + lost == total
    assert got == sorted(set(got))


def test_reader_of_a_router_that_was_restarted_begins_again() -> None:
    first, second = Records(), Records()
    add(second, 1)
    found = second.since(41)
    assert [record["number"] for record in found["records"]] == [1]
    assert found["boot"] != first.since(0)["boot"]


def test_records_are_a_log_that_traffic_reads() -> None:
    records = Records()
    for number in range(1, 5):
        add(records, number)
    log = read_log(json.dumps(record).encode() for record in records.since(0)["records"])

    assert log.skipped == {}
    found = profile(log, ProfileSettings(default_temperature=1.0))
    assert found.by_tokens
    assert {temperature for _, temperature in found.weights} == {0.7, 1.0}
    assert sum(request.output_tokens or 0 for request in log.requests) == 40


@pytest.mark.parametrize(
    ("value", "found"),
    [(0, 0.0), (1.5, 1.5), (True, None), ("1", None), (None, None), (float("nan"), None)],
)
def test_temperature_is_what_is_stated_as_a_number(value: object, found: float | None) -> None:
    assert stated_temperature({"temperature": value}) == found


def test_temperature_of_a_request_without_one_is_none() -> None:
    assert stated_temperature({}) is None
    assert stated_temperature({"temperature": 10**400}) is None


def test_error_event_in_the_tail_is_no_usage() -> None:
    tally = Tally("text/event-stream; charset=utf-8")
    for chunk in (event(text="a"), b'data: ["usage"]\n\n', b'data: {"usage": \n\n', DONE):
        tally.saw(chunk)
    assert tally.tokens() == {
        "output_tokens": 3,
        "output_tokens_from": "chunks",
        "prompt_tokens": None,
    }


def test_answer_that_is_too_large_to_keep_has_no_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve_apps.router.records._MAX_KEPT_BYTES", 10)
    tally = Tally("application/json")
    for chunk in (b'{"text": 1, ', b'"usage": {"completion_tokens": 1}}'):
        tally.saw(chunk)
    assert tally.tokens()["output_tokens"] is None
