"""The stand-in's boot and HTTP surface."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NoReturn

from aiohttp import web

from serve_apps.engine.fake.exposition import exposition, kv_capacity, resolved_config
from serve_apps.engine.fake.knobs import Asked, Fail, Knobs, parse_command
from serve_apps.engine.fake.simulator import Request, Simulator, Step

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


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
    time.sleep(knobs.boot_delay_s)
    if knobs.fail is Fail.HANG:
        signal.pause()
    if knobs.fail is Fail.OUT_OF_MEMORY:
        _fail_core("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    if knobs.fail is Fail.EXIT:
        _fail_core("RuntimeError: the draft's weights do not fit its config")
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


class FakeServer:
    """vLLM's HTTP surface over a simulator."""

    def __init__(self, asked: Asked, knobs: Knobs) -> None:
        speculation = _in_force(asked, knobs)
        self.asked = asked
        self.knobs = knobs
        self.names = ("somebody-else",) if knobs.fail is Fail.WRONG_IDENTITY else asked.names
        self.simulator = Simulator(asked, knobs, speculation)
        self.resolved = resolved_config(asked, knobs, speculation)
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
        count = len(_prompt_of(await request.json()).split())
        return web.json_response(
            {"count": count, "max_model_len": self.asked.max_model_len, "tokens": [*range(count)]}
        )

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Answer /v1/completions."""
        return await self._answer(request, chat=False)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer /v1/chat/completions."""
        return await self._answer(request, chat=True)

    async def _answer(self, http: web.Request, *, chat: bool) -> web.StreamResponse:
        try:
            body = await http.json()
            request = _request(body, default_max_tokens=self.asked.max_model_len if chat else 16)
        except (ValueError, TypeError, KeyError) as error:
            return _error(400, f"bad request: {error}", "BadRequestError")
        if body.get("model", self.names[0]) not in self.names:
            return _error(404, f"The model `{body['model']}` does not exist.", "NotFoundError")
        if request.num_prompt_tokens + 1 > self.asked.max_model_len:
            return _error(400, "the prompt exceeds the context length", "BadRequestError")
        if self.knobs.fail is Fail.HANG_COMPLETIONS:
            await asyncio.Event().wait()
        steps = self.simulator.generate(request)
        reply = _Reply(self.asked.names[0], request, chat=chat)
        async with contextlib.aclosing(steps):
            if body.get("stream"):
                options = body.get("stream_options") or {}
                answer = await self._stream(http, reply, steps, bool(options.get("include_usage")))
            else:
                answer = await self._whole(reply, steps)
        self._count_answer()
        return answer

    def _count_answer(self) -> None:
        self.answered += 1
        if self.answered == self.knobs.die_after_requests:
            _say("EngineCore encountered a fatal error.", process="EngineCore", level="ERROR")
            # After the answer's last byte is on its way, as an engine dies between requests.
            asyncio.get_running_loop().call_later(0.05, os._exit, 1)

    async def _whole(self, reply: _Reply, steps: AsyncIterator[Step]) -> web.Response:
        tokens: list[str] = []
        reason: str | None = None
        async for step in steps:
            tokens += step.tokens
            reason = step.finish_reason
        if self.knobs.fail is Fail.EMPTY_COMPLETIONS:
            tokens = []
        return web.json_response(reply.whole(tokens, reason))

    async def _stream(
        self, http: web.Request, reply: _Reply, steps: AsyncIterator[Step], with_usage: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(http)

        async def send(event: dict[str, Any]) -> None:
            await response.write(f"data: {json.dumps(event)}\n\n".encode())

        if reply.chat:
            await send(reply.event({"role": "assistant", "content": ""}, None))
        made = 0
        async for step in steps:
            made += len(step.tokens)
            text = "".join(step.tokens)
            await send(reply.event({"content": text} if reply.chat else text, step.finish_reason))
        if with_usage:
            await send(reply.usage_event(made))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


class _Reply:
    """The JSON of one answer."""

    def __init__(self, model: str, request: Request, *, chat: bool) -> None:
        self.chat = chat
        self._request = request
        self._head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{time.monotonic_ns():x}",
            "created": int(time.time()),
            "model": model,
        }
        self._kind = "chat.completion" if chat else "text_completion"

    def usage(self, made: int) -> dict[str, Any]:
        prompt = self._request.num_prompt_tokens
        return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}

    def whole(self, tokens: list[str], reason: str | None) -> dict[str, Any]:
        text = "".join(tokens)
        content = (
            {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        )
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": reason}
        usage = self.usage(len(tokens))
        return {**self._head, "object": self._kind, "choices": [choice], "usage": usage}

    def event(self, piece: dict[str, str] | str, reason: str | None) -> dict[str, Any]:
        key = "delta" if self.chat else "text"
        choice = {"index": 0, key: piece, "logprobs": None, "finish_reason": reason}
        return {**self._head, "object": self._stream_kind, "choices": [choice]}

    def usage_event(self, made: int) -> dict[str, Any]:
        return {
            **self._head,
            "object": self._stream_kind,
            "choices": [],
            "usage": self.usage(made),
        }

    @property
    def _stream_kind(self) -> str:
        return "chat.completion.chunk" if self.chat else self._kind


def _prompt_of(body: dict[str, Any]) -> str:
    if "messages" in body:
        return "\n".join(f"{m['role']}: {m['content']}" for m in body["messages"])
    prompt = body["prompt"]
    return prompt if isinstance(prompt, str) else " ".join(map(str, prompt))


def _request(body: dict[str, Any], *, default_max_tokens: int) -> Request:
    prompt = _prompt_of(body)
    asked = body.get("max_completion_tokens") or body.get("max_tokens")
    temperature = body.get("temperature")
    return Request(
        prompt=prompt,
        num_prompt_tokens=max(1, len(prompt.split())),
        max_tokens=int(default_max_tokens if asked is None else asked),
        temperature=1.0 if temperature is None else float(temperature),
        ignore_eos=bool(body.get("ignore_eos")),
        seed=body.get("seed"),
    )


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
    _boot(asked, knobs, _in_force(asked, knobs))
    asyncio.run(_serve(FakeServer(asked, knobs)))
    return 0
