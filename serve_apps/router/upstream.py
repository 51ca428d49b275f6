"""The engine applications as the router reaches them: a request out, an answer's chunks back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Mapping,
)
from typing import Any, Protocol, cast

import ray
from ray.serve.exceptions import DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from serve_apps.engine.door import DoorAddress
from serve_apps.engine.errors import EngineError
from serve_apps.router.passage import DoorShut, Items, request_bytes
from serve_apps.router.records import Tally

logger = logging.getLogger(__name__)

LOOK_AGAIN_S = 5.0
"""Between two looks for a door that was not found, or was shut."""
NOT_THERE = (
    EngineError,
    RayServeException,  # no application of that name
    DeploymentUnavailableError,
    ray.exceptions.RayActorError,
    TimeoutError,  # no replica accepted it
)
"""What asking an engine raises that does not answer, or not in time."""


FindDoor = Callable[[DeploymentHandle[Any]], Awaitable[DoorAddress]]


class AnswerItems(Protocol):
    """What an answer comes in: None once it is accepted, status and headers, then chunks."""

    def __aiter__(self) -> AsyncIterator[Any]:
        """Return the items."""
        ...

    async def __anext__(self) -> Any:
        """Return the next item."""
        ...

    def cancel(self) -> None:
        """Leave; the engine aborts the request."""
        ...


class Answer:
    """One engine's answer on its way to the client."""

    def __init__(self, app: str, items: AnswerItems, head: tuple[int, dict[str, str]]) -> None:
        self.app = app
        self.status, self.headers = head
        self._has_broken_off = False
        kinds = (value for name, value in self.headers.items() if name.lower() == "content-type")
        self.tally = Tally(next(kinds, ""))
        self._items = items
        self._is_over = False

    @property
    def has_failed(self) -> bool:
        """Whether the engine answered 500 or above, broke off, or said 200 and then an error."""
        if self._has_broken_off or self.status >= 500:
            return True
        return self.status < 400 and self.tally.tells_failure()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as the engine sent it."""
        try:
            async for chunk in self._items:
                self.tally.saw(chunk)
                yield chunk
        except Exception:  # counted whatever it was; it goes on to the client's connection
            self._has_broken_off = self._is_over = True
            raise
        self._is_over = True

    def close(self) -> None:
        """Abort the request in the engine, if it is still under way."""
        if not self._is_over:
            self._is_over = True
            self._items.cancel()


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
    """The engine applications: their doors, and their handles for whoever has none.

    A request goes by the handle until the door is known, where there is none (an engine of an
    earlier version, a node that cannot be reached), and after a door was found shut: Serve then
    says what became of the replica.

    Args:
        get_handle: Returns an application's handle; it asks the controller and blocks meanwhile.
        assign_timeout_s: How long an engine may take to accept a request (not to answer it).
        find_door: Asks an application's handle for its door; None leaves the doors alone.
    """

    def __init__(
        self,
        get_handle: Callable[[str], DeploymentHandle[Any]],
        assign_timeout_s: float,
        find_door: FindDoor | None = None,
    ) -> None:
        self._get_handle = get_handle
        self._assign_timeout_s = assign_timeout_s
        self._find_door = find_door
        self._handles: dict[str, DeploymentHandle[Any]] = {}
        self._doors: dict[str, DoorAddress] = {}
        self._looks: dict[str, asyncio.Task[None]] = {}

    def keep(self, apps: Collection[str]) -> None:
        """Forget all others: handles of engines that went away hold connections to nothing."""
        self._handles = {app: handle for app, handle in self._handles.items() if app in apps}
        self._doors = {app: door for app, door in self._doors.items() if app in apps}

    async def ask(
        self, app: str, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> Answer:
        """Send a request to an engine and return its answer once it has begun.

        Raises:
            BackPressureError: The engine is at its limit.
            NOT_THERE: One of its members; the next request looks the engine up again.
        """
        try:
            door = self._doors.get(app)
            if door is not None:
                request = request_bytes(method, target, headers, body)
                try:
                    return await self._begun(app, Items(door, app, request))
                except DoorShut as error:
                    logger.info("a door is shut: %s", error)
                    self._doors.pop(app, None)
            handle = await self._handle(app)
            items = handle.remote(method, target, headers, body)
            self._look_for_door(app, handle)
            return await self._begun(app, cast("DeploymentResponseGenerator[Any]", items))
        except NOT_THERE:
            self._handles.pop(app, None)
            self._doors.pop(app, None)
            raise

    async def _handle(self, app: str) -> DeploymentHandle[Any]:
        if app not in self._handles:
            handle = await asyncio.to_thread(self._get_handle, app)
            self._handles[app] = handle.options(method_name="forward", stream=True)
        return self._handles[app]

    async def _begun(self, app: str, items: AnswerItems) -> Answer:
        try:
            # A replica that restarts takes minutes, and Serve would let the request wait for it.
            await asyncio.wait_for(anext(items), self._assign_timeout_s)
            head = await anext(items)
        except (asyncio.CancelledError, TimeoutError):  # or the client gave up before the answer
            items.cancel()
            raise
        return Answer(app, items, head)

    def _look_for_door(self, app: str, handle: DeploymentHandle[Any]) -> None:
        """Begin to look, beside the request and not more often than each LOOK_AGAIN_S."""
        if self._find_door is not None and app not in self._looks:
            look = asyncio.get_running_loop().create_task(self._look(app, handle, self._find_door))
            self._looks[app] = look

    async def _look(self, app: str, handle: DeploymentHandle[Any], find_door: FindDoor) -> None:
        try:
            door = await asyncio.wait_for(find_door(handle), self._assign_timeout_s)
            if self._handles.get(app) is handle:
                self._doors[app] = door
        except Exception as error:  # noqa: BLE001  its handle answers, whatever is wrong here
            logger.info("no door of %s: %s: %s", app, type(error).__name__, error)
        await asyncio.sleep(LOOK_AGAIN_S)
        self._looks.pop(app, None)


async def find_door(handle: DeploymentHandle[Any]) -> DoorAddress:
    """Ask an engine application for its door, as seen from this node."""
    node_id = ray.get_runtime_context().get_node_id()
    asked: Any = handle.options(method_name="door", stream=False).remote(node_id)
    return DoorAddress(*await asked)
