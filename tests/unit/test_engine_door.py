"""An engine's door and the router's way through it, in front of a server that a test scripts."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile

import pytest
from door_scene import CHUNKED, all_of, answer_of, framed, held_until, in_loop, scene
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_apps.engine import door as door_module
from serve_apps.engine.door import Door
from serve_apps.engine.errors import EngineNotRunning
from serve_apps.router.passage import DoorShut, Item, request_bytes


@pytest.mark.parametrize("host", [None, "127.0.0.1"])
@in_loop
async def test_answer_comes_through_with_its_head_and_its_chunks(host: str | None) -> None:
    answering = answer_of(CHUNKED, framed(b"data: a\n\n"), framed(b"data: b\n\n", b""))
    async with scene(answering, host=host) as found:
        items = await all_of(found.ask(b'{"prompt": 1}'))
        head, _, body = found.asked[0].partition(b"\r\n\r\n")
    assert items == [
        None, (200, {"content-type": "text/event-stream"}), b"data: a\n\n", b"data: b\n\n",
    ]  # fmt: skip
    assert head.startswith(b"POST /v1/completions HTTP/1.1\r\nx-own: 1\r\n")
    assert body == b'{"prompt": 1}'


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=6),
    st.lists(st.integers(1, 50), min_size=1, max_size=5),
)
def test_chunks_are_those_that_the_engine_framed_however_it_sends_them(
    chunks: list[bytes], sizes: list[int]
) -> None:
    whole, parts = CHUNKED + framed(*chunks, b""), list[bytes]()
    while whole:
        size = sizes[len(parts) % len(sizes)]
        parts.append(whole[:size])
        whole = whole[size:]

    async def run() -> list[Item]:
        async with scene(answer_of(*parts)) as found:
            return await all_of(found.ask())

    assert asyncio.run(run())[2:] == chunks


@pytest.mark.parametrize("length", [b"content-length: 10\r\n", b""])
@in_loop
async def test_body_without_chunks_comes_whole(length: bytes) -> None:
    async with scene(answer_of(b"HTTP/1.1 404 No\r\n" + length + b"\r\n0123456789")) as found:
        items = await all_of(found.ask())
    assert items[1] == (404, {})
    assert b"".join(item for item in items if isinstance(item, bytes)) == b"0123456789"


@in_loop
async def test_interim_answer_is_not_the_answer() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    async with scene(answer_of(interim + CHUNKED + framed(b"a", b""))) as found:
        assert (await all_of(found.ask()))[1:] == [
            (200, {"content-type": "text/event-stream"}), b"a",
        ]  # fmt: skip


@in_loop
async def test_request_that_is_longer_than_all_buffers_arrives_whole() -> None:
    body = bytes(range(256)) * 20_000
    async with scene(answer_of(CHUNKED + framed(b"a", b""))) as found:
        await all_of(found.ask(body))
        assert found.asked[0].endswith(b"\r\n\r\n" + body)


@in_loop
async def test_wrong_secret_opens_nothing() -> None:
    async with scene(answer_of(CHUNKED + framed(b"a", b""))) as found:
        wrong = found.address._replace(secret="0" * len(found.address.secret))
        with pytest.raises(DoorShut):
            await anext(found.ask(address=wrong))
        assert found.asked == []


@in_loop
async def test_who_shows_nothing_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "SECRET_TIMEOUT_S", 0.01)
    async with scene(answer_of()) as found:
        reader, writer = await asyncio.open_unix_connection(found.address.path)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()


@in_loop
async def test_request_beyond_the_limit_waits_for_its_place() -> None:
    over = asyncio.Event()
    async with scene(held_until(over), limit=1) as found:
        first, second = found.ask(), found.ask()
        assert await anext(first) is None
        waiting = asyncio.ensure_future(anext(second))
        while len(found.asked) < 1:
            await asyncio.sleep(0)
        done, _ = await asyncio.wait({waiting}, timeout=0.05)
        assert not done
        assert len(found.asked) == 1
        over.set()
        await all_of(first)
        assert await waiting is None
        assert (await all_of(second))[-1] == b"last"


@in_loop
async def test_who_leaves_while_it_waits_takes_no_place() -> None:
    over = asyncio.Event()
    async with scene(held_until(over), limit=1) as found:
        first, second, third = found.ask(), found.ask(b"2"), found.ask(b"3")
        await anext(first)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(second), 0.02)
        waiting = asyncio.ensure_future(anext(third))
        over.set()
        await all_of(first)
        assert await waiting is None
        await all_of(third)
        assert [asked[-1:] for asked in found.asked] == [b"}", b"3"]


@in_loop
async def test_engine_hears_of_a_client_that_leaves() -> None:
    async with scene(held_until(asyncio.Event())) as found:
        items = found.ask()
        assert [await anext(items) for _ in range(3)][-1] == b"first"
        items.cancel()
        await found.left.wait()


@in_loop
async def test_drain_waits_for_what_is_under_way_and_lets_nobody_in() -> None:
    over = asyncio.Event()
    async with scene(held_until(over)) as found:
        items = found.ask()
        await anext(items)
        assert not await asyncio.to_thread(found.door.drain, 0.0)
        with pytest.raises(DoorShut):
            await anext(found.ask())
        draining = asyncio.ensure_future(asyncio.to_thread(found.door.drain))
        over.set()
        assert (await all_of(items))[-1] == b"last"
        assert await draining


@in_loop
async def test_drain_of_a_door_that_nobody_asked_for_is_over() -> None:
    with tempfile.TemporaryDirectory(prefix="d-") as folder:
        door = Door(1, folder, limit=1, is_alive=lambda: True)
        assert door.drain()
        door.close()


@in_loop
async def test_port_of_an_engine_that_ended_is_not_asked() -> None:
    async with scene(answer_of(CHUNKED + framed(b"a", b"")), is_alive=False) as found:
        with pytest.raises(DoorShut):
            await anext(found.ask())
        assert found.asked == []


@pytest.mark.parametrize(
    "broken", [framed(b"a") + b"5\r\nab", framed(b"a"), framed(b"a") + b"what\r\n"]
)
@in_loop
async def test_answer_that_breaks_off_is_an_error_after_what_came(broken: bytes) -> None:
    async with scene(answer_of(CHUNKED, broken)) as found:
        items = found.ask()
        assert [await anext(items) for _ in range(3)][-1] == b"a"
        with pytest.raises(EngineNotRunning):
            await anext(items)


@in_loop
async def test_no_answer_at_all_is_an_error_and_not_a_shut_door() -> None:
    async with scene(answer_of()) as found:
        items = found.ask()
        assert await anext(items) is None
        with pytest.raises(EngineNotRunning):
            await anext(items)


@in_loop
async def test_door_that_is_gone_is_shut() -> None:
    async with scene(answer_of()) as found:
        items = found.ask()
    with pytest.raises(DoorShut):
        await anext(items)


def test_request_has_no_header_of_the_clients_connection_and_its_own_length() -> None:
    headers = {
        "connection": "keep-alive",
        "expect": "100-continue",
        "content-length": "7",
        "a": "b",
    }
    head, _, body = request_bytes("POST", "/x?q=a b\r\nh: v", headers, b"{}").partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"POST /x?q=a%20b%0D%0Ah:%20v HTTP/1.1", b"a: b", b"Host: engine", b"Connection: close",
        b"Content-Length: 2",
    ]  # fmt: skip
    assert body == b"{}"
