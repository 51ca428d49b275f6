"""The way past the replica: a router's bytes to the engine's own HTTP and back, untouched.

A request through Serve's handle costs Python on both sides, for the request and for each chunk. A
door costs a copy: a router opens a connection, shows the boot's secret and sends one request; what
the engine answers comes back byte for byte, so HTTP's chunks stay what they are. One connection is
one request. So what is under way can be counted, a client that leaves ends it, and whoever dies on
the way is noticed at once.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from serve_apps.engine.spec import HOST

logger = logging.getLogger(__name__)

ACCEPTED = b"+"
"""What a router reads before the answer: the engine has the request."""
SECRET_TIMEOUT_S = 10.0
"""From the opening of a connection to its secret."""
MAX_STRANGERS = 256
"""Connections that have not shown the secret yet."""
_SECRET_BYTES = 32
_MAX_KEPT_BYTES = 1 << 20
"""Of a request that waits for its place; the rest waits at the router."""
_SOCKET = "door"

_T = TypeVar("_T")


class DoorAddress(NamedTuple):
    """Where a door is, and what opens it; handed out over Ray alone."""

    secret: str
    """[2 * _SECRET_BYTES] hexadecimal; the first thing that is sent."""
    path: str | None
    """Unix socket, for the engine's own node."""
    host: str | None
    port: int


class Door:
    """The door of one boot; it listens nowhere until somebody asks for its address.

    It has a thread of its own: a replica's destructor holds the loop that it runs in.

    Args:
        port: The engine's own, on loopback.
        folder: The boot's folder of sockets, which nobody else can enter.
        most: Requests at once; more wait until one ends, first come first served.
        is_alive: Whether the engine's process runs: another's may get its port.
    """

    def __init__(self, port: int, folder: str, *, most: int, is_alive: Callable[[], bool]) -> None:
        self._secret = secrets.token_hex(_SECRET_BYTES)
        self._port, self._path, self._most = port, str(Path(folder) / _SOCKET), most
        self._is_alive = is_alive
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._servers: dict[str | None, asyncio.Server] = {}
        self._strangers: set[_Visit] = set()
        self._waiting: deque[_Visit] = deque()
        self._inside: set[_Visit] = set()
        self._is_empty = threading.Event()
        self._is_empty.set()
        self._is_shut = False

    async def address(self, host: str | None) -> DoorAddress:
        """Listen, and return where.

        Args:
            host: Address of this node for a router on another one; None for one on this node.

        Raises:
            OSError: It cannot listen there.
        """
        port = await asyncio.wrap_future(self._submit(self._listen(host)))
        path = self._path if host is None else None
        return DoorAddress(secret=self._secret, path=path, host=host, port=port)

    def drain(self, timeout_s: float | None = None) -> bool:
        """Let nobody in any more, and wait for the requests under way; for another thread.

        Returns:
            Whether all of them have ended.
        """
        if self._loop is None:
            return True
        self._submit(self._shut()).result()
        return self._is_empty.wait(timeout_s)

    def _submit(self, work: Coroutine[Any, Any, _T]) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_run, args=(self._loop,), daemon=True)
            self._thread.start()
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """End its thread, and whatever is under way."""
        loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self._end(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
        if self._thread is not None:
            self._thread.join()

    async def _end(self) -> None:
        await self._shut()
        for visit in list(self._inside):
            visit.end()
        while self._strangers or self._inside:
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # the engine's sides are told to close, and do so now

    async def _listen(self, host: str | None) -> int:
        loop = asyncio.get_running_loop()
        if host not in self._servers:
            if host is None:
                server = await loop.create_unix_server(lambda: _Visit(self), self._path)
            else:
                server = await loop.create_server(lambda: _Visit(self), host, 0)
            self._servers[host] = server
            logger.info("the door listens on %s", self._path if host is None else host)
        return 0 if host is None else int(self._servers[host].sockets[0].getsockname()[1])

    async def _shut(self) -> None:
        self._is_shut = True
        for server in self._servers.values():
            server.close()
        for visit in [*self._strangers, *self._waiting]:
            visit.end()

    def came(self, visit: _Visit) -> None:
        """Take in a connection that has shown nothing yet."""
        self._strangers.add(visit)
        if self._is_shut or len(self._strangers) > MAX_STRANGERS:
            visit.end()

    def knows(self, secret: bytes) -> bool:
        """Return whether this is the secret."""
        return hmac.compare_digest(secret, self._secret.encode())

    def showed(self, visit: _Visit) -> None:
        """Let one in that has shown the secret, or let it wait."""
        self._strangers.discard(visit)
        self._waiting.append(visit)
        self._admit()

    def left(self, visit: _Visit) -> None:
        """Forget a connection, and let the next one in."""
        self._strangers.discard(visit)
        if visit in self._waiting:
            self._waiting.remove(visit)
        self._inside.discard(visit)
        if not self._inside:
            self._is_empty.set()
        self._admit()

    def _admit(self) -> None:
        while self._waiting and len(self._inside) < self._most and not self._is_shut:
            visit = self._waiting.popleft()
            self._inside.add(visit)
            self._is_empty.clear()
            visit.begin(self._port if self._is_alive() else None)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


class _Side(asyncio.Protocol):
    """One of the two connections of a visit; what it reads, the other one writes."""

    transport: asyncio.Transport | None = None
    other: _Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is of another class

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio's
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()  # what it was given is written first


class _Visit(_Side):
    """A router's connection: its secret, then one request."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._kept = bytearray()
        self._has_shown = False
        self._timer: asyncio.TimerHandle | None = None
        self._opening: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._timer = asyncio.get_running_loop().call_later(SECRET_TIMEOUT_S, self.end)
        self._door.came(self)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            super().data_received(data)
            return
        self._kept += data
        if not self._has_shown:
            self._show()
        elif len(self._kept) > _MAX_KEPT_BYTES:
            assert self.transport is not None
            self.transport.pause_reading()

    def _show(self) -> None:
        size = 2 * _SECRET_BYTES
        if len(self._kept) < size:
            return
        secret = bytes(self._kept[:size])
        del self._kept[:size]
        if not self._door.knows(secret):
            self.end()
            return
        self._has_shown = True
        assert self._timer is not None
        self._timer.cancel()
        self._door.showed(self)

    def begin(self, port: int | None) -> None:
        """Connect to the engine; without one the connection ends."""
        if port is None:
            self.end()
        else:
            self._opening = asyncio.get_running_loop().create_task(self._open(port))

    async def _open(self, port: int) -> None:
        engine = _Side()
        try:
            await asyncio.get_running_loop().create_connection(lambda: engine, HOST, port)
        except OSError:
            self.end()
            return
        assert engine.transport is not None
        assert self.transport is not None
        if self.transport.is_closing():
            engine.transport.close()
            return
        self.other, engine.other = engine, self
        self.transport.write(ACCEPTED)
        engine.transport.write(bytes(self._kept))
        self._kept.clear()
        self.transport.resume_reading()

    def end(self) -> None:
        """End the connection."""
        assert self.transport is not None
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)
        self._door.left(self)
