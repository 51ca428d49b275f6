"""The router without Serve, between requests and engines of which any answer may come."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from infra.fuzz.target import Target
from serve_apps.engine.errors import EngineError
from serve_apps.router.deployment import Router
from serve_apps.router.policy import APP_HEADER, OWN_HEADER, VERSION_HEADER, refusal

SPEC = Path(__file__).resolve().parents[2] / "docs" / "router.openapi.json"
JSON = {"content-type": "application/json"}
SSE = {"content-type": "text/event-stream"}
MODELS = b'{"object": "list", "data": [{"id": "specpilot"}, {"id": "specpilot-boot-1"}]}'
_LONGEST_BODY = 20_000
_DEADLINE_S = 20.0
"""Of one request; nothing here waits, so that none is a hang."""


class Items:
    """What a streaming handle returns: given items, of which one may be an error."""

    def __init__(self, items: Iterable[object]) -> None:
        self._items = iter(items)

    def __aiter__(self) -> Items:
        return self

    async def __anext__(self) -> object:
        try:
            item = next(self._items)
        except StopIteration:
            raise StopAsyncIteration from None
        if isinstance(item, Exception):
            raise item
        return item

    def cancel(self) -> None:
        """Do nothing: there is no engine behind it."""


@dataclass(slots=True)
class Engine:
    """An engine application that gives every request the same items, and remembers what came."""

    items: Sequence[object] = (None, (200, JSON), MODELS)
    asked: list[tuple[str, str, Mapping[str, str], bytes]] = field(default_factory=list)

    def options(self, **_: object) -> Engine:
        """Return the handle itself."""
        return self

    def remote(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Items:
        """Take a request."""
        self.asked.append((method, target, headers, body))
        return Items(self.items)


class App:
    """The router as an ASGI application."""

    def __init__(self, engine: Engine) -> None:
        self._router = Router(1.0, lambda _: engine)  # type: ignore[arg-type,return-value]  # no Serve here
        limits = {"max_body_bytes": _LONGEST_BODY}
        self._router.reconfigure({"weights": {"v1": 1.0}, "limits": limits})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request as Serve would have the router do it."""
        response = await self._router(Request(scope, receive))
        await response(scope, receive, send)


def fault_of(engine: Engine, status: int, headers: Mapping[str, str], body: bytes) -> str | None:
    """Return what is wrong with an answer of the router, or None.

    Args:
        engine: The one behind it, and what it was asked.
        status: Of the answer.
        headers: Of the answer, by lower-case name.
        body: Of the answer.
    """
    if VERSION_HEADER in headers:
        return None if engine.asked else "an answer of an engine that was not asked"
    if status == 500:
        return "a 500 that is the router's"
    try:
        error = json.loads(body)["error"]
        kinds = {name: type(error[name]) for name in ("message", "type", "param", "code")}
    except (ValueError, LookupError, TypeError):
        return f"no error of OpenAI's shape: {body!r:.200}"
    if (kinds["message"], kinds["type"]) != (str, str) or not error["message"].isprintable():
        return f"no error of OpenAI's shape: {error!r:.200}"
    if engine.asked and status != 503:
        return f"refused with {status}, and the engine was asked"
    return None


def wrongly_asked(engine: Engine) -> str | None:
    """Return what an engine should not have been asked, or None."""
    for method, target, headers, body in engine.asked:
        path = target.partition("?")[0]
        if refusal(method, path) is not None:
            return f"the engine is asked for {method} {path}"
        if {"authorization", "cookie", "host", APP_HEADER, OWN_HEADER} & set(headers):
            return f"the engine gets {sorted(headers)}"
        if len(body) > _LONGEST_BODY:
            return f"the engine gets {len(body)} bytes"
        if method == "POST" and not isinstance(json.loads(body), dict):
            return f"the engine gets {body!r:.100}"
    return None


_METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "G\u00cbT", "")
_PATHS = (
    "/v1/chat/completions", "/v1/completions", "/v1/models", "/tokenize", "/health", "/version",
    "/", "/v1/chat/completions/", "//v1/completions", "/v1/../v1/models", "/collective_rpc",
    "/reset_prefix_cache", "/metrics", "/v1/completions\u2028", "/server_info", "", "/%2e",
    "/v1/completions?x",
)  # fmt: skip
_HEADERS = (
    ("content-length", "5"), ("content-length", "9" * 5_000), ("content-length", "\u00b2"),
    ("host", "["), ("content-length", "-1"), ("host", "a]b:c"), ("host", ""),
    ("authorization", "Bearer x"), ("cookie", "a"), ("authorization", ""),
    ("content-type", "text/plain"), ("content-encoding", "gzip"), ("x-a", "\u00ff" * 9),
    (APP_HEADER, "v1"), (APP_HEADER, "trial-1"), (APP_HEADER, ""), (OWN_HEADER, "x"),
    (OWN_HEADER, "\u00e9"), ("x-long", "a" * 40_000), ("transfer-encoding", "chunked"),
    ("connection", "close"), ("expect", "100-continue"),
)  # fmt: skip
_BODIES = (
    b"", b"{}", b"[]", b"3", b"null", b"{", b'{"a":', b"\xff\xfe{\x00}\x00", b"\xef\xbb\xbf{}",
    b"\x00", b'"x"', b'{"prompt":"x"}', b'{"prompt":"x","temperature":0.7,"stream":true}',
    b'{"temperature":"hot"}', b'{"a":NaN}', b'{"temperature":1e999}',
    b'{"temperature":' + b"9" * 400 + b"}", b'{"seed":' + b"9" * 5_000 + b"}",
    b'{"temperature":NaN}', b'{"temperature":true}', b'{"a":1,"a":2}', b'{"a":"\\ud800"}',
    b"[" * 10_000, b'{"a":' * 3_000, b'{"a":' + b"[" * 900 + b"]" * 900 + b"}",
    b"{}" + b" " * 20_000, b'{"a":"' + b"x" * 30_000 + b'"}', b"{} {}", b"{'a':1}",
    b'{"messages":[{"role":"user","content":"\xff"}]}', b'{"stream":1}', b"\r\n{}\r\n",
)  # fmt: skip
_ANSWERS: tuple[tuple[object, ...], ...] = (
    (None, (200, JSON), MODELS), (None, (200, SSE), b"data: {}\n\n", b"data: [DONE]\n\n"),
    (None, (500, JSON), b"{}"), (None, (400, JSON), b'{"error":{"message":"no"}}'),
    (None, (200, JSON), b"{"), (None, (200, JSON), b"[]"), (None, (200, JSON), b'{"data":[3]}'),
    (None, (200, JSON), b'{"data":[{"id":3}]}'), (None, (200, JSON)),
    (None, (200, JSON), b'{"data":null}'), (None, (200, JSON), b"[" * 5_000), (None, (204, {})),
    (None, (200, {}), b""), (None, (200, SSE), b'data: {"usage":{"completion_tokens":"x"}}\n\n'),
    (EngineError("gone"),), (TimeoutError(),), (None, EngineError("gone")),
    (None, (200, SSE), b"data: {}\n\n", EngineError("gone")),
    (None, (200, JSON), EngineError("gone")), (None, (200, JSON), b'{"usage":' + b"[" * 3_000),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Asked:
    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    parts: tuple[bytes, ...]
    answer: Sequence[object]


def router_target() -> Target:
    """Return requests that no client library makes, and engines that answer anything."""
    return Target(name="router requests", make=_make, check=_check, cost=10)


def _make(source: random.Random) -> _Asked:
    is_usual = source.random() < 0.7
    path = source.choice(_PATHS[:6] if is_usual else _PATHS)
    posts = "completions" in path or "tokenize" in path
    method = ("POST" if posts else "GET") if is_usual else source.choice(_METHODS)
    body = source.choice(_BODIES)
    if source.random() < 0.2 and body:
        at = source.randrange(len(body))
        body = body[:at] + bytes([source.randrange(256)]) + body[at + source.randint(0, 2) :]
    cut = source.randint(0, len(body))
    headers = tuple(source.choices(_HEADERS, k=source.choice((0, 0, 0, 1, 1, 2))))
    return _Asked(method, path, headers, (body[:cut], body[cut:]), source.choice(_ANSWERS))


def _check(asked: _Asked) -> str | None:
    engine = Engine(asked.answer)
    status, headers, body, broke = asyncio.run(_answered(engine, asked))
    wrong = wrongly_asked(engine)
    if wrong is None and status is None:
        wrong = None if broke else "no answer"
    elif wrong is None and status is not None and not broke:
        wrong = fault_of(engine, status, headers, body)
    return wrong


async def _answered(
    engine: Engine, asked: _Asked
) -> tuple[int | None, dict[str, str], bytes, bool]:
    """Return status, headers and body, and whether the engine broke off in the middle."""
    messages: list[Any] = []
    parts = list(asked.parts)

    async def receive() -> Any:
        if parts:
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}
        return await asyncio.Event().wait()

    async def send(message: Any) -> None:
        messages.append(message)

    path, _, query = asked.path.partition("?")
    scope = {
        "type": "http",
        "method": asked.method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in asked.headers],
        "scheme": "http",
        "server": ("127.0.0.1", 8000),
        "asgi": {"spec_version": "2.3"},
    }
    broke = False
    try:
        async with asyncio.timeout(_DEADLINE_S):
            await App(engine)(scope, receive, send)
    except EngineError:
        # It goes on to the connection, which Serve's proxy then ends; the head has left.
        broke = bool(messages)
        if not broke:
            raise
    head = messages[0] if messages else {"status": None, "headers": []}
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head["headers"]}
    return head["status"], headers, b"".join(each["body"] for each in messages[1:]), broke
