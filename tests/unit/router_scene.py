"""The router without Serve: fake handles behind it, ASGI in front of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from serve_apps.router.deployment import Router

SSE = {"content-type": "text/event-stream"}
Items = Sequence[object]


def event(**fields: object) -> bytes:
    return f"data: {json.dumps(fields)}\n\n".encode()


DONE = b"data: [DONE]\n\n"


class FakeItems:
    """What a streaming handle returns: given items, then an error or the end."""

    def __init__(self, items: Items) -> None:
        self._items = list(items)
        self.is_cancelled = False

    def __aiter__(self) -> FakeItems:
        return self

    async def __anext__(self) -> object:
        await asyncio.sleep(0)
        if not self._items:
            raise StopAsyncIteration
        item = self._items.pop(0)
        if isinstance(item, asyncio.Event):
            await item.wait()
            return await self.__anext__()
        if isinstance(item, Exception):
            raise item
        return item

    def cancel(self) -> None:
        self.is_cancelled = True


@dataclass
class FakeEngine:
    """An engine application; it answers every request with the same items."""

    items: Items = (None, (200, SSE), event(text="a"), DONE)
    asked: list[tuple[str, str, Mapping[str, str], bytes]] = field(default_factory=list)
    answers: list[FakeItems] = field(default_factory=list)

    def options(self, **_: object) -> FakeEngine:
        return self

    def remote(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> FakeItems:
        self.asked.append((method, path, headers, body))
        self.answers.append(FakeItems(self.items))
        return self.answers[-1]


@dataclass
class Reply:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    chunks: list[bytes] = field(default_factory=list)

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(b"".join(self.chunks))["error"]
        return found


class Client:
    """The ASGI side of one request, which may leave when it has so many chunks."""

    def __init__(self, parts: AsyncIterator[bytes], leaves_after: int | None) -> None:
        self.reply = Reply()
        self._parts = parts
        self._leaves_after = leaves_after
        self._is_sent = False
        self._left = asyncio.Event()

    async def send(self, message: Any) -> None:
        await asyncio.sleep(0)
        if message["type"] == "http.response.start":
            self.reply.status = message["status"]
            self.reply.headers = {k.decode().lower(): v.decode() for k, v in message["headers"]}
        elif message["body"]:
            self.reply.chunks.append(message["body"])
        if self._leaves_after is not None and len(self.reply.chunks) >= self._leaves_after:
            self._left.set()
            await asyncio.Event().wait()

    async def receive(self) -> Any:
        if self._is_sent:
            await self._left.wait()
            return {"type": "http.disconnect"}
        part = await anext(self._parts, None)
        self._is_sent = part is None
        return {"type": "http.request", "body": part or b"", "more_body": not self._is_sent}


async def ask(
    router: Router,
    body: object = None,
    *,
    path: str = "/v1/completions",
    headers: Mapping[str, str] | None = None,
    parts: AsyncIterator[bytes] | None = None,
    leaves_after: int | None = None,
    method: str | None = None,
) -> Reply:
    """Make one request: by default a POST of ``body`` as JSON or of ``parts``, else a GET."""
    is_post = body is not None or parts is not None
    sent = parts or _parts(*([json.dumps(body).encode()] if is_post else []))
    client = Client(sent, leaves_after)
    scope: dict[str, Any] = {
        "type": "http",
        "method": method or ("POST" if is_post else "GET"),
        "path": path,
        "query_string": b"",
        "headers": [
            (name.lower().encode("latin-1"), value.encode("latin-1"))
            for name, value in (headers or {}).items()
        ],
        "asgi": {"spec_version": "2.3"},
    }
    response = await router(Request(scope, client.receive))
    await response(scope, client.receive, client.send)
    return client.reply


async def _parts(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def router_of(
    engines: Mapping[str, FakeEngine], get: Callable[[str], Any] | None = None, **config: object
) -> Router:
    """Return a router with equal weights."""
    router = Router(1.0, get or engines.__getitem__)
    router.reconfigure({"weights": dict.fromkeys(engines, 1.0), **config})
    return router
