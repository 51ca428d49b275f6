"""An OpenAI-compatible server on a real socket that answers, or misbehaves, as it is told to."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from orchestrator.fakes.openai.engine import Engine, EngineSettings
from orchestrator.fakes.openai.script import Act, Behaviour, Chunk, Script, good

HOST = "127.0.0.1"
START_TIMEOUT_S = 20.0


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
    _room: asyncio.Semaphore | None = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request as the behaviour says."""
        received_s = asyncio.get_running_loop().time()
        body = await request.json()
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
        names = self.engine.settings.models or ("fake",)
        limit = self.engine.settings.max_model_len
        items = [{"id": name, "object": "model", "max_model_len": limit} for name in names]
        return web.json_response({"object": "list", "data": items})

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
        loop = asyncio.get_running_loop()
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
            wait_s = 0.0 if part.at_s is None else received_s + part.at_s - loop.time()
            await asyncio.sleep(max(0.0, wait_s))
            if part.tokens:
                self.engine.generate(part.tokens, is_first=not sent_s)
                sent_s.append(loop.time())
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
        transport.abort()
    elif transport is not None:
        transport.close()


def engine_server(settings: EngineSettings | None = None) -> SseServer:
    """Return a server whose answers are those of an engine instead of a script."""
    engine = Engine(settings)
    return SseServer(engine=engine, behaviour=lambda _number, body: engine.answer(body))


async def start(server: SseServer, port: int = 0) -> web.AppRunner:
    """Listen on loopback and set the server's ``url``; port 0 takes any that is free."""
    app = web.Application(client_max_size=1 << 28)
    app.router.add_post("/v1/completions", server.handle)
    app.router.add_post("/v1/chat/completions", server.handle)
    app.router.add_get("/v1/models", server.models)
    app.router.add_get("/metrics", server.metrics)
    app.router.add_get("/health", server.health)
    # Like an engine, it gives a request up when its client is gone.
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, HOST, port, backlog=1024).start()
    server.url = f"http://{HOST}:{runner.addresses[0][1]}"
    return runner


@contextmanager
def serving(server: SseServer | None = None) -> Iterator[SseServer]:
    """Run a server in a thread of its own until the block ends."""
    server = server or SseServer()
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    thread = threading.Thread(target=_run_loop, args=(loop, server, ready), daemon=True)
    thread.start()
    try:
        if not ready.wait(START_TIMEOUT_S):
            raise OSError("the fake server did not start")
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(START_TIMEOUT_S)


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


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


def _run_loop(loop: asyncio.AbstractEventLoop, server: SseServer, ready: threading.Event) -> None:
    asyncio.set_event_loop(loop)
    runner = loop.run_until_complete(start(server))
    ready.set()
    loop.run_forever()
    loop.run_until_complete(runner.cleanup())
    loop.close()
