"""A real uvicorn as Serve's proxy is one, with its connections looked after."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import uvicorn
from starlette.types import Receive, Scope, Send

from serve_apps.router.connections import Connections, guarded

Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Coroutine[Any, Any, Pair]]


async def app(_scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


@contextlib.asynccontextmanager
async def serving(connections: Connections, serve: Any = app) -> AsyncIterator[Connect]:
    """Yield what opens a connection to a server; all are closed at the end."""
    config = uvicorn.Config(
        serve,
        host="127.0.0.1",
        port=0,
        http=guarded(connections),
        lifespan="off",
        log_config=None,
        access_log=False,
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port, pairs = server.servers[0].sockets[0].getsockname()[1], list[Pair]()

    async def connect() -> Pair:
        pairs.append(await asyncio.open_connection("127.0.0.1", port))
        return pairs[-1]

    try:
        yield connect
    finally:
        for _, writer in pairs:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        server.should_exit = True
        await serving
