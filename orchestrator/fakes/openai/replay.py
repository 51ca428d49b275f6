"""The fake server without a web framework: a known answer, sent at its moments, at little cost.

What a client is held against must be exact. Under a web framework each request costs a few tenths
of a millisecond before its arrival is even noticed, and the last of sixteen that arrive together
seems milliseconds late; here it takes a fraction of that, and a chunk is one write.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from orchestrator.fakes.openai.script import Act, Chunk, Part, Script, failure
from orchestrator.fakes.openai.server import HOST, MAX_BODY_BYTES, SseServer, Truth, stop_listening

MAX_HEAD_BYTES = 64 << 10
END = b"0\r\n\r\n"
"""The last piece of a chunked body."""


@asynccontextmanager
async def replaying(server: SseServer, port: int = 0) -> AsyncIterator[None]:
    """Listen on loopback and set the server's ``url``; port 0 takes any that is free.

    The behaviour's scripts may hold no acts and ``max_num_seqs`` has no effect: faults are the
    other server's.
    """
    loop = asyncio.get_running_loop()
    open_connections: set[_Connection] = set()
    listener = await loop.create_server(
        lambda: _Connection(server, open_connections), HOST, port, backlog=1024
    )
    server.url = f"http://{HOST}:{listener.sockets[0].getsockname()[1]}"
    try:
        yield
    finally:
        await stop_listening(listener)
        for connection in tuple(open_connections):
            connection.close()


class _Connection(asyncio.Protocol):
    """One connection: request, answer, request, answer."""

    def __init__(self, server: SseServer, open_connections: set[_Connection]) -> None:
        self._server = server
        self._open = open_connections
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._answer: _Answer | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._open.add(self)
        self._server.num_connections += 1

    def connection_lost(self, _error: Exception | None) -> None:
        self._open.discard(self)
        self._transport = None
        if self._answer is not None:
            self._answer.give_up()

    def data_received(self, data: bytes) -> None:
        now_s = self._loop.time()
        self._received += data
        if self._answer is None:
            self._take_request(now_s)

    def close(self) -> None:
        """Close it; an answer that is under way ends here."""
        if self._transport is not None:
            self._transport.abort()

    def end_answer(self) -> None:
        """Go on with the next request, which may be there already."""
        self._answer = None
        if self._received:
            self._take_request(self._loop.time())

    def _take_request(self, now_s: float) -> None:
        assert self._transport is not None
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            if len(self._received) > MAX_HEAD_BYTES:
                self.close()
            return
        first, *lines = bytes(self._received[:end]).decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        length = int(headers.get("content-length", "0"))
        if length > MAX_BODY_BYTES or "transfer-encoding" in headers:
            self.close()
            return
        start = end + 4
        if len(self._received) < start + length:
            if headers.get("expect", "").lower() == "100-continue" and len(self._received) == start:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return
        body = bytes(self._received[start : start + length])
        del self._received[: start + length]
        method, path, _ = first.split(" ", 2)
        if method == "POST":
            self._post(path, headers, body, now_s)
        else:
            self._transport.write(_get(self._server, path))
            self.end_answer()

    def _post(self, path: str, headers: dict[str, str], body: bytes, now_s: float) -> None:
        assert self._transport is not None
        server = self._server
        script = failure(404, f"no such path: {path}")
        if path in ("/v1/completions", "/v1/chat/completions"):
            script = _scripted(server, path, headers, body)
        self._transport.write(_head(script))
        self._answer = _Answer(
            server,
            self,
            script,
            transport=self._transport,
            truth=(headers.get("x-request-id"), now_s),
        )
        self._answer.go_on()


class _Answer:
    """One answer while it is sent; ``truth`` is the request's id and the moment it arrived."""

    def __init__(
        self,
        server: SseServer,
        connection: _Connection,
        script: Script,
        *,
        transport: asyncio.Transport,
        truth: tuple[str | None, float],
    ) -> None:
        self._server = server
        self._connection = connection
        self._script = script
        self._transport = transport
        self._request_id, self._received_s = truth
        self._loop = asyncio.get_running_loop()
        self._next = 0
        self._sent_s: list[float] = []
        self._num_tokens = 0
        self._timer: asyncio.TimerHandle | None = None
        self._counters = server.engine.counters
        server.in_flight += 1
        self._counters.running += script.status == 200
        if script.status == 200:
            server.engine.start(script)

    def go_on(self) -> None:
        """Send all parts that are due, and come back for the next one."""
        parts = self._script.parts
        while self._next < len(parts):
            part = parts[self._next]
            if isinstance(part, Chunk) and part.at_s is not None:
                # Every moment counts from the arrival, so that a late one delays no other.
                due_s = self._received_s + part.at_s
                if due_s > self._loop.time():
                    self._timer = self._loop.call_at(due_s, self.go_on)
                    return
            self._next += 1
            self._send(part, is_last=self._next == len(parts))
        if not parts:
            self._transport.write(END)
        self._end()
        self._connection.end_answer()

    def give_up(self) -> None:
        """End early, because the client is gone."""
        if self._timer is not None:
            self._timer.cancel()
        self._end()

    def _send(self, part: Part, *, is_last: bool) -> None:
        assert not isinstance(part, Act), "a replay has no faults"
        data = part
        if isinstance(part, Chunk):
            data = part.data
            if part.tokens:
                self._server.engine.generate(part.tokens, is_first=not self._sent_s)
                self._num_tokens += part.tokens
                self._sent_s.append(self._loop.time())
        assert isinstance(data, bytes)
        self._transport.write(b"%x\r\n%b\r\n%b" % (len(data), data, END if is_last else b""))

    def _end(self) -> None:
        self._server.in_flight -= 1
        if self._script.status != 200:
            return
        self._counters.running -= 1
        self._server.on_truth(
            Truth(
                request_id=self._request_id,
                received_s=self._received_s,
                chunk_sent_s=tuple(self._sent_s),
                output_tokens=self._num_tokens,
                prompt_tokens=self._script.prompt_tokens,
            )
        )


def _scripted(server: SseServer, path: str, headers: dict[str, str], body: bytes) -> Script:
    try:
        item = json.loads(body)
    except ValueError as error:
        return failure(400, f"the body is no JSON: {error}")
    number = server.num_requests
    server.num_requests += 1
    if server.keeps_requests:
        server.paths.append(path)
        server.headers.append(headers)
        server.bodies.append(item)
    return server.behaviour(number, item)


def _head(script: Script) -> bytes:
    lines = [
        f"HTTP/1.1 {script.status} {'OK' if script.status == 200 else 'Error'}",
        f"Content-Type: {script.content_type}; charset=utf-8",
        "Transfer-Encoding: chunked",
        *(f"{name}: {value}" for name, value in script.headers.items()),
    ]
    return "\r\n".join([*lines, "\r\n"]).encode("latin-1")


def _get(server: SseServer, path: str) -> bytes:
    bodies: dict[str, str] = {
        "/health": "",
        "/metrics": server.engine.metrics(),
        "/v1/models": json.dumps(server.engine.models()),
    }
    status = "200 OK" if path in bodies else "404 Not Found"
    kind = "application/json" if path == "/v1/models" else "text/plain"
    body = bodies.get(path, "not found").encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body
