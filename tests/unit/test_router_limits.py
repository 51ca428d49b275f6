"""Limits of what clients may send to the router."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_scene import DONE, SSE, FakeEngine, Reply, ask, event, router_of

from serve_apps.router.limits import (
    MAX_CLIENT_STREAMS,
    MAX_PROBES,
    Limits,
    Room,
    header_refusal,
    read_object,
)
from serve_apps.router.policy import Refusal

BODY = {"prompt": "one"}


async def parts_of(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def endless() -> AsyncIterator[bytes]:
    yield b'{"prompt": '
    await asyncio.Event().wait()


def sent(*parts: bytes, headers: dict[str, str] | None = None, **limits: float) -> Reply:
    engine = FakeEngine()
    router = router_of({"v1": engine}, limits=limits)
    reply = asyncio.run(ask(router, parts=parts_of(*parts), headers=headers))
    assert bool(engine.asked) == (reply.status == 200), "no engine hears of what is refused"
    return reply


def test_body_at_the_limit_passes_and_one_byte_more_does_not() -> None:
    body = json.dumps(BODY).encode()
    assert sent(body[:5], body[5:], max_body_bytes=len(body)).status == 200
    reply = sent(body[:5], body[5:], max_body_bytes=len(body) - 1)
    assert (reply.status, reply.headers["connection"]) == (413, "close")


def test_body_that_is_declared_too_long_is_refused_before_it_is_read() -> None:
    async def run() -> Reply:
        router = router_of({"v1": FakeEngine()}, limits={"max_body_bytes": 100})
        return await ask(router, parts=endless(), headers={"content-length": "101"})

    assert asyncio.run(run()).status == 413


def test_body_that_does_not_come_is_408_and_leaves_its_place() -> None:
    async def run() -> tuple[Reply, Reply]:
        limits = {"body_timeout_s": 0.02, "max_streams": 1}
        router = router_of({"v1": FakeEngine()}, limits=limits)
        return await ask(router, parts=endless()), await ask(router, BODY)

    slow, next_one = asyncio.run(run())
    assert (slow.status, slow.headers["connection"]) == (408, "close")
    assert next_one.status == 200


def test_headers_over_the_limit_are_431() -> None:
    assert sent(b"{}", headers={"x": "y" * 200}, max_header_bytes=100).status == 431
    assert header_refusal([(b"ab", b"cd")], Limits(max_header_bytes=8)) is None
    assert header_refusal([(b"ab", b"cde")], Limits(max_header_bytes=8)) is not None


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[1]", b'"text"', b"null", b'{"a": 1} x', b"[" * 100_000, b'{"a": "\xff"}'],
)
def test_body_that_is_no_json_object_is_400_and_not_repeated(body: bytes) -> None:
    reply = sent(body)
    assert reply.status == 400
    assert reply.error["code"] == 400
    assert reply.error["message"].startswith("the body is not ")


@given(st.dictionaries(st.text(), st.one_of(st.none(), st.integers(), st.text())))
def test_every_json_object_is_read_as_it_is(found: dict[str, object]) -> None:
    assert read_object(json.dumps(found).encode()) == found


@given(st.binary(max_size=50))
def test_any_bytes_are_an_object_or_a_refusal(body: bytes) -> None:
    assert isinstance(read_object(body), dict | Refusal)


def test_streams_beyond_the_limit_are_503_until_one_ends() -> None:
    async def run() -> tuple[list[Reply], Reply]:
        goes_on = asyncio.Event()
        engine = FakeEngine((None, (200, SSE), event(text="a"), goes_on, DONE))
        router = router_of({"v1": engine}, limits={"max_streams": 2})
        streams = [asyncio.create_task(ask(router, BODY)) for _ in range(2)]
        await asyncio.sleep(0.02)
        own = {"x-specpilot-token": router.own_token()}
        ours = asyncio.create_task(ask(router, BODY, headers=own))
        refused = [
            await ask(router, BODY),
            await ask(router, BODY, headers={"x-specpilot-app": "v1"}),
        ]
        goes_on.set()
        assert [reply.status for reply in await asyncio.gather(*streams, ours)] == [200] * 3
        return refused, await ask(router, BODY)

    refused, after = asyncio.run(run())
    assert [reply.status for reply in refused] == [503, 503]
    assert all(int(reply.headers["retry-after"]) > 0 for reply in refused)
    assert after.status == 200


def test_body_of_what_is_no_post_is_not_read() -> None:
    async def run() -> list[int]:
        paths = ("/health", "/v1/models", "/version")
        items = (None, (200, {}), b'{"data": []}')
        router = router_of({"v1": FakeEngine(items)}, limits={"max_body_bytes": 1})
        asked = (ask(router, path=path, parts=endless(), method="GET") for path in paths)
        return [(await asyncio.wait_for(each, 5)).status for each in asked]

    assert asyncio.run(run()) == [200, 200, 200]


def test_bodies_of_all_clients_have_a_bound_until_an_engine_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = json.dumps(BODY).encode()
    monkeypatch.setattr("serve_apps.router.deployment.MAX_BODIES_BYTES", len(body) * 3 // 2)

    async def half(come: asyncio.Event) -> AsyncIterator[bytes]:
        yield body[:10]
        await come.wait()
        yield body[10:]

    async def run() -> tuple[list[int], str]:
        comes, answers, ends = asyncio.Event(), asyncio.Event(), asyncio.Event()
        engine = FakeEngine((None, answers, (200, SSE), event(text="a"), ends, DONE))
        router = router_of({"v1": engine}, limits={"max_body_bytes": len(body)})
        own = {"x-specpilot-token": router.own_token()}
        first = asyncio.create_task(ask(router, parts=half(comes)))
        await asyncio.sleep(0.02)
        while_read = await ask(router, parts=parts_of(body))
        comes.set()
        await asyncio.sleep(0.02)
        while_waiting = await ask(router, parts=parts_of(body))
        ours = asyncio.create_task(ask(router, parts=parts_of(body), headers=own))
        await asyncio.sleep(0.02)
        answers.set()
        await asyncio.sleep(0.02)
        while_streaming = asyncio.create_task(ask(router, parts=parts_of(body)))
        await asyncio.sleep(0.02)
        ends.set()
        passed = await asyncio.gather(first, ours, while_streaming)
        replies = [while_read, while_waiting, *passed]
        return [reply.status for reply in replies], while_read.headers["retry-after"]

    assert asyncio.run(asyncio.wait_for(run(), 10)) == ([503, 503, 200, 200, 200], "5")


@given(st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=5), st.integers(0, 30))
def test_room_is_never_overdrawn_and_all_of_it_comes_back(
    asked: list[list[int]], most: int
) -> None:
    room = Room()
    with contextlib.ExitStack() as held:
        for amounts in asked:
            take = held.enter_context(room.share(most))
            for amount in amounts:
                before = room.taken
                assert take(amount) == (before + amount <= most)
                assert room.taken in (before, before + amount)
                assert room.taken <= most
    assert room.taken == 0


def test_health_has_few_places_of_its_own() -> None:
    async def run() -> list[list[int]]:
        goes_on = asyncio.Event()
        router = router_of({"v1": FakeEngine((None, goes_on, (200, {}), b""))})
        probes = [asyncio.create_task(ask(router, path="/health")) for _ in range(MAX_PROBES)]
        await asyncio.sleep(0.02)
        refused = await asyncio.wait_for(ask(router, path="/health"), 5)
        own = {"x-specpilot-token": router.own_token()}
        others = [
            asyncio.create_task(ask(router, path="/health", headers=own)),
            asyncio.create_task(ask(router, BODY)),
        ]
        await asyncio.sleep(0.02)
        goes_on.set()
        passed = await asyncio.gather(*probes, *others)
        after = await ask(router, path="/health")
        return [[refused.status], [reply.status for reply in passed], [after.status]]

    assert asyncio.run(run()) == [[503], [200] * (MAX_PROBES + 2), [200]]


def test_client_that_leaves_gives_its_place_back() -> None:
    async def run() -> int:
        never = asyncio.Event()
        engine = FakeEngine((None, (200, SSE), event(text="a"), never))
        router = router_of({"v1": engine}, limits={"max_streams": 1})
        await ask(router, BODY, leaves_after=1)
        assert engine.answers[0].is_cancelled
        assert router.counts()["v1"] == {"answered": 1, "failed": 0, "under_way": 0}
        return (await ask(router, BODY, leaves_after=1)).status

    assert asyncio.run(run()) == 200


def test_limits_change_in_place_and_a_wrong_one_changes_nothing() -> None:
    router = router_of({"v1": FakeEngine()}, limits={"max_body_bytes": 3})
    with pytest.raises(ValueError, match="max_streams"):
        router.reconfigure({"weights": {}, "limits": {"max_streams": MAX_CLIENT_STREAMS + 1}})
    assert asyncio.run(ask(router, BODY)).status == 413
    router.reconfigure({"weights": {"v1": 1.0}})
    assert asyncio.run(ask(router, BODY)).status == 200


@pytest.mark.parametrize("name", [each.name for each in fields(Limits)])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_limit_that_is_no_limit_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"limits.{name}"):
        Limits.from_dict({name: value})


def test_unknown_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="max_flow"):
        Limits.from_dict({"max_flow": 1})
