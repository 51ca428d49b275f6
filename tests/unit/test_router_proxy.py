"""The guard in Serve's proxy against clients that do not read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn
from starlette.types import Message, Receive, Scope, Send

from serve_apps.router.limits import Limits
from serve_apps.router.policy import READ_TIMEOUT_HEADER
from serve_apps.router.proxy import ReadGuard, middlewares

HTTP: Scope = {"type": "http"}


async def receive() -> Message:
    return {"type": "http.disconnect"}


def answering(*headers: tuple[bytes, bytes], num_chunks: int = 2) -> Any:
    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(headers)})
        for _ in range(num_chunks):
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return app


def limit(seconds: float) -> tuple[bytes, bytes]:
    return READ_TIMEOUT_HEADER.encode(), str(seconds).encode()


def test_guard_passes_all_messages_and_keeps_the_limit_to_itself() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    app = ReadGuard(answering(limit(5), (b"content-type", b"text/event-stream")))
    asyncio.run(app(HTTP, receive, send))

    assert sent[0]["headers"] == [(b"content-type", b"text/event-stream")]
    assert [message["type"] for message in sent[1:]] == ["http.response.body"] * 3


@pytest.mark.parametrize("headers", [(), (limit(0.001),), ((READ_TIMEOUT_HEADER.encode(), b"no"),)])
def test_guard_ends_only_what_has_a_limit(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.sleep(0.05)

    run = ReadGuard(answering(*headers))(HTTP, receive, send)
    if headers == (limit(0.001),):
        with pytest.raises(TimeoutError):
            asyncio.run(run)
    else:
        asyncio.run(run)


def test_guard_leaves_what_is_no_request_alone() -> None:
    seen: list[Send] = []

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        seen.append(send)

    async def send(_message: Message) -> None:
        pass

    asyncio.run(ReadGuard(app)({"type": "lifespan"}, receive, send))
    assert seen == [send]


def test_client_that_reads_nothing_is_cut_off_and_the_server_is_told() -> None:
    """On a real uvicorn, as Serve's proxy is one: its buffers are full long before the end."""
    ended = asyncio.Event()
    inner = answering(limit(0.2), num_chunks=2000)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await ReadGuard(inner)(scope, receive, send)
        assert (await receive())["type"] == "http.disconnect"
        ended.set()

    async def run() -> None:
        config = uvicorn.Config(
            app, host="127.0.0.1", port=0, lifespan="off", log_config=None, access_log=False
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        reader._transport.pause_reading()
        await asyncio.wait_for(ended.wait(), 20)
        writer.close()
        server.should_exit = True
        await serving

    asyncio.run(run())


def test_serve_gets_its_middlewares_and_its_server_looks_after_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("uvicorn.protocols.http.auto.AutoHTTPProtocol", None)
    (found,) = middlewares()
    assert found.cls is ReadGuard
    # As Serve makes it, after it has asked for the middlewares.
    config = uvicorn.Config(lambda: None, factory=True, lifespan="off", log_config=None)
    config.load()
    assert config.http_protocol_class.__qualname__.startswith("guarded.")
    assert Limits().read_timeout_s > 0
