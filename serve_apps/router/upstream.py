"""The engine applications as the router reaches them: a request out, an answer's chunks back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from typing import Any, cast

import ray
from ray.serve.exceptions import DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from serve_apps.engine.errors import EngineError
from serve_apps.router.records import Tally

NOT_THERE = (
    EngineError,
    RayServeException,  # no application of that name
    DeploymentUnavailableError,
    ray.exceptions.RayActorError,
    TimeoutError,  # no replica accepted it
)
"""What asking an engine raises that does not answer, or not in time."""


class Answer:
    """One engine's answer on its way to the client."""

    def __init__(
        self, app: str, items: DeploymentResponseGenerator[Any], head: tuple[int, dict[str, str]]
    ) -> None:
        self.app = app
        self.status, self.headers = head
        self.has_failed = self.status >= 500
        """Whether the engine answered 500 or above, or broke off."""
        kinds = (value for name, value in self.headers.items() if name.lower() == "content-type")
        self.tally = Tally(next(kinds, ""))
        self._items = items
        self._is_over = False

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as the engine sent it."""
        try:
            async for chunk in self._items:
                self.tally.saw(chunk)
                yield chunk
        except Exception:  # counted whatever it was; it goes on to the client's connection
            self.has_failed = self._is_over = True
            raise
        self._is_over = True

    def close(self) -> None:
        """Abort the request in the engine, if it is still under way."""
        if not self._is_over:
            self._is_over = True
            _cancel(self._items)


class Passing(StreamingResponse):
    """A streamed answer that gives back what it holds, however it ends.

    The generator of its chunks cannot: one that was never begun runs no ``finally``, and one that
    waits at a ``yield`` runs it when it is collected.

    Args:
        answer: What is passed on.
        headers: Of the answer to the client.
        held: Closed at the end.
    """

    def __init__(
        self, answer: Answer, headers: Mapping[str, str], held: contextlib.ExitStack
    ) -> None:
        super().__init__(answer.chunks(), status_code=answer.status, headers=headers)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; Serve cancels this when the client leaves."""
        with self._held:
            await super().__call__(scope, receive, send)


class Engines:
    """Handles of the engine applications.

    Args:
        get_handle: Returns an application's handle; it asks the controller and blocks meanwhile.
        assign_timeout_s: How long an engine may take to accept a request (not to answer it).
    """

    def __init__(
        self, get_handle: Callable[[str], DeploymentHandle[Any]], assign_timeout_s: float
    ) -> None:
        self._get_handle = get_handle
        self._assign_timeout_s = assign_timeout_s
        self._handles: dict[str, DeploymentHandle[Any]] = {}

    def keep(self, apps: Collection[str]) -> None:
        """Forget all others: handles of engines that went away hold connections to nothing."""
        self._handles = {app: handle for app, handle in self._handles.items() if app in apps}

    async def ask(
        self, app: str, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> Answer:
        """Send a request to an engine and return its answer once it has begun.

        Raises:
            BackPressureError: The engine is at its limit.
            NOT_THERE: One of its members; the next request looks the engine up again.
        """
        try:
            return await self._ask(app, method, target, headers, body)
        except NOT_THERE:
            self._handles.pop(app, None)
            raise

    async def _ask(
        self, app: str, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> Answer:
        if app not in self._handles:
            handle = await asyncio.to_thread(self._get_handle, app)
            self._handles[app] = handle.options(method_name="forward", stream=True)
        items = cast(
            "DeploymentResponseGenerator[Any]",
            self._handles[app].remote(method, target, headers, body),
        )
        try:
            # A replica that restarts takes minutes, and Serve would let the request wait for it.
            await asyncio.wait_for(anext(items), self._assign_timeout_s)
            head = await anext(items)
        except (asyncio.CancelledError, TimeoutError):  # or the client gave up before the answer
            _cancel(items)
            raise
        return Answer(app, items, head)


def _cancel(items: DeploymentResponseGenerator[Any]) -> None:
    items.cancel()  # type: ignore[no-untyped-call]  # Serve's
