"""The replaying server's own HTTP, byte by byte."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from orchestrator.fakes.openai import EngineSettings, SseServer, Truth, engine_server, replaying
from orchestrator.fakes.openai.server import listening

BODY = json.dumps({"model": "m", "prompt": "a b", "max_tokens": 3, "stream": True}).encode()
DEADLINE_S = 20.0


def post(path: str = "/v1/completions", body: bytes = BODY, *more: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *more]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def talk(server: SseServer, *sent: bytes, num_answers: int = 1) -> bytes:
    """Send bytes one after the other; what came back with that many whole answers."""
    reader, writer = await asyncio.open_connection(*server.url.removeprefix("http://").split(":"))
    try:
        for piece in sent:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        received = b""
        while received.count(b"0\r\n\r\n") < num_answers:
            read = await asyncio.wait_for(reader.read(1 << 16), DEADLINE_S)
            if not read:
                return received
            received += read
        return received
    finally:
        writer.close()
        await writer.wait_closed()


async def replay(*sent: bytes, num_answers: int = 1) -> bytes:
    server = engine_server()
    async with replaying(server):
        return await talk(server, *sent, num_answers=num_answers)


def test_replay_request_in_pieces_is_one_request() -> None:
    whole = post()

    received = asyncio.run(replay(whole[:5], whole[5:60], whole[60:-3], whole[-3:]))

    assert received.count(b"HTTP/1.1 200 OK") == 1
    assert received.count(b'"text"') == 3


def test_replay_two_requests_in_one_piece_are_answered_in_turn() -> None:
    received = asyncio.run(replay(post() + post(), num_answers=2))

    assert received.count(b"HTTP/1.1 200 OK") == 2
    assert received.count(b"[DONE]") == 2


def test_replay_client_that_asks_before_it_sends_is_told_to_go_on() -> None:
    whole = post("/v1/completions", BODY, "Expect: 100-continue")

    received = asyncio.run(replay(whole[: -len(BODY)], whole[-len(BODY) :]))

    assert received.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [("/v1/embeddings", BODY, b"404"), ("/v1/completions", b"{oops", b"400")],
)
def test_replay_request_that_it_cannot_answer_is_an_http_error(
    path: str, body: bytes, status: bytes
) -> None:
    received = asyncio.run(replay(post(path, body)))

    assert received.startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize("piece", [b"x" * 100_000, post("/", b"", "Transfer-Encoding: chunked")])
def test_replay_request_that_it_does_not_understand_closes_the_connection(piece: bytes) -> None:
    try:
        received = asyncio.run(replay(piece))
    except ConnectionError:
        return
    assert received == b""


def test_replay_client_that_leaves_ends_its_request_with_the_truth_so_far() -> None:
    truths: list[Truth] = []

    async def run() -> None:
        server = engine_server(EngineSettings(ttft_s=0.01, gap_s=0.01))
        server.on_truth = truths.append
        async with replaying(server):
            host, port = server.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(post("/v1/completions", BODY.replace(b" 3,", b" 100000,")))
            await asyncio.wait_for(reader.readuntil(b'"text"'), DEADLINE_S)
            writer.close()
            deadline = time.monotonic() + DEADLINE_S
            while not truths and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
            assert server.in_flight == 0
            assert server.engine.counters.running == 0

    asyncio.run(run())

    (truth,) = truths
    assert 1 <= len(truth.chunk_sent_s) == truth.output_tokens < 100_000


@pytest.mark.parametrize("listen", [listening, replaying])
@pytest.mark.parametrize("turns", range(5))
def test_connection_that_arrives_as_the_server_ends_is_closed(
    listen: Callable[[SseServer], AbstractAsyncContextManager[None]], turns: int
) -> None:
    async def run() -> None:
        server = engine_server()
        with socket.socket() as client:
            async with listen(server):
                host, port = server.url.removeprefix("http://").split(":")
                client.connect((host, int(port)))
                for _ in range(turns):
                    await asyncio.sleep(0)

    asyncio.run(run())

    # A socket that nobody closed says so as it is collected, and the test fails.
    gc.collect()
