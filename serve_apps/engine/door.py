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
import socket
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from serve_apps.engine.spec import HOST

logger = logging.getLogger(__name__)

SECRET_TIMEOUT_S = 10.0
"""From the opening of a connection to its secret."""
MAX_UNAUTHENTICATED = 256
"""Connections that have not shown the secret yet; one more ends the one that waits longest."""
_SECRET_BYTES = 32
_MAX_BUFFER_BYTES = 1 << 20
"""Of a request that waits for its place; the rest waits at the router."""
_SOCKET = "door"
_SILENT_S, _SILENT_TRIES = 10, 3
"""Of a connection: it ends after so many questions of the kernel's without an answer."""

_T = TypeVar("_T")


class DoorAddress(NamedTuple):
    """Where a door is, and what opens it; handed out over Ray alone."""

    secret: str
    """[2 * _SECRET_BYTES] hexadecimal; the first thing that is sent."""
    proof: str
    """[2 * _SECRET_BYTES] hexadecimal; what the door answers once the engine has the request.

    Whoever has got the port of a door that is gone cannot pass for the engine.
    """
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
        limit: Requests at once; more wait until one ends, first come first served.
        is_alive: Whether the engine's process runs: another's may get its port.
    """

    def __init__(self, port: int, folder: str, *, limit: int, is_alive: Callable[[], bool]) -> None:
        self._secret, self.proof = (secrets.token_hex(_SECRET_BYTES) for _ in range(2))
        self._port, self._path, self._limit = port, str(Path(folder) / _SOCKET), limit
        self._is_alive = is_alive
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._servers: dict[str | None, asyncio.Server] = {}
        self._listening = asyncio.Lock()
        self._unauthenticated: dict[_Connection, None] = {}
        self._waiting: deque[_Connection] = deque()
        self._active: set[_Connection] = set()
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
        return DoorAddress(self._secret, self.proof, path=path, host=host, port=port)

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
        for connection in list(self._active):
            connection.end()
        while self._unauthenticated or self._active:
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # the engine's sides are told to close, and do so now

    async def _listen(self, host: str | None) -> int:
        loop = asyncio.get_running_loop()
        async with self._listening:
            if host not in self._servers:
                if host is None:
                    server = await loop.create_unix_server(lambda: _Connection(self), self._path)
                else:
                    server = await loop.create_server(lambda: _Connection(self), host, 0)
                self._servers[host] = server
                logger.info("the door listens on %s", self._path if host is None else host)
        return 0 if host is None else int(self._servers[host].sockets[0].getsockname()[1])

    async def _shut(self) -> None:
        self._is_shut = True
        for server in self._servers.values():
            server.close()
        for connection in [*self._unauthenticated, *self._waiting]:
            connection.end()

    def opened(self, connection: _Connection) -> None:
        """Take in a connection that has shown nothing yet."""
        self._unauthenticated[connection] = None
        if self._is_shut:
            connection.end()
        elif len(self._unauthenticated) > MAX_UNAUTHENTICATED:
            longest = next(iter(self._unauthenticated))
            # It is told of its end later, and others may come before.
            del self._unauthenticated[longest]
            longest.end()

    def is_secret(self, secret: bytes) -> bool:
        """Return whether this is the secret."""
        return hmac.compare_digest(secret, self._secret.encode())

    def authenticated(self, connection: _Connection) -> None:
        """Let one in that has shown the secret, or let it wait."""
        self._unauthenticated.pop(connection, None)
        self._waiting.append(connection)
        self._admit()

    def closed(self, connection: _Connection) -> None:
        """Forget a connection, and let the next one in."""
        self._unauthenticated.pop(connection, None)
        if connection in self._waiting:
            self._waiting.remove(connection)
        self._active.discard(connection)
        if not self._active:
            self._is_empty.set()
        self._admit()

    def _admit(self) -> None:
        while self._waiting and len(self._active) < self._limit and not self._is_shut:
            connection = self._waiting.popleft()
            self._active.add(connection)
            self._is_empty.clear()
            connection.begin(self._port if self._is_alive() else None)


def keep_alive(connection: asyncio.BaseTransport) -> None:
    """Have the kernel end a silent connection to a node that is gone, as one without power.

    Neither side would hear of it: a router waits for tokens, and a door for a router to leave.
    """
    sock = connection.get_extra_info("socket")
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _SILENT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _SILENT_TRIES)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


class _Endpoint(asyncio.Protocol):
    """One end of a request's way, a router's or the engine's; what it reads, its peer writes."""

    transport: asyncio.Transport | None = None
    peer: _Endpoint | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is of another class

    def data_received(self, data: bytes) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.write(data)

    def pause_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio's
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.close()  # what it was given is written first


class _Connection(_Endpoint):
    """A router's connection: its secret, then one request."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._buffer = bytearray()
        self._is_authenticated = False
        self._timer: asyncio.TimerHandle | None = None
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        keep_alive(transport)
        self._timer = asyncio.get_running_loop().call_later(SECRET_TIMEOUT_S, self.end)
        self._door.opened(self)

    def data_received(self, data: bytes) -> None:
        if self.peer is not None:
            super().data_received(data)
            return
        self._buffer += data
        if not self._is_authenticated:
            self._authenticate()
        elif len(self._buffer) > _MAX_BUFFER_BYTES:
            assert self.transport is not None
            self.transport.pause_reading()

    def _authenticate(self) -> None:
        size = 2 * _SECRET_BYTES
        if len(self._buffer) < size:
            return
        secret = bytes(self._buffer[:size])
        del self._buffer[:size]
        if not self._door.is_secret(secret):
            self.end()
            return
        self._is_authenticated = True
        assert self._timer is not None
        self._timer.cancel()
        self._door.authenticated(self)

    def begin(self, port: int | None) -> None:
        """Connect to the engine; without one the connection ends."""
        if port is None:
            self.end()
        else:
            self._connecting = asyncio.get_running_loop().create_task(self._connect(port))

    async def _connect(self, port: int) -> None:
        engine = _Endpoint()
        try:
            await asyncio.get_running_loop().create_connection(lambda: engine, HOST, port)
        except OSError:
            self.end()
            return
        assert engine.transport is not None
        assert self.transport is not None
        if self.transport.is_closing() or engine.transport.is_closing():
            engine.transport.abort()
            self.end()
            return
        self.peer, engine.peer = engine, self
        self.transport.resume_reading()
        self.transport.write(self._door.proof.encode())
        engine.transport.write(bytes(self._buffer))  # which may pause the reading again
        self._buffer.clear()

    def end(self) -> None:
        """End the connection."""
        assert self.transport is not None
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio's
        if self._timer is not None:
            self._timer.cancel()
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.abort()  # an engine that does not read would put a close off
        self._door.closed(self)
