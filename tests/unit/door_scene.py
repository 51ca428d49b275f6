"""An engine's door in front of a server that a test scripts, and a router's way through it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from serve_apps.engine.door import Door, DoorAddress
from serve_apps.router.passage import Item, Items, request_bytes

CHUNKED = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
Answering = Callable[[asyncio.StreamWriter], Awaitable[None]]


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test in a loop of its own."""

    @functools.wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(30):
                await test(*args, **kwargs)

        asyncio.run(bounded())

    return run


def framed(*chunks: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)


@dataclass
class Scene:
    """A door, and what its engine was asked."""

    door: Door
    address: DoorAddress
    asked: list[bytes] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Whether a connection ended while its answer was under way."""

    def ask(self, body: bytes = b"{}", address: DoorAddress | None = None) -> Items:
        request = request_bytes("POST", "/v1/completions", {"x-own": "1"}, body)
        return Items(address or self.address, "app-v1", request)


@contextlib.asynccontextmanager
async def scene(
    answering: Answering, *, limit: int = 8, host: str | None = None, is_alive: bool = True
) -> AsyncIterator[Scene]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(int(head.partition(b"Content-Length: ")[2].split()[0]))
        found.asked.append(head + body)
        answer = asyncio.ensure_future(answering(writer))
        gone = asyncio.ensure_future(reader.read())
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            answer.cancel()
            found.left.set()
        gone.cancel()
        writer.close()

    with tempfile.TemporaryDirectory(prefix="d-") as folder:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        door = Door(port, folder, limit=limit, is_alive=lambda: is_alive)
        found = Scene(door, await door.address(host))
        try:
            yield found
        finally:
            await asyncio.to_thread(door.close)
            server.close()
            await server.wait_closed()


def answer_of(*parts: bytes) -> Answering:
    async def write(writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()

    return write


def held_until(event: asyncio.Event) -> Answering:
    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + framed(b"first"))
        await event.wait()
        writer.write(framed(b"last", b""))

    return write


async def all_of(items: Items) -> list[Item]:
    return [item async for item in items]
