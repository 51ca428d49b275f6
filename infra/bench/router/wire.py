"""One streamed request on a bare socket: when bytes came, and how HTTP framed them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

_END = b"0\r\n\r\n"


class WireError(Exception):
    """The answer is no whole chunked one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framed:
    """An answer as it was framed."""

    status: int
    chunks: tuple[bytes, ...]
    """HTTP chunks; what the sender put into one."""
    read_of: tuple[int, ...]
    """[num_chunks] number of the read that a chunk was complete with: TCP's doing, not HTTP's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer and its times."""

    framed: Framed
    ttft_s: float
    """From before the request is written to the read that completes the first chunk."""

    @property
    def shared_reads(self) -> int:
        """Chunks that came in one read with the chunk before."""
        reads = self.framed.read_of
        return sum(before == read for before, read in pairwise(reads))


class Connection(asyncio.Protocol):
    """A connection that is used again for the next request."""

    def __init__(self) -> None:
        self._reads: list[tuple[float, bytes]] = []
        self._tail = b""
        self._is_over = asyncio.Event()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Note what came and when."""
        self._reads.append((time.perf_counter(), data))
        self._tail = (self._tail + data)[-len(_END) :]
        if self._tail == _END:
            self._is_over.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio's
        """End the wait for an answer."""
        self._is_over.set()

    async def ask(self, head: bytes, *, timeout_s: float = 60.0) -> Answer:
        """Write a request and read its answer.

        Raises:
            WireError: The answer is not whole, or has an error's status.
        """
        assert self._transport is not None
        self._reads.clear()
        self._tail = b""
        self._is_over.clear()
        sent_s = time.perf_counter()
        self._transport.write(head)
        try:
            await asyncio.wait_for(self._is_over.wait(), timeout_s)
        except TimeoutError as error:
            raise WireError(f"no whole answer in {timeout_s:g} s") from error
        framed = unframed([data for _, data in self._reads])
        if framed.status != 200 or not framed.chunks:
            raise WireError(f"status {framed.status}, {len(framed.chunks)} chunks")
        return Answer(framed=framed, ttft_s=self._reads[framed.read_of[0]][0] - sent_s)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()


def request_bytes(path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> bytes:
    """Return a POST of JSON."""
    payload = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: bench",
        "Content-Type: application/json",
        f"Content-Length: {len(payload)}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + payload


def unframed(reads: Sequence[bytes]) -> Framed:
    """Return the status and the chunks of a chunked answer.

    Args:
        reads: What each read of the socket gave.

    Raises:
        WireError: It ends too early or is not chunked.
    """
    whole = b"".join(reads)
    head, found, _ = whole.partition(b"\r\n\r\n")
    if not found or b"transfer-encoding: chunked" not in head.lower():
        raise WireError(f"no chunked answer: {whole[:200]!r}")
    ends, total = [], 0
    for data in reads:
        total += len(data)
        ends.append(total)
    chunks, read_of = list[bytes](), list[int]()
    place, read = len(head) + 4, 0
    while True:
        line, found, _ = whole[place:].partition(b"\r\n")
        if not found:
            raise WireError(f"the answer breaks off after {len(chunks)} chunks")
        size, place = int(line, 16), place + len(line) + 2
        if size == 0:
            break
        if place + size > len(whole):
            raise WireError(f"the answer breaks off in chunk {len(chunks) + 1}")
        chunks.append(whole[place : place + size])
        while ends[read] < place + size:
            read += 1
        read_of.append(read)
        place += size + 2
    return Framed(status=int(head.split(b" ", 2)[1]), chunks=tuple(chunks), read_of=tuple(read_of))
