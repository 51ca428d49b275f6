"""Peers that try an engine's door or die beside it: floods, impostors, leavers, silence."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from door_scene import CHUNKED, all_of, answer_of, framed, held_until, in_loop, scene
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_apps.engine import door as door_module
from serve_apps.engine.door import Door
from serve_apps.engine.errors import EngineNotRunning
from serve_apps.router.passage import DoorShut, Items, request_bytes

OK = CHUNKED + framed(b"a", b"")
BIG = bytes(32 << 20)
"""More than all buffers between a router and an engine hold."""
KEEPALIVE_TIMER = "02"
"""In /proc/net/tcp."""


@contextlib.asynccontextmanager
async def door_to(listener: socket.socket, folder: Path) -> AsyncIterator[Door]:
    door = Door(listener.getsockname()[1], str(folder), limit=1, is_alive=lambda: True)
    try:
        yield door
    finally:
        await asyncio.to_thread(door.close)


@pytest.mark.parametrize("host", [None, "127.0.0.1"])
@in_loop
async def test_connections_that_show_nothing_keep_no_router_out(
    monkeypatch: pytest.MonkeyPatch, host: str | None
) -> None:
    monkeypatch.setattr(door_module, "MAX_UNAUTHENTICATED", 4)
    async with scene(answer_of(OK), host=host) as found:
        await found.door.address("127.0.0.1")
        port = (await found.door.address("127.0.0.1")).port
        flood = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
        assert (await all_of(found.ask()))[-1] == b"a"
        ended = [await reader.read() for reader, _ in flood[:8]]
        for _, writer in flood:
            writer.close()
    assert ended == [b""] * 8


@in_loop
async def test_secret_in_drips_is_not_waited_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "SECRET_TIMEOUT_S", 0.1)
    async with scene(answer_of(OK)) as found:
        reader, writer = await asyncio.open_unix_connection(found.address.path)
        with contextlib.suppress(ConnectionError):
            for byte in found.address.secret.encode():
                writer.write(bytes([byte]))
                await asyncio.sleep(0.02)
                if reader.at_eof():
                    break
            await reader.read()
        writer.close()
        assert found.asked == []


@in_loop
async def test_two_that_ask_for_the_door_at_once_get_one() -> None:
    async with scene(answer_of(OK)) as found:
        assert found.door._loop is not None
        found.door._loop.call_soon_threadsafe(time.sleep, 0.2)  # so that all of them come at once
        asked = [found.door.address(host) for host in ("127.0.0.1", None) * 4]
        assert len(set(await asyncio.gather(*asked))) == 2
        assert (await all_of(found.ask()))[-1] == b"a"


@pytest.mark.parametrize("says", [b"+", b"0" * 64, None])
@in_loop
async def test_who_has_the_socket_of_a_door_that_is_gone_is_no_engine(
    says: bytes | None, tmp_path: Path
) -> None:
    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        secret = await reader.readexactly(64)
        writer.write((says or secret) + b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n" + b"a" * 64)
        writer.close()

    async with scene(answer_of(OK)) as found:
        address = found.address
    path = str(tmp_path / "door")
    async with await asyncio.start_unix_server(impostor, path):
        with pytest.raises(DoorShut):
            await anext(found.ask(address=address._replace(path=path)))


@in_loop
async def test_silence_between_two_nodes_is_asked_after_on_both_sides() -> None:
    over = asyncio.Event()
    async with scene(held_until(over), host="127.0.0.1") as found:
        items = found.ask()
        assert [await anext(items) for _ in range(3)][-1] == b"first"
        port = f":{found.address.port:04X}"
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
        sides = [row for row in rows if row[3] == "01" and (row[1] + row[2]).count(port)]
        assert [row[5].split(":")[0] for row in sides] == [KEEPALIVE_TIMER] * 2
        over.set()
        await all_of(items)


@in_loop
async def test_engine_that_does_not_read_holds_the_request_at_the_router(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as engine:
        async with door_to(engine, tmp_path) as door:
            items = Items(await door.address(None), "app", request_bytes("POST", "/", {}, BIG))
            assert await anext(items) is None
            assert items._writer is not None
            sizes = [items._writer.transport.get_write_buffer_size()]
            while len(sizes) < 20 or sizes[-20] != sizes[-1]:
                await asyncio.sleep(0.01)
                sizes.append(items._writer.transport.get_write_buffer_size())
            assert sizes[-1] > 0
            items.cancel()


@in_loop
async def test_engine_that_hangs_up_at_once_takes_no_place(tmp_path: Path) -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with (
            await asyncio.start_server(hang_up, sock=listener),
            door_to(listener, tmp_path) as door,
        ):
            address = await door.address(None)
            for _ in range(50):
                with pytest.raises((DoorShut, EngineNotRunning)):
                    await all_of(Items(address, "app", request_bytes("GET", "/", {}, b"")))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=8))
def test_place_is_given_back_whenever_a_client_leaves(moments: list[int]) -> None:
    async def leave(items: Items, num_items: int) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                for _ in range(num_items):
                    await anext(items)
        items.cancel()

    async def run() -> None:
        over = asyncio.Event()
        async with scene(held_until(over), limit=2) as found:
            await asyncio.gather(*(leave(found.ask(), moment) for moment in moments))
            over.set()
            answers = await asyncio.gather(*(all_of(found.ask()) for _ in range(3)))
            assert [answer[-1] for answer in answers] == [b"last"] * 3
            assert await asyncio.to_thread(found.door.drain, 5.0)

    asyncio.run(run())


@in_loop
async def test_request_is_not_kept_while_its_answer_is_under_way() -> None:
    over = asyncio.Event()
    async with scene(held_until(over)) as found:
        request = request_bytes("POST", "/v1/completions", {}, b"{}")
        num_before = sys.getrefcount(request)
        items = Items(found.address, "app", request)
        assert [await anext(items) for _ in range(3)][-1] == b"first"
        assert sys.getrefcount(request) == num_before
        over.set()
        await all_of(items)


@pytest.mark.parametrize(
    "said",
    [
        b"garbage\r\n\r\n",
        b"\r\n\r\n",
        b"HTTP/1.1 two OK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * (1 << 21),
        b"HTTP/1.1 200 OK\r\ncontent-length: what\r\n\r\n",
        CHUNKED + b"1\r\nabcd0\r\n\r\n",
        CHUNKED + b"-1\r\na\r\n0\r\n\r\n",
        CHUNKED + b"-2\r\n\r\n0\r\n\r\n",
        CHUNKED + b"ffffffffffffffffffff\r\na",
    ],
)
@in_loop
async def test_answer_that_is_no_http_is_an_engine_that_does_not_run(said: bytes) -> None:
    async with scene(answer_of(said)) as found:
        with pytest.raises(EngineNotRunning):
            await all_of(found.ask())


@pytest.mark.parametrize("status", [204, 304])
@in_loop
async def test_answer_that_has_no_body_by_its_status_ends_with_its_head(status: int) -> None:
    said = b"HTTP/1.1 %d X\r\ncontent-length: 9\r\n\r\n" % status
    async with scene(answer_of(said)) as found:
        assert await all_of(found.ask()) == [None, (status, {})]


@pytest.mark.parametrize("header", [{"a": "b\r\nc: d"}, {"a\n": "b"}, {"a": "b\rc"}, {"a": "\0"}])
def test_header_with_an_end_of_line_in_it_is_refused(header: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="end of line"):
        request_bytes("POST", "/", header, b"")
