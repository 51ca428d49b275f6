"""One request through an engine's door: an answer's head, then its chunks as they are framed."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncGenerator, Mapping
from urllib.parse import quote

from serve_apps.engine.door import DoorAddress, keep_alive
from serve_apps.engine.errors import EngineNotRunning
from serve_apps.engine.http import end_to_end

Item = tuple[int, dict[str, str]] | bytes | None
"""As the items of ``Engine.forward``: None once accepted, status and headers, then chunks."""

CONNECT_TIMEOUT_S = 1.0
"""To another node's door, which a firewall may hide."""
_MAX_HEAD_BYTES = 1 << 20
_PIECE_BYTES = 1 << 16
"""Of a body that is not chunked."""
_URL = "!#$%&'()*+,/:;=?@[]~"
_NOT_IN_A_HEADER = frozenset("\r\n\0")
_BROKEN = (
    OSError,
    asyncio.IncompleteReadError,
    asyncio.LimitOverrunError,
    ValueError,
    LookupError,  # a first line without a status
)


class DoorShut(Exception):  # noqa: N818  as FileNotFoundError: it names what was found
    """Nobody took the request in, so that another way may be tried."""


class Items:
    """The items of one request; the other side hears of it with the first one that is asked for.

    Args:
        address: Of the door.
        app: The engine application, for errors.
        request: The whole request; see ``request_bytes``.
    """

    def __init__(self, address: DoorAddress, app: str, request: bytes) -> None:
        self._address, self._app, self._request = address, app, request
        self._writer: asyncio.StreamWriter | None = None
        self._items = self._run()

    def __aiter__(self) -> Items:
        return self

    async def __anext__(self) -> Item:
        """Return the next item.

        Raises:
            DoorShut: In place of the first one.
            EngineNotRunning: In place of another one: it broke off.
        """
        return await anext(self._items)

    def cancel(self) -> None:
        """Leave; the engine aborts the request."""
        if self._writer is not None:
            self._writer.transport.abort()

    async def _run(self) -> AsyncGenerator[Item, None]:
        reader = await self._enter()
        try:
            yield None
            status, headers = await _head(reader)
            yield status, end_to_end(headers)
            async for chunk in _body(reader, status, headers):
                yield chunk
        except _BROKEN as error:
            detail = f"{type(error).__name__} on the way through its door"
            raise EngineNotRunning(self._app, detail) from error
        finally:
            self.cancel()

    async def _enter(self) -> asyncio.StreamReader:
        """Send the request and return what the answer is read from, once the door is open."""
        where = self._address
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if where.path is not None:
                    opened = await asyncio.open_unix_connection(where.path, limit=_MAX_HEAD_BYTES)
                else:
                    opened = await asyncio.open_connection(
                        where.host, where.port, limit=_MAX_HEAD_BYTES
                    )
            reader, self._writer = opened
            keep_alive(self._writer.transport)
            self._writer.write(where.secret.encode() + self._request)
            self._request = b""  # an answer may take minutes
            proof = await reader.readexactly(len(where.proof))
            if hmac.compare_digest(proof, where.proof.encode()):
                return reader
        except (OSError, asyncio.IncompleteReadError) as error:  # the first one, if in time, too
            self.cancel()
            raise DoorShut(f"{self._app}: {type(error).__name__}") from error
        except asyncio.CancelledError:
            self.cancel()
            raise
        self.cancel()
        raise DoorShut(f"{self._app}: no door of an engine")


def request_bytes(method: str, target: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """Return a request for a connection that ends with its answer.

    Args:
        method: As it is sent.
        target: Path and query, latin-1.
        headers: Of the client; those of its own connection are left out.
        body: May be empty.

    Raises:
        ValueError: A method or header would end its line.
    """
    lines = [f"{method} {quote(target.encode('latin-1'), safe=_URL)} HTTP/1.1"]
    lines += [
        f"{name}: {value}"
        for name, value in end_to_end(headers).items()
        if name.lower() != "expect"  # the body is sent at once
    ]
    if not _NOT_IN_A_HEADER.isdisjoint("".join(lines)):
        raise ValueError("a header has an end of line in it")
    lines += ["Host: engine", "Connection: close"]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "\r\n"]).encode("latin-1") + body


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Return status and headers, by the names that were sent."""
    while True:
        text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = text[:-4].split("\r\n")
        status = int(first.split(" ", 2)[1])
        if status >= 200:  # what comes before is not the answer
            break
    pairs = (line.partition(":") for line in lines)
    return status, {name: value.strip() for name, _, value in pairs}


async def _body(
    reader: asyncio.StreamReader, status: int, headers: Mapping[str, str]
) -> AsyncGenerator[bytes, None]:
    known = {name.lower(): value for name, value in headers.items()}
    if status in (204, 304):
        return
    if known.get("transfer-encoding", "").lower() == "chunked":
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            chunk = await reader.readexactly(size + 2)
            if not chunk.endswith(b"\r\n"):
                raise ValueError(f"no end of a chunk of {size} bytes")
            yield chunk[:-2]
        return
    left = int(known["content-length"]) if "content-length" in known else None
    while left is None or left > 0:
        data = await reader.read(_PIECE_BYTES if left is None else min(left, _PIECE_BYTES))
        if not data:
            if left is None:
                return
            raise asyncio.IncompleteReadError(b"", left)
        left = None if left is None else left - len(data)
        yield data
