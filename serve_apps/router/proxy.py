"""What only Serve's proxy can see of a client: whether it asks, and whether it reads its answer.

A router hands its chunks to Serve, which takes them whether or not the client does; the socket is
the proxy's. `RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=serve_apps.router.proxy:middlewares` in the
environment of Ray on the head puts this in front of Serve's own code, and looks after the proxy's
connections (``connections``): Serve calls ``middlewares`` before it starts its server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve_apps.router.connections import install
from serve_apps.router.policy import READ_TIMEOUT_HEADER

logger = logging.getLogger(__name__)

_NAME = READ_TIMEOUT_HEADER.encode()


def middlewares() -> list[Middleware]:
    """Return what Serve's proxy puts around its application; called once in its process."""
    install()
    return [Middleware(ReadGuard)]


class ReadGuard:
    """Ends the connection of a client that does not read, once the socket's buffers are full.

    How long it may pause says the router in a header of its answer, which goes no further. Answers
    of other applications have none and are left alone.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and its answer back."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit_s: float | None = None

        async def guarded(message: Message) -> None:
            nonlocal limit_s
            if message["type"] == "http.response.start":
                limit_s = _taken(message)
            try:
                async with asyncio.timeout(limit_s):
                    await send(message)
            except TimeoutError:
                logger.warning("a client has not read its answer for %g s and is cut off", limit_s)
                if not _abort(send):
                    raise

        await self._app(scope, receive, guarded)


def _taken(message: Message) -> float | None:
    """Take our header out of an answer's head and return its value."""
    headers: list[Any] = message["headers"]
    values = [value for name, value in headers if name.lower() == _NAME]
    message["headers"] = [(name, value) for name, value in headers if name.lower() != _NAME]
    with contextlib.suppress(ValueError):
        return float(values[0]) if values else None
    return None


def _abort(send: Send) -> bool:
    """Drop the connection and what waits in its buffer; return whether that could be done.

    uvicorn closes a connection only when all is written, which a client that reads nothing puts off
    for ever. ASGI has no way to say so; uvicorn's ``send`` is a method of what holds the transport.
    Once it is gone uvicorn tells Serve that the client has left.
    """
    transport = getattr(getattr(send, "__self__", None), "transport", None)
    abort = getattr(transport, "abort", None)
    if abort is None:
        return False
    abort()
    return True
