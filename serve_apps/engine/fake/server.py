"""The stand-in's boot and HTTP surface."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from aiohttp import web

from serve_apps.engine.fake.asks import NO_REQUEST, Ask, RefusedError, parse_ask, prompt_ids
from serve_apps.engine.fake.exposition import exposition, kv_capacity, resolved_config
from serve_apps.engine.fake.knobs import Answers, Asked, Fail, Knobs, parse_command
from serve_apps.engine.fake.reply import Reply
from serve_apps.engine.fake.simulator import Simulator, Step
from serve_apps.engine.sockets import FOLDER_VARIABLE

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
# As vLLM 0.32.0 words them.
_CORE_ERRORS = {
    Fail.EXIT: "RuntimeError: the draft's weights do not fit its config",
    Fail.OUT_OF_MEMORY: _OUT_OF_MEMORY,
    Fail.STARTUP_CHECK: (
        "ValueError: Free memory on device cuda:0 (38.21/119.70 GiB) on startup is less than "
        "desired GPU memory utilization (0.8, 95.76 GiB). Decrease GPU memory utilization or "
        "reduce GPU memory used by other processes."
    ),
    Fail.KV_CACHE: (
        "ValueError: No available memory for the cache blocks. Try increasing "
        "`gpu_memory_utilization` when initializing the engine (this flag also controls CPU "
        "memory reservation on the CPU backend, despite its name). See "
        "https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."
    ),
}


def _say(text: str, *, process: str = "APIServer", level: str = "INFO") -> None:
    stamp = time.strftime("%m-%d %H:%M:%S")
    sys.stderr.write(f"({process} pid={os.getpid()}) {level} {stamp} [fake.py:1] {text}\n")
    sys.stderr.flush()


def _fail_core(error: str) -> NoReturn:
    """Die as vLLM does when its engine core fails: the root cause first, a generic one last."""
    for line in ("EngineCore failed to start.", "Traceback (most recent call last):", error):
        _say(line, process="EngineCore", level="ERROR")
    sys.stderr.write(
        "Traceback (most recent call last):\n"
        "RuntimeError: Engine core initialization failed. See root cause above. "
        "Failed core proc(s): {}\n"
    )
    sys.exit(1)


def _die_without_memory() -> NoReturn:
    """Die as vLLM does when its engine core runs out of memory while it serves."""
    for line in (
        "EngineCore encountered a fatal error.",
        "Traceback (most recent call last):",
        _OUT_OF_MEMORY,
    ):
        _say(line, process="EngineCore", level="ERROR")
    _say(
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack "
        "trace (above) for the root cause.",
        level="ERROR",
    )
    os._exit(1)


def _load(knobs: Knobs) -> None:
    """Take the time of a boot, with a line now and then where the knob says so."""
    left_s = knobs.boot_delay_s
    while left_s > 0:
        pause_s = min(left_s, knobs.log_every_s or left_s)
        time.sleep(pause_s)
        left_s -= pause_s
        if knobs.log_every_s:
            _say(f"Loading weights, {left_s:.2f} s left", process="Worker")


def _boot(asked: Asked, knobs: Knobs, speculation: dict[str, Any] | None) -> None:
    """Log as vLLM logs, and fail where the knob says so."""
    if knobs.fail is Fail.BAD_ARGUMENTS:
        sys.stderr.write("usage: vllm [options]\nvllm: error: unrecognized arguments: --nonsense\n")
        sys.exit(2)
    _say(f"version {knobs.version}")
    _say("Resolved architecture: Qwen3ForCausalLM")
    if speculation and speculation.get("model"):
        _say(f"Resolved architecture: {knobs.draft_architecture}")
    _say(f"Initializing a V1 LLM engine (v{knobs.version}) with config:", process="EngineCore")
    if knobs.model_runner == "v2":
        _say("Using V2 Model Runner", process="Worker")
    else:
        _say("Model Runner V2 requires Triton; using the V1 model runner instead.")
    _load(knobs)
    if knobs.fail is Fail.HANG:
        signal.pause()
    if knobs.fail in _CORE_ERRORS:
        _fail_core(_CORE_ERRORS[knobs.fail])
    _say("Model loading took 16.5 GiB memory and 1.250000 seconds", process="Worker")
    tokens, concurrency = kv_capacity(asked, knobs, speculation)
    _say(
        f"GPU KV cache size: {tokens:,} tokens, Maximum concurrency for "
        f"{asked.max_model_len:,} tokens per request: {concurrency:.2f}x",
        process="EngineCore",
    )


def _in_force(asked: Asked, knobs: Knobs) -> dict[str, Any] | None:
    """Return the speculative config with vLLM's defaults, and what the knob makes of it."""
    if asked.speculative_config is None:
        return None
    defaults = {"draft_sample_method": "greedy", "rejection_sample_method": "standard"}
    return {**defaults, **asked.speculative_config, **(knobs.override_speculation or {})}


def _error(status: int, message: str, kind: str) -> web.Response:
    error = {"message": message, "type": kind, "param": None, "code": status}
    return web.json_response({"error": error}, status=status)


def _refused(error: Exception) -> web.Response:
    if isinstance(error, RefusedError):
        return _error(error.status, error.message, error.kind)
    return _error(400, f"bad request: {error}", "BadRequestError")


class FakeServer:
    """vLLM's HTTP surface over a simulator."""

    def __init__(self, asked: Asked, knobs: Knobs) -> None:
        speculation = _in_force(asked, knobs)
        self.asked = asked
        self.knobs = knobs
        self.names = ("somebody-else",) if knobs.fail is Fail.WRONG_IDENTITY else asked.names
        self.simulator = Simulator(asked, knobs, speculation)
        self.resolved = resolved_config(asked, knobs, speculation)
        self.asked_for = 0
        self.answered = 0

    def app(self) -> web.Application:
        """Return the routes."""
        app = web.Application(client_max_size=64 * 1024**2)
        app.router.add_get("/health", self.health)
        app.router.add_get("/version", self.version)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_post("/v1/chat/completions", self.chat)
        if os.environ.get("VLLM_SERVER_DEV_MODE") == "1":
            app.router.add_get("/server_info", self.server_info)
        return app

    async def health(self, _: web.Request) -> web.Response:
        """Answer 200 once the boot is over."""
        return web.Response(status=503 if self.knobs.fail is Fail.UNHEALTHY else 200)

    async def version(self, _: web.Request) -> web.Response:
        """Answer the version that the knob claims."""
        return web.json_response({"version": self.knobs.version})

    async def models(self, _: web.Request) -> web.Response:
        """List every served name."""
        cards = [
            {"id": name, "object": "model", "max_model_len": self.asked.max_model_len}
            for name in self.names
        ]
        return web.json_response({"object": "list", "data": cards})

    async def metrics(self, _: web.Request) -> web.Response:
        """Answer the counters."""
        return web.Response(text=exposition(self.simulator, self.resolved))

    async def server_info(self, _: web.Request) -> web.Response:
        """Answer the resolved config."""
        return web.json_response({"vllm_config": self.resolved, "vllm_env": {}, "system_env": {}})

    async def tokenize(self, request: web.Request) -> web.Response:
        """Answer one token per word."""
        try:
            tokens = prompt_ids(await request.json())
        except (RefusedError, *NO_REQUEST) as error:
            return _refused(error)
        limit = self.asked.max_model_len
        return web.json_response(
            {"count": len(tokens), "max_model_len": limit, "tokens": list(tokens)}
        )

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Answer /v1/completions."""
        return await self._answer(request, chat=False)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer /v1/chat/completions."""
        return await self._answer(request, chat=True)

    async def _answer(self, http: web.Request, *, chat: bool) -> web.StreamResponse:
        try:
            ask = self._parse(await http.json(), is_chat=chat)
        except (RefusedError, *NO_REQUEST) as error:
            return _refused(error)
        await self._play_faults()
        steps = self.simulator.generate(ask.request)
        if self.knobs.fail is Fail.LOOPING_COMPLETIONS:
            steps = _looping(steps)
        reply = Reply(
            ask, self.simulator.chain, model=self.asked.names[0],
            build=f"vllm-{self.knobs.version}-fake",
        )  # fmt: skip
        async with contextlib.aclosing(steps):
            if ask.is_streamed:
                answer = await self._stream(http, reply, steps, ask.with_usage)
            else:
                answer = await self._whole(reply, steps)
        self._count_answer()
        return answer

    async def _play_faults(self) -> None:
        """Die or hang where the knobs say so, before the first token."""
        self.asked_for += 1
        if self.asked_for == self.knobs.oom_at_request:
            _die_without_memory()
        last = self.knobs.hang_after_requests
        if self.knobs.fail is Fail.HANG_COMPLETIONS or 0 < last < self.asked_for:
            await asyncio.Event().wait()

    def _parse(self, body: dict[str, Any], *, is_chat: bool) -> Ask:
        is_bad = self.knobs.answers is Answers.GARBAGE and self.simulator.depth > 0
        return parse_ask(body, self.asked, self.names, is_chat=is_chat, says_garbage=is_bad)

    def _count_answer(self) -> None:
        self.answered += 1
        if self.answered == self.knobs.die_after_requests:
            _say("EngineCore encountered a fatal error.", process="EngineCore", level="ERROR")
            # After the answer's last byte is on its way, as an engine dies between requests.
            asyncio.get_running_loop().call_later(0.05, os._exit, 1)

    async def _whole(self, reply: Reply, steps: AsyncIterator[Step]) -> web.Response:
        tokens: list[int] = []
        reason: str | None = None
        async for step in steps:
            tokens += step.tokens
            reason = step.finish_reason
        if self.knobs.fail is Fail.EMPTY_COMPLETIONS:
            tokens = []
        return web.json_response(reply.whole(tokens, reason))

    async def _stream(
        self, http: web.Request, reply: Reply, steps: AsyncIterator[Step], with_usage: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(http)

        async def send(event: dict[str, Any]) -> None:
            await response.write(f"data: {json.dumps(event)}\n\n".encode())

        for event in reply.start():
            await send(event)
        async for step in steps:
            for event in reply.step(step.tokens, step.finish_reason):
                await send(event)
        if with_usage:
            await send(reply.usage())
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


async def _looping(steps: AsyncGenerator[Step, None]) -> AsyncGenerator[Step, None]:
    """Give the first token in every place."""
    first: tuple[int, ...] = ()
    async with contextlib.aclosing(steps):
        async for step in steps:
            first = first or step.tokens[:1]
            yield replace(step, tokens=first * len(step.tokens))


def _bind_core_socket() -> None:
    """Leave a socket where vLLM leaves its own, if a place is named."""
    place = os.environ.get(FOLDER_VARIABLE)
    if place is not None:
        with socket.socket(socket.AF_UNIX) as core:
            core.bind(str(Path(place) / str(uuid.uuid4())))


async def _serve(server: FakeServer) -> None:
    # Cancelled on disconnect: an abandoned request is aborted, as in vLLM.
    runner = web.AppRunner(server.app(), handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, server.asked.host, server.asked.port).start()
    _say(f"Starting vLLM server on http://{server.asked.host}:{server.asked.port}")
    done = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, done.set)
    await done.wait()
    os._exit(0)  # streams in flight are cut, as by an engine that is told to go


def main(argv: Sequence[str]) -> int:
    """Run the stand-in until it is told to go."""
    asked, knobs = parse_command(argv), Knobs.from_env(os.environ)
    if knobs.stubborn_child:
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    _bind_core_socket()
    _boot(asked, knobs, _in_force(asked, knobs))
    asyncio.run(_serve(FakeServer(asked, knobs)))
    return 0
