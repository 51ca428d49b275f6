"""Requests that offer another protocol, as Java's client does with each, on a real uvicorn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from starlette.types import Receive, Scope, Send
from uvicorn_scene import serving

from serve_apps.router.connections import Connections

OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
GET = b"GET /second HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def post(body: bytes, offer: bytes = OFFER) -> bytes:
    return b"POST /first?a=%%20 HTTP/1.1\r\nHost: x\r\n%sX-Own: 1\r\n" % offer + (
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )


def chunked(*chunks: bytes) -> bytes:
    head = b"POST /first HTTP/1.1\r\nHost: x\r\n%sTransfer-Encoding: chunked\r\n\r\n" % OFFER
    return head + b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in (*chunks, b""))


async def heard_of(parts: Sequence[bytes]) -> list[tuple[str, bytes]]:
    """Return method, path and body of each request that an application gets of these bytes."""
    heard: list[tuple[str, bytes]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        heard.append((f"{scope['method']} {scope['path']}", body))
        head = {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-length", b"0")],
        }
        await send(head)
        await send({"type": "http.response.body"})

    async with serving(Connections(10), app) as connect:
        reader, writer = await connect()
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0.02)
        writer.write(LAST)
        answers = await asyncio.wait_for(reader.read(), 20)
        assert answers.count(b"HTTP/1.1 ") == answers.count(b"HTTP/1.1 200") == len(heard)
    assert heard.pop() == ("GET /last", b"")
    return heard


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


HEAD = len(post(b"")) + 1  # two digits of length


@pytest.mark.parametrize("body", [b'{"prompt": "x"}', GET, b"\x00" * 40])
@pytest.mark.parametrize("size", [10_000, HEAD, HEAD - 3, HEAD + 3, 50])
def test_body_beside_an_offer_is_the_bodys_however_it_comes(body: bytes, size: int) -> None:
    found = asyncio.run(heard_of(cut(post(body), size)))
    assert found == [("POST /first", body)]


@pytest.mark.parametrize("size", [10_000, 60])
def test_chunked_body_beside_an_offer_is_read_whole(size: int) -> None:
    found = asyncio.run(heard_of(cut(chunked(b'{"a":', GET, b"1}"), size)))
    assert found == [("POST /first", b'{"a":' + GET + b"1}")]


def test_requests_with_an_offer_one_after_the_other_are_each_read_once() -> None:
    one = post(b"{}")
    found = asyncio.run(heard_of([one * 300 + GET + one]))
    first = ("POST /first", b"{}")
    assert found == [*[first] * 300, ("GET /second", b""), first]


def test_offer_without_a_body_is_passed_over() -> None:
    get = b"GET /first HTTP/1.1\r\nHost: x\r\n%s\r\n" % OFFER
    assert asyncio.run(heard_of([get, GET])) == [("GET /first", b""), ("GET /second", b"")]


@pytest.mark.parametrize("method", [b"GET", b"POST"])
@pytest.mark.parametrize(
    "offer",
    [
        b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
        b"Connection: keep-alive, upgrade\r\nUpgrade: h2c\r\nUpgrade: WebSocket\r\n",
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
    ],
)
def test_offer_of_websocket_is_passed_over_too(method: bytes, offer: bytes) -> None:
    one = post(GET, offer).replace(b"POST", method)
    found = asyncio.run(heard_of(cut(one, len(one) - len(GET))))
    assert found == [(f"{method.decode()} /first", GET)]


def test_connection_whose_offer_of_websocket_was_passed_over_is_ended_as_any_other() -> None:
    async def run() -> tuple[int, bytes]:
        connections = Connections(10, again_s=0.2)
        async with serving(connections) as connect:
            reader, writer = await connect()
            writer.write(post(b"{}", b"Connection: Upgrade\r\nUpgrade: websocket\r\n"))
            answer = await reader.readuntil(b"ok")
            num_open = len(connections)
            return num_open, answer + await asyncio.wait_for(reader.read(), 20)

    num_open, answer = asyncio.run(run())
    assert num_open == 1
    assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("pause_s", [0.0, 0.05])
def test_what_follows_a_connect_is_no_request(pause_s: float) -> None:
    async def run() -> bytes:
        async with serving(Connections(10)) as connect:
            reader, writer = await connect()
            writer.write(
                b"CONNECT /v1 HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(GET)
            )
            await asyncio.sleep(pause_s)
            writer.write(GET)
            return await asyncio.wait_for(reader.read(), 20)

    assert asyncio.run(run()).count(b"HTTP/1.1 ") == 1


def test_client_that_asks_to_close_beside_its_offer_is_closed() -> None:
    offer = b"Connection: close, Upgrade\r\nUpgrade: h2c\r\n"

    async def run() -> bytes:
        async with serving(Connections(10)) as connect:
            reader, writer = await connect()
            writer.write(post(b"{}", offer))
            return await asyncio.wait_for(reader.read(), 20)

    assert asyncio.run(run()).endswith(b"ok")
