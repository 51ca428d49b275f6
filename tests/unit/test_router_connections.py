"""Connections without a request, on a real uvicorn as Serve's proxy is one."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send
from uvicorn_scene import Pair, app, serving

from serve_apps.router.connections import SPARE, Connections, most_connections

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def ask(pair: Pair, request: bytes = GET) -> bytes:
    pair[1].write(request)
    await pair[0].readuntil(b"\r\n\r\n")
    return await pair[0].readexactly(2)


async def is_cut(pair: Pair, within_s: float = 10.0) -> bool:
    try:
        return await asyncio.wait_for(pair[0].read(), within_s) == b""
    except ConnectionResetError:
        return True


async def drip(pair: Pair, every_s: float = 0.02) -> None:
    """Send a head that has no end, a line at a time, until the connection is gone."""
    pair[1].write(b"GET / HTTP/1.1\r\n")
    with contextlib.suppress(OSError):
        for number in range(2000):
            pair[1].write(b"x-%d: y\r\n" % number)
            await pair[1].drain()
            await asyncio.sleep(every_s)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 40))


def test_connections_opened_and_left_do_not_keep_others_out() -> None:
    connections = Connections(20, first_s=60)

    async def work() -> None:
        async with serving(connections) as connect:
            left = [await connect() for _ in range(200)]
            while len(connections) > connections.most:
                await asyncio.sleep(0.01)
            for _ in range(30):
                assert await ask(await connect()) == b"ok"
            assert all([await is_cut(pair) for pair in left[:150]]), "the oldest first"
            assert len(connections) <= connections.most

    run(work)
    assert connections.num_cut >= 150


def test_request_under_way_is_never_ended_for_another() -> None:
    connections = Connections(3, first_s=60)
    may_end = asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await may_end.wait()
        await app(scope, receive, send)

    async def work() -> None:
        async with serving(connections, slow) as connect:
            busy = [await connect() for _ in range(3)]
            answers = [asyncio.create_task(ask(pair)) for pair in busy]
            await asyncio.sleep(0.1)
            more = [await connect() for _ in range(20)]
            assert all([await is_cut(pair) for pair in more]), "there was no room for them"
            may_end.set()
            assert await asyncio.gather(*answers) == [b"ok"] * 3

    run(work)


@pytest.mark.parametrize("dripping", [False, True])
def test_connection_whose_head_does_not_come_is_ended_in_time(dripping: bool) -> None:
    connections = Connections(100, first_s=0.3)

    async def work() -> None:
        async with serving(connections) as connect:
            pair = await connect()
            task = asyncio.create_task(drip(pair)) if dripping else None
            assert await is_cut(pair)
            if task is not None:
                task.cancel()
            assert await ask(await connect()) == b"ok"

    run(work)
    assert connections.num_cut == 1


def test_kept_connection_is_used_again_and_ended_when_the_next_head_drips() -> None:
    connections = Connections(100, first_s=60, again_s=0.5)

    async def work() -> None:
        async with serving(connections) as connect:
            pair = await connect()
            for _ in range(3):
                assert await ask(pair) == b"ok"
            task = asyncio.create_task(drip(pair))
            assert await is_cut(pair)
            task.cancel()

    run(work)
    assert connections.num_cut == 1


def test_body_takes_longer_than_a_head_may() -> None:
    connections = Connections(100, first_s=0.3, again_s=60)

    async def work() -> None:
        async with serving(connections) as connect:
            reader, writer = await connect()
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n")
            for byte in (b"a", b"b", b"c"):
                await asyncio.sleep(0.25)
                writer.write(byte)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")

    run(work)
    assert connections.num_cut == 0


def test_head_without_end_is_ended_by_its_bytes() -> None:
    connections = Connections(100, first_s=60, max_head_bytes=100_000)

    async def work() -> None:
        async with serving(connections) as connect:
            pair = await connect()
            pair[1].write(b"GET / HTTP/1.1\r\n" + b"x-a: %b\r\n" % (b"y" * 300_000))
            assert await is_cut(pair)

    run(work)
    assert connections.num_cut == 1


def test_pipelined_requests_are_all_answered() -> None:
    connections = Connections(100, first_s=60, again_s=0.5)

    async def work() -> None:
        async with serving(connections) as connect:
            reader, writer = await connect()
            writer.write(GET * 5)
            for _ in range(5):
                await reader.readuntil(b"\r\n\r\n")
                assert await reader.readexactly(2) == b"ok"
            assert await is_cut((reader, writer)), "and then it waits like any other"

    run(work)


def test_what_is_no_http_is_answered_400_and_forgotten() -> None:
    connections = Connections(100, first_s=60)

    async def work() -> None:
        async with serving(connections) as connect:
            for text in (b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"{}\r\n\r\n"):
                reader, writer = await connect()
                writer.write(text)
                assert (await reader.read()).startswith(b"HTTP/1.1 400")
            while len(connections):
                await asyncio.sleep(0.01)

    run(work)


@pytest.mark.parametrize(
    ("soft", "most"), [(20_000, 20_000 - SPARE), (100, 64), (resource.RLIM_INFINITY, 2**17 - SPARE)]
)
def test_number_of_connections_leaves_descriptors_for_the_rest(soft: int, most: int) -> None:
    assert most_connections(lambda _kind: (soft, soft)) == most
