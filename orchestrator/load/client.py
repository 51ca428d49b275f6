"""One streamed request to an OpenAI-compatible engine; here alone orchestrator imports aiohttp."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

import aiohttp

from orchestrator.core.types import RequestRecord, TokenSource
from orchestrator.load.sse import DONE, SseDecoder

MAX_ERROR_CHARS = 500
"""Longest error text kept in a record; engines answer with whole tracebacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the engine is to sample; every value is written into the request.

    An engine fills in what a request leaves out from the model's generation_config, which would
    make the sampling depend on a file that is no part of the study.
    """

    temperature: float
    top_p: float
    top_k: int
    """0 means no limit."""
    seed: int
    max_tokens: int
    ignore_eos: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request to make."""

    request_id: str
    prompt_id: str
    prompt: str
    endpoint: Literal["chat", "completions"]
    model: str
    sampling: Sampling


def request_body(call: Call) -> dict[str, Any]:
    """Return the JSON body of the call, with its sampling written out in full."""
    sampling = call.sampling
    body: dict[str, Any] = {
        "model": call.model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": sampling.seed,
        "max_tokens": sampling.max_tokens,
        "ignore_eos": sampling.ignore_eos,
    }
    if call.endpoint == "chat":
        return body | {"messages": [{"role": "user", "content": call.prompt}]}
    return body | {"prompt": call.prompt}


class SseClient:
    """Makes streamed requests to one engine and times them.

    Args:
        base_url: Address of the engine, with or without ``/v1``.
        timeout_s: Longest time that one request may take altogether.
        clock: Monotonic seconds.
        origin_s: Moment on ``clock`` that ``started_s`` of the records counts from.
    """

    def __init__(
        self, base_url: str, *, timeout_s: float, clock: Callable[[], float], origin_s: float
    ) -> None:
        self._url = base_url.rstrip("/").removesuffix("/v1")
        self._timeout_s = timeout_s
        self._clock = clock
        self._origin_s = origin_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Open the connection pool; its size is the caller's concurrency, not ours."""
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._timeout_s),
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connections."""
        assert self._session is not None
        await self._session.close()

    async def complete(self, call: Call) -> RequestRecord:
        """Make one request and read it to its end.

        What goes wrong with the request or its connection is recorded, not raised: one reset
        does not end a cell.
        """
        answer = _Answer(clock=self._clock, started_s=self._clock())
        try:
            await self._stream(call, answer)
        except TimeoutError:
            answer.error = f"no complete answer within {self._timeout_s:g} s"
        except (aiohttp.ClientError, OSError) as error:
            answer.error = _shorten(f"{type(error).__name__}: {error}")
        except ValueError as error:
            answer.error = _shorten(f"broken event stream: {error}")
        return answer.record(call, origin_s=self._origin_s)

    async def _stream(self, call: Call, answer: _Answer) -> None:
        assert self._session is not None
        path = "/v1/chat/completions" if call.endpoint == "chat" else "/v1/completions"
        headers = {"X-Request-Id": call.request_id}
        async with self._session.post(
            self._url + path, json=request_body(call), headers=headers
        ) as response:
            if response.status != 200:
                message = _error_message(await response.text(errors="replace"))
                answer.error = _shorten(f"HTTP {response.status}: {message}")
                return
            decoder = SseDecoder()
            async for read in response.content.iter_any():
                answer.take(decoder.feed(read))
                if answer.is_done:
                    return
            answer.take(decoder.finish())
            answer.close()


@dataclass(slots=True, kw_only=True)
class _Answer:
    """One answer while it arrives."""

    clock: Callable[[], float]
    started_s: float
    chunk_times_s: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    usage: Mapping[str, Any] | None = None
    finish_reason: str | None = None
    last_s: float | None = None
    is_done: bool = False
    error: str | None = None

    def take(self, events: list[str]) -> None:
        """Read events that arrived together; raises ValueError for what is no JSON object."""
        now_s = self.clock() - self.started_s
        for data in events:
            if data.strip() == DONE:
                self.is_done = True
                return
            event = json.loads(data)
            if not isinstance(event, dict):
                raise ValueError(f"an event that is no object: {data[:80]}")
            self._take_event(event, now_s)
            if self.error is not None:
                self.is_done = True
                return

    def close(self) -> None:
        """Judge a stream that ended without ``[DONE]``: it is whole if it said why it ended."""
        if not self.is_done and self.finish_reason is None:
            self.error = "the stream ended before the answer did"

    def record(self, call: Call, *, origin_s: float) -> RequestRecord:
        """Return what is known of the request now."""
        usage = self.usage or {}
        tokens = _count(usage.get("completion_tokens"))
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        error = self.error
        if error is None and tokens is None and not self.texts:
            error = "the answer has neither text nor usage"
        return RequestRecord(
            request_id=call.request_id,
            prompt_id=call.prompt_id,
            prompt_tokens=_count(usage.get("prompt_tokens")),
            output_tokens=tokens,
            token_source=TokenSource.NONE if tokens is None else TokenSource.USAGE,
            finish_reason=self.finish_reason,
            started_s=self.started_s - origin_s,
            ttft_s=self.chunk_times_s[0] if self.chunk_times_s else None,
            e2e_s=self.last_s if error is None else None,
            chunk_times_s=tuple(self.chunk_times_s),
            cached_tokens=_count(cached),
            text="".join(self.texts),
            error=error,
        )

    def _take_event(self, event: dict[str, Any], now_s: float) -> None:
        if event.get("error") is not None:
            self.error = _shorten(_error_message(json.dumps(event)))
            return
        self.last_s = now_s
        if isinstance(event.get("usage"), dict):
            # With continuous usage every chunk has one; the last is the whole answer's.
            self.usage = event["usage"]
        choices = event.get("choices") or []
        if not isinstance(choices, list) or not all(isinstance(item, dict) for item in choices):
            raise ValueError(f"choices that are no list of objects: {choices!r:.80}")
        for choice in choices[:1]:
            text = _text_of(choice)
            if text:
                self.chunk_times_s.append(now_s)
                self.texts.append(text)
            self.finish_reason = choice.get("finish_reason") or self.finish_reason


def _text_of(choice: Mapping[str, Any]) -> str:
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return str(choice.get("text") or "")
    # vLLM renamed the first to the second over time, and some versions send both.
    reasoning = delta.get("reasoning") or delta.get("reasoning_content") or ""
    text = f"{reasoning}{delta.get('content') or ''}"
    if text:
        return text
    # A tool call is generated text too; without it ttft would be that of the call's end.
    calls = delta.get("tool_calls")
    return json.dumps(calls) if calls else ""


def _count(value: object) -> int | None:
    """Return a token count, or None for anything that cannot be one."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value


def _error_message(body: str) -> str:
    """Return the message of an error body in any of the forms that engines and proxies use."""
    try:
        item = json.loads(body)
    except ValueError:
        return " ".join(body.split()) or "no body"
    if isinstance(item, dict):
        inner = item.get("error", item)
        if isinstance(inner, dict):
            return str(inner.get("message") or inner.get("detail") or body)
        return str(inner)
    return body


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_ERROR_CHARS else text[: MAX_ERROR_CHARS - 3] + "..."
