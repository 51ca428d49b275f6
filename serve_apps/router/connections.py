"""Connections of Serve's proxy on which no request comes, or comes for ever.

uvicorn waits without end for the headers of a request, and for as many connections as the process
has descriptors: after that nobody is let in. Its own limits (``limit_concurrency``, and a time for
kept connections without a byte) are not of that. So the proxy's connections are of a class that
knows which of them wait: they have a time and a number of bytes for it, and when there are too many
the one that has waited longest goes. A request that is under way is never touched.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Callable
from typing import Any

import uvicorn.protocols.http.auto as uvicorn_auto
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from serve_apps.router.upgrades import Staying

logger = logging.getLogger(__name__)

FIRST_S = 30.0
"""From the opening of a connection to the end of its first request's headers."""
AGAIN_S = 120.0
"""From an answer's end to the end of the next headers; uvicorn itself closes what sends nothing for
``keep_alive_timeout_s``, 90 s by Serve's default."""
MAX_HEAD_BYTES = 2 << 20
"""Of headers that are not at their end; above what ``production.max_header_kib`` may allow."""
SPARE = 512
"""Descriptors that are left to Ray, and to requests under way."""


class Connections:
    """The open connections of one server.

    Args:
        most: How many may be open.
        first_s: As ``FIRST_S``.
        again_s: As ``AGAIN_S``.
        max_head_bytes: As ``MAX_HEAD_BYTES``.
    """

    def __init__(
        self,
        most: int,
        *,
        first_s: float = FIRST_S,
        again_s: float = AGAIN_S,
        max_head_bytes: int = MAX_HEAD_BYTES,
    ) -> None:
        self.most, self.max_head_bytes = most, max_head_bytes
        self._first_s, self._again_s = first_s, again_s
        self.num_cut = 0
        """Connections that were ended so far."""
        self._open: set[HttpToolsProtocol] = set()
        self._waiting: dict[HttpToolsProtocol, asyncio.TimerHandle] = {}
        """By how long they have waited, longest first."""

    def __len__(self) -> int:
        """Return how many are open."""
        return len(self._open)

    def opened(self, one: HttpToolsProtocol) -> None:
        """Take a new one in; where that is one too many, end another that waits, or this one."""
        self._open.add(one)
        self._wait(one, self._first_s)
        if len(self._open) > self.most:
            self.cut(next(iter(self._waiting)))

    def asked(self, one: HttpToolsProtocol) -> None:
        """Note that a whole head has come: a request is under way."""
        timer = self._waiting.pop(one, None)
        if timer is not None:
            timer.cancel()

    def answered(self, one: HttpToolsProtocol) -> None:
        """Note that it waits for its next request."""
        if one in self._open:
            self._wait(one, self._again_s)

    def closed(self, one: HttpToolsProtocol) -> None:
        """Forget one."""
        self.asked(one)
        self._open.discard(one)

    def is_waiting(self, one: HttpToolsProtocol) -> bool:
        """Return whether no request is under way on it."""
        return one in self._waiting

    def cut(self, one: HttpToolsProtocol) -> None:
        """End a connection with whatever waits in its buffers."""
        self.num_cut += 1
        if self.num_cut & (self.num_cut - 1) == 0:  # a flood must not fill the log, too
            logger.warning("%d connections without a request were ended so far", self.num_cut)
        self.closed(one)
        one.transport.abort()

    def _wait(self, one: HttpToolsProtocol, limit_s: float) -> None:
        self.asked(one)
        self._waiting[one] = asyncio.get_running_loop().call_later(limit_s, self.cut, one)


def guarded(connections: Connections) -> type[HttpToolsProtocol]:
    """Return uvicorn's protocol with its connections looked after."""

    class Guarded(Staying):
        """One connection."""

        head_bytes = 0

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
            super().connection_made(transport)
            connections.opened(self)

        def data_received(self, data: bytes) -> None:
            if connections.is_waiting(self):
                self.head_bytes += len(data)
                if self.head_bytes > connections.max_head_bytes:
                    connections.cut(self)
                    return
            super().data_received(data)

        def on_headers_complete(self) -> None:
            self.head_bytes = 0
            connections.asked(self)
            super().on_headers_complete()

        def on_response_complete(self) -> None:
            has_next = bool(self.pipeline)
            super().on_response_complete()
            if not has_next:
                connections.answered(self)

        def connection_lost(self, exc: Exception | None) -> None:
            connections.closed(self)
            super().connection_lost(exc)

    return Guarded


def most_connections(limits: Callable[[int], tuple[int, int]] = resource.getrlimit) -> int:
    """Return how many connections this process may keep open."""
    soft, _ = limits(resource.RLIMIT_NOFILE)
    return max(64, (1 << 17 if soft == resource.RLIM_INFINITY else soft) - SPARE)


def install() -> Connections:
    """Let every server that this process starts from now on look after its connections."""
    connections = Connections(most_connections())
    auto: Any = uvicorn_auto
    auto.AutoHTTPProtocol = guarded(connections)
    logger.info("at most %d connections", connections.most)
    return connections
