"""One streamed request to an OpenAI-compatible engine, and its times."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import SimpleNamespace, TracebackType
from typing import Self

import aiohttp

from orchestrator.core.requests import RequestFault, RequestRecord
from orchestrator.errors import ConfigError
from orchestrator.load.answer import Answer, error_message
from orchestrator.load.call import Call, request_body
from orchestrator.load.settings import STALL_TIMEOUT_S
from orchestrator.load.sse import SseDecoder

KEEP_ALIVE_S = 2.0
"""How long an idle connection is used again; uvicorn, which vLLM runs on, closes one after 5 s,
and a request that meets the close is lost."""

END_GRACE_S = 0.2
"""How long the end of the body may lag behind ``[DONE]``, so that the connection can be kept."""

MAX_ERROR_BODY_BYTES = 64 << 10
"""How much is kept of an answer that is no event stream; it holds the reason."""

NO_ROOM = (429, 503)
"""HTTP statuses of a server that is full."""


def server_root(base_url: str) -> str:
    """Return the address of a server without ``/v1``.

    Raises:
        ConfigError: It is none of HTTP.
    """
    if not base_url.startswith(("http://", "https://")):
        raise ConfigError("url", f"{base_url!r} is no address", "write http://host:port/v1")
    return base_url.rstrip("/").removesuffix("/v1")


def new_session(
    timeout: aiohttp.ClientTimeout, headers: Mapping[str, str], *traces: aiohttp.TraceConfig
) -> aiohttp.ClientSession:
    """Return connections to a server, as many as are asked for, that know nothing of each other."""
    return aiohttp.ClientSession(
        timeout=timeout,
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
        trust_env=False,
        trace_configs=list(traces),
    )


class HttpClient:
    """Has a pool of connections, which is open from its ``__aenter__`` until it is left."""

    _session: aiohttp.ClientSession | None = None

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connections."""
        assert self._session is not None
        await self._session.close()


class SseClient(HttpClient):
    """Makes streamed requests to one engine and times them.

    Args:
        base_url: Address of the engine, with or without ``/v1``.
        timeout_s: Longest time that one request may take altogether.
        clock: Monotonic seconds.
        origin_s: Moment on ``clock`` that ``started_s`` of the records counts from.
        stall_timeout_s: Longest time without a byte.
        api_key: Sent as a bearer token; None sends none.
        headers: Sent with every request.

    Raises:
        ConfigError: The address is none of HTTP, or the key cannot be sent.
    """

    def __init__(
        self,
        base_url: str,
        *,
        timeout_s: float,
        clock: Callable[[], float],
        origin_s: float,
        stall_timeout_s: float = STALL_TIMEOUT_S,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._url = server_root(base_url)
        self._timeout_s = timeout_s
        self._stall_timeout_s = stall_timeout_s
        self._clock = clock
        self._origin_s = origin_s
        # A proxy that compresses would also collect chunks.
        self._headers = {"Accept-Encoding": "identity", **(headers or {})}
        self._api_key = api_key
        if api_key is not None:
            check_api_key(api_key, "api_key")
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._open: set[asyncio.Timeout] = set()
        self._moved_s = 0.0
        """On the loop's own clock, which times nothing that is measured."""
        self.given_up_s: float | None = None
        """How long no request had got anything when the client was told to give up."""

    def silent_s(self) -> float:
        """Return how long no request has got a token or an end, while any is open; else 0."""
        return _loop_s() - self._moved_s if self._open else 0.0

    def give_up(self) -> None:
        """End all requests that are open, and each that comes, as stalled."""
        self.given_up_s = self.silent_s()
        for limit in self._open:
            limit.reschedule(_loop_s())

    async def __aenter__(self) -> Self:
        """Open the connection pool; its size is the caller's concurrency, not ours."""
        trace = aiohttp.TraceConfig()
        trace.on_request_chunk_sent.append(self._on_sent)
        timeout = aiohttp.ClientTimeout(total=self._timeout_s, sock_read=self._stall_timeout_s)
        self._session = new_session(timeout, self._headers, trace)
        return self

    async def complete(self, call: Call, arrived_s: float | None = None) -> RequestRecord:
        """Make one request and read it to its end.

        What goes wrong with the request or its connection is recorded, not raised: one reset
        does not end a cell. Its times count from the moment at which it is handed to the socket;
        in the open loop from its arrival, so that a wait for a connection is not hidden.

        Args:
            call: The request.
            arrived_s: Moment of its arrival on the clock, in the open loop.
        """
        started_s = self._clock() if arrived_s is None else arrived_s
        answer = Answer(started_s=started_s, has_arrival=arrived_s is not None, key=self._api_key)
        try:
            await self._ask_unless_given_up(call, answer)
        except aiohttp.SocketTimeoutError:
            num_chunks = len(answer.chunk_moments_s)
            stall_s = self._stall_timeout_s
            answer.fail(
                RequestFault.STALLED, f"no byte for {stall_s:g} s after {num_chunks} chunks"
            )
        except TimeoutError:
            answer.fail(RequestFault.STALLED, self._late())
        except (aiohttp.ClientError, OSError) as error:
            answer.fail(RequestFault.CONNECTION, f"{type(error).__name__}: {error}")
        return answer.record(call, origin_s=self._origin_s, ended_s=self._clock())

    def _late(self) -> str:
        if self.given_up_s is None:
            return f"no complete answer within {self._timeout_s:g} s"
        return f"given up: no request got a token for {self.given_up_s:.0f} s"

    async def _ask_unless_given_up(self, call: Call, answer: Answer) -> None:
        async with asyncio.timeout(None if self.given_up_s is None else 0) as limit:
            if not self._open:
                self._moved_s = _loop_s()
            self._open.add(limit)
            try:
                await self._ask(call, answer)
                self._moved_s = _loop_s()
            finally:
                self._open.discard(limit)

    async def _ask(self, call: Call, answer: Answer) -> None:
        assert self._session is not None
        path = "/v1/chat/completions" if call.endpoint == "chat" else "/v1/completions"
        async with self._session.post(
            self._url + path,
            data=json.dumps(request_body(call)).encode(),
            headers={"Content-Type": "application/json", "X-Request-Id": call.request_id},
            # To another address would be to measure another server.
            allow_redirects=False,
            trace_request_ctx=answer,
        ) as response:
            if response.status == 200:
                await self._read(response, answer)
            else:
                await _read_error(response, answer)

    async def _read(self, response: aiohttp.ClientResponse, answer: Answer) -> None:
        clock, content = self._clock, response.content
        closed = _watch(response)
        decoder = SseDecoder()
        head = bytearray()
        try:
            while read := await content.readany():
                now_s = clock()
                if answer.last_s is None and len(head) < MAX_ERROR_BODY_BYTES:
                    head += read
                events = decoder.feed(read)
                if events:
                    num_chunks = len(answer.chunk_moments_s)
                    answer.take(events, now_s)
                    if len(answer.chunk_moments_s) > num_chunks:
                        self._moved_s = _loop_s()
                    if answer.is_done:
                        break
                    decoder.check()
            else:
                answer.take(decoder.finish(), clock())
        except (ValueError, RecursionError) as error:
            answer.fail(RequestFault.BROKEN, f"broken event stream: {error}")
        except aiohttp.ClientPayloadError as error:
            if closed is not None and closed.done() and closed.exception() is not None:
                answer.fail(RequestFault.CONNECTION, f"in the answer: {closed.exception()}")
            else:
                answer.fail(RequestFault.BROKEN, f"the stream ended before the answer did: {error}")
        answer.close(response.content_type, head.decode(errors="replace"))
        if answer.fault is None:
            await _await_end(content)

    async def _on_sent(
        self,
        _session: aiohttp.ClientSession,
        context: SimpleNamespace,
        _params: aiohttp.TraceRequestChunkSentParams,
    ) -> None:
        context.trace_request_ctx.send(self._clock())


def _loop_s() -> float:
    return asyncio.get_running_loop().time()


def check_api_key(key: str, where: str) -> None:
    """Check that a key can stand in a header; the message does not show it.

    Raises:
        ConfigError: It holds a line break or another character that no key has.
    """
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(
            where, "the key has a line break, a space or a character that is not ASCII",
            "store the bare key",
        )  # fmt: skip


def retry_after_s(value: str | None, now: datetime) -> float | None:
    """Return the seconds that a ``Retry-After`` asks to wait, in either of its forms.

    Args:
        value: The header: seconds, or a date of HTTP.
        now: The server's date.

    Returns:
        Seconds, 0 for a date that is past; None for no header and for what is neither form.
    """
    if value is None:
        return None
    with suppress(ValueError):
        seconds = float(value)
        return seconds if math.isfinite(seconds) and seconds >= 0 else None
    date = _date(value)
    return None if date is None else max(0.0, (date - now).total_seconds())


async def _read_error(response: aiohttp.ClientResponse, answer: Answer) -> None:
    body = bytearray()
    async for read in response.content.iter_any():
        body += read
        if len(body) > MAX_ERROR_BODY_BYTES:
            break
    message = error_message(body.decode(errors="replace"))
    if response.status in NO_ROOM:
        answer.retry_after_s = retry_after_s(
            response.headers.get("Retry-After"), _server_date(response)
        )
        fault = RequestFault.REFUSED
    else:
        fault = RequestFault.HTTP
    answer.fail(fault, f"HTTP {response.status}: {message}")


def _server_date(response: aiohttp.ClientResponse) -> datetime:
    """Return the server's own date, so that clocks that differ do not matter, or ours."""
    return _date(response.headers.get("Date", "")) or datetime.now(UTC)


def _date(value: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)


def _watch(response: aiohttp.ClientResponse) -> asyncio.Future[None] | None:
    """Return what tells a reset of the connection from its close; the body's error does not."""
    connection = response.connection
    protocol = None if connection is None else connection.protocol
    closed = None if protocol is None else protocol.closed
    if closed is None:
        return None
    # Once for each connection; asyncio complains of an error that nobody reads.
    closed.remove_done_callback(_hear)
    closed.add_done_callback(_hear)
    return closed


def _hear(closed: asyncio.Future[None]) -> None:
    if not closed.cancelled():
        closed.exception()


async def _await_end(content: aiohttp.StreamReader) -> None:
    """Read to the end of a body whose answer is known; what goes wrong then does not matter."""
    if content.at_eof():
        return
    with suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(END_GRACE_S):
            while await content.readany():
                pass
