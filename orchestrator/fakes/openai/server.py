"""An OpenAI-compatible server on a real socket that answers, or misbehaves, as it is told to."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from orchestrator.fakes.openai.engine import Engine, EngineSettings
from orchestrator.fakes.openai.script import Act, Behaviour, Chunk, Script, good

HOST = "127.0.0.1"
START_TIMEOUT_S = 20.0
MAX_BODY_BYTES = 256 << 20
"""Longest request; aiohttp's own limit is shorter than a long context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What the server did for one request; moments are ``time.monotonic()`` in seconds."""

    request_id: str | None
    """Its header X-Request-Id."""
    received_s: float
    chunk_sent_s: tuple[float, ...]
    """[num_chunks] just before each chunk with tokens was handed to the socket."""
    output_tokens: int
    prompt_tokens: int


class _Stamped(RequestHandler):
    """A connection that notes when bytes arrive.

    Handlers start one after the other; of many requests that arrive together the last would
    otherwise seem to have arrived when its handler's turn came, milliseconds later.
    """

    __slots__ = ("received_s",)

    def data_received(self, data: bytes) -> None:
        self.received_s = time.monotonic()
        super().data_received(data)


@dataclass(slots=True)
class SseServer:
    """What a test sees of the server."""

    url: str = ""
    behaviour: Behaviour = field(default=lambda _number, body: good(body))
    engine: Engine = field(default_factory=Engine)
    paths: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    on_truth: Callable[[Truth], None] = field(default=lambda _truth: None)
    keeps_requests: bool = True
    """Whether paths, bodies and headers are kept; a process that runs for long does not."""
    in_flight: int = 0
    most_in_flight: int = 0
    num_requests: int = 0
    num_connections: int = 0
    _room: asyncio.Semaphore | None = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request as the behaviour says."""
        body = await request.json()
        # The last bytes of the request; one that is answered is the only one of its connection.
        protocol = request.protocol
        received_s = protocol.received_s if isinstance(protocol, _Stamped) else time.monotonic()
        number = self.num_requests
        self.num_requests += 1
        if self.keeps_requests:
            self.paths.append(request.path)
            self.headers.append(dict(request.headers))
            self.bodies.append(body)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            script = self.behaviour(number, body)
            if script.status != 200:
                return await self._answer(request, script, received_s)
            return await self._run(request, script, received_s)
        finally:
            self.in_flight -= 1

    async def health(self, _request: web.Request) -> web.Response:
        """Say that the server lives."""
        return web.Response()

    async def metrics(self, _request: web.Request) -> web.Response:
        """Publish the engine's counters."""
        return web.Response(text=self.engine.metrics())

    async def models(self, _request: web.Request) -> web.Response:
        """List the models."""
        return web.json_response(self.engine.models())

    async def _run(
        self, request: web.Request, script: Script, received_s: float
    ) -> web.StreamResponse:
        """Answer with the engine's gauges moved, when it has room."""
        counters = self.engine.counters
        limit = self.engine.settings.max_num_seqs
        if limit is not None and self._room is None:
            self._room = asyncio.Semaphore(limit)
        counters.waiting += 1
        try:
            if self._room is not None:
                await self._room.acquire()
        finally:
            counters.waiting -= 1
        counters.running += 1
        try:
            return await self._answer(request, script, received_s)
        finally:
            counters.running -= 1
            if self._room is not None:
                self._room.release()

    async def _answer(
        self, request: web.Request, script: Script, received_s: float
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=script.status, headers=script.headers)
        response.content_type = script.content_type
        await response.prepare(request)
        sent_s: list[float] = []
        try:
            await self._send(request, response, script, received_s=received_s, sent_s=sent_s)
        finally:
            if script.status == 200:
                self._tell(request, script, received_s, sent_s)
        return response

    async def _send(
        self,
        request: web.Request,
        response: web.StreamResponse,
        script: Script,
        *,
        received_s: float,
        sent_s: list[float],
    ) -> None:
        if script.status == 200:
            self.engine.start(script)
        for part in script.parts:
            if isinstance(part, Act):
                await _act(part, request)
                return
            if isinstance(part, bytes):
                await response.write(part)
                # Lets the client read this part on its own.
                await asyncio.sleep(0)
                continue
            # Every moment counts from the arrival, so that a late one delays no other.
            wait_s = 0.0 if part.at_s is None else received_s + part.at_s - time.monotonic()
            await asyncio.sleep(max(0.0, wait_s))
            if part.tokens:
                self.engine.generate(part.tokens, is_first=not sent_s)
                sent_s.append(time.monotonic())
            await response.write(part.data)
        await response.write_eof()

    def _tell(
        self, request: web.Request, script: Script, received_s: float, sent_s: list[float]
    ) -> None:
        counts = [part.tokens for part in script.parts if isinstance(part, Chunk) and part.tokens]
        self.on_truth(
            Truth(
                request_id=request.headers.get("X-Request-Id"),
                received_s=received_s,
                chunk_sent_s=tuple(sent_s),
                output_tokens=sum(counts[: len(sent_s)]),
                prompt_tokens=script.prompt_tokens,
            )
        )


async def _act(act: Act, request: web.Request) -> None:
    transport = request.transport
    if act is Act.HANG:
        await asyncio.Event().wait()
    elif transport is not None and act is Act.RESET:
        # To close without lingering is what makes the kernel send a reset.
        connection: socket.socket = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    elif transport is not None:
        transport.close()


def engine_server(settings: EngineSettings | None = None) -> SseServer:
    """Return a server whose answers are those of an engine instead of a script."""
    engine = Engine(settings)
    return SseServer(engine=engine, behaviour=lambda _number, body: engine.answer(body))


@asynccontextmanager
async def listening(server: SseServer, port: int = 0) -> AsyncIterator[None]:
    """Listen on loopback and set the server's ``url``; port 0 takes any that is free."""
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_post("/v1/completions", server.handle)
    app.router.add_post("/v1/chat/completions", server.handle)
    app.router.add_get("/v1/models", server.models)
    app.router.add_get("/metrics", server.metrics)
    app.router.add_get("/health", server.health)
    # Like an engine, it gives a request up when its client is gone.
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    manager = runner.server
    assert manager is not None
    loop = asyncio.get_running_loop()
    silent = logging.Logger("access", logging.CRITICAL)

    def connect() -> _Stamped:
        server.num_connections += 1
        return _Stamped(manager, loop=loop, access_log=silent)

    listener = await loop.create_server(connect, HOST, port, backlog=1024)
    server.url = f"http://{HOST}:{listener.sockets[0].getsockname()[1]}"
    try:
        yield
    finally:
        await stop_listening(listener)
        await runner.cleanup()


async def stop_listening(listener: asyncio.Server) -> None:
    """Close a listener after the connections that it has accepted have come to life.

    A connection that is between accept and its transport when its server closes fails an assertion
    inside asyncio (Python 3.11), and its socket stays open until it is collected.
    """
    loop = asyncio.get_running_loop()
    for listening_socket in listener.sockets:
        loop.remove_reader(listening_socket)
    # One turn for the transport, one for the protocol that is told of it.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    listener.close()


@contextmanager
def serving(server: SseServer | None = None) -> Iterator[SseServer]:
    """Run a server in a thread of its own until the block ends."""
    server = server or SseServer()
    started: Future[Callable[[], object]] = Future()
    thread = threading.Thread(target=_serve, args=(server, started), daemon=True)
    thread.start()
    end = started.result(START_TIMEOUT_S)
    try:
        yield server
    finally:
        end()
        thread.join(START_TIMEOUT_S)


def truth_line(truth: Truth) -> str:
    """Return the truth about one request as a line of JSON."""
    fields = {
        "request_id": truth.request_id,
        "received_s": truth.received_s,
        "chunk_sent_s": truth.chunk_sent_s,
        "output_tokens": truth.output_tokens,
        "prompt_tokens": truth.prompt_tokens,
    }
    return json.dumps(fields) + "\n"


def _serve(server: SseServer, started: Future[Callable[[], object]]) -> None:
    async def run() -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        async with listening(server):
            started.set_result(lambda: loop.call_soon_threadsafe(ended.set))
            await ended.wait()

    try:
        asyncio.run(run())
    except OSError as error:
        started.set_exception(error)
