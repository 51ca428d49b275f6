"""An OpenAI-compatible server on a real socket that misbehaves as it is told to."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from aiohttp import web

PORTS = range(18300, 18400)
START_TIMEOUT_S = 20.0


class Act(Enum):
    """What a server does in the middle of an answer, besides sending bytes."""

    RESET = "reset"
    HANG = "hang"


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One answer."""

    status: int = 200
    parts: tuple[bytes | Act, ...] = ()


Behaviour = Callable[[int, dict[str, Any]], Script]
"""Number of the request, from 0, and its body; to its answer."""


@dataclass(slots=True)
class SseServer:
    """What a test sees of the server."""

    url: str = ""
    behaviour: Behaviour = field(default=lambda _number, body: good(body))
    paths: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        number = len(self.bodies)
        self.paths.append(request.path)
        self.bodies.append(body)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self._answer(request, self.behaviour(number, body))
        finally:
            self.in_flight -= 1

    async def _answer(self, request: web.Request, script: Script) -> web.StreamResponse:
        response = web.StreamResponse(status=script.status)
        response.content_type = "text/event-stream"
        await response.prepare(request)
        for part in script.parts:
            if part is Act.RESET:
                assert request.transport is not None
                request.transport.abort()
                return response
            if part is Act.HANG:
                await asyncio.Event().wait()
            assert isinstance(part, bytes)
            await response.write(part)
            # Lets the client read this part on its own.
            await asyncio.sleep(0)
        await response.write_eof()
        return response


def event(item: object) -> bytes:
    return b"data: " + json.dumps(item, ensure_ascii=False).encode() + b"\n\n"


def text(value: str, finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "text": value, "finish_reason": finish}]})


def chat(delta: dict[str, Any], finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def usage(completion_tokens: int, prompt_tokens: int = 9, **more: object) -> bytes:
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return event({"choices": [], "usage": counts | more})


DONE = b"data: [DONE]\n\n"


def good(body: dict[str, Any]) -> Script:
    """Answer with three chunks and as many tokens as were asked for."""
    tokens = body["max_tokens"]
    parts = (text("alpha beta "), text("gamma "), text("delta", "length"), usage(tokens), DONE)
    return Script(parts=parts)


@contextmanager
def serving() -> Iterator[SseServer]:
    """Run a server in a thread of its own until the block ends."""
    server = SseServer()
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    thread = threading.Thread(target=_run, args=(loop, server, ready), daemon=True)
    thread.start()
    assert ready.wait(START_TIMEOUT_S)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(START_TIMEOUT_S)


def free_port() -> int:
    for port in PORTS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no free port")


def _run(loop: asyncio.AbstractEventLoop, server: SseServer, ready: threading.Event) -> None:
    asyncio.set_event_loop(loop)
    app = web.Application()
    app.router.add_post("/v1/completions", server.handle)
    app.router.add_post("/v1/chat/completions", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)

    async def start() -> None:
        await runner.setup()
        for _ in PORTS:
            port = free_port()
            try:
                await web.TCPSite(runner, "127.0.0.1", port).start()
            except OSError:
                continue
            server.url = f"http://127.0.0.1:{port}"
            return
        raise OSError("no free port")

    loop.run_until_complete(start())
    ready.set()
    loop.run_forever()
    loop.run_until_complete(runner.cleanup())
    loop.close()
