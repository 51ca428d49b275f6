"""The ingress: forwards clients' requests to engine applications, by weight."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, Mapping
from typing import Any, cast

import ray
from ray import serve
from ray.serve import Application
from ray.serve.exceptions import (
    BackPressureError,
    DeploymentUnavailableError,
    RayServeException,
)
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from serve_apps.engine.errors import EngineError
from serve_apps.router.counts import Counts
from serve_apps.router.policy import (
    APP_HEADER,
    VERSION_HEADER,
    checked_weights,
    error_body,
    order,
    refusal,
    upstream_headers,
    without_boot_names,
)

logger = logging.getLogger(__name__)

DEPLOYMENT_NAME = "Router"
_RETRY_AFTER_S = 5

_NOT_THERE = (
    EngineError,
    RayServeException,  # no application of that name
    DeploymentUnavailableError,
    ray.exceptions.RayActorError,
    TimeoutError,  # no replica accepted it
)


def _cancel(items: DeploymentResponseGenerator[Any]) -> None:
    items.cancel()  # type: ignore[no-untyped-call]  # Serve's


class _Upstream:
    """One engine's answer: status and headers, and the chunks to come."""

    def __init__(
        self, app: str, items: DeploymentResponseGenerator[Any], head: tuple[int, dict[str, str]]
    ) -> None:
        self.app = app
        self.status, self.headers = head
        self._items = items

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body; leaving early aborts the request in the engine."""
        done = False
        try:
            async for chunk in self._items:
                yield chunk
            done = True
        finally:
            if not done:
                _cancel(self._items)


class Router:
    """Serves the OpenAI routes over engine applications with weights that change in place."""

    def __init__(self, assign_timeout_s: float) -> None:
        """Start without weights: every request is answered 503.

        Args:
            assign_timeout_s: How long an engine may take to accept a request (not to answer it).
        """
        self._assign_timeout_s = assign_timeout_s
        self._weights: dict[str, float] = {}
        self._handles: dict[str, DeploymentHandle[Any]] = {}
        self._source = random.Random()
        self._counts = Counts()

    def reconfigure(self, user_config: Mapping[str, Any]) -> None:
        """Take new weights; requests in flight stay where they are.

        Args:
            user_config: {"weights": {engine application name: weight}}.
        """
        self._weights = checked_weights(user_config.get("weights") or {})
        # Handles of engines that went away hold connections to nothing.
        self._handles = {a: h for a, h in self._handles.items() if a in self._weights}
        logger.info("router weights: %s", self._weights)

    def weights(self) -> dict[str, float]:
        """Return the weights in force."""
        return dict(self._weights)

    def counts(self) -> dict[str, dict[str, int]]:
        """Return what became of clients' requests by engine application; see ``Counts``."""
        return self._counts.to_dict()

    async def __call__(self, request: Request) -> Response:
        """Answer one client request."""
        path = request.scope["path"].removeprefix(request.scope.get("root_path", "")) or "/"
        refused = refusal(request.method, path)
        if refused is not None:
            return JSONResponse(error_body(*refused), status_code=refused[0])
        target = f"{path}?{request.url.query}" if request.url.query else path
        body = await request.body()
        headers = upstream_headers(request.headers)
        pinned = request.headers.get(APP_HEADER)
        is_client = pinned is None
        reasons: list[str] = []
        for app in order(self._weights, pinned, self._source):
            try:
                with self._counts.under_way(app):
                    upstream = await self._open(app, request.method, target, headers, body)
            except BackPressureError as error:
                # Another engine would get this one's overflow on top of its own share.
                self._ended(app, is_client, failed=True)
                return self._unavailable(f"{app} is at its limit: {error}")
            except _NOT_THERE as error:
                self._handles.pop(app, None)
                reasons.append(f"{app}: {type(error).__name__}")
                logger.warning("engine application %s is not there: %s", app, error)
                self._ended(app, is_client, failed=True)
                continue
            return await self._respond(upstream, path, is_client=is_client)
        return self._unavailable(f"no engine answers ({'; '.join(reasons) or 'none configured'})")

    async def _handle(self, app: str) -> DeploymentHandle[Any]:
        if app not in self._handles:
            # Asks the controller, and blocks while it does.
            handle = await asyncio.to_thread(serve.get_app_handle, app)
            self._handles[app] = handle.options(method_name="forward", stream=True)
        return self._handles[app]

    async def _open(
        self, app: str, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> _Upstream:
        handle = await self._handle(app)
        items = cast(
            "DeploymentResponseGenerator[Any]", handle.remote(method, target, headers, body)
        )
        try:
            # A replica that restarts takes minutes, and Serve would let the request wait for it.
            await asyncio.wait_for(anext(items), self._assign_timeout_s)
            head = await anext(items)
        except (asyncio.CancelledError, TimeoutError):  # or the client gave up before the answer
            _cancel(items)
            raise
        return _Upstream(app, items, head)

    async def _respond(self, upstream: _Upstream, path: str, *, is_client: bool) -> Response:
        headers = {**upstream.headers, VERSION_HEADER: upstream.app}
        chunks = self._counted(upstream, is_client)
        if path == "/v1/models" and upstream.status == 200:
            body = b"".join([chunk async for chunk in chunks])
            return Response(without_boot_names(body), headers=headers)
        return StreamingResponse(chunks, status_code=upstream.status, headers=headers)

    async def _counted(self, upstream: _Upstream, is_client: bool) -> AsyncGenerator[bytes, None]:
        """Yield the body, and count how it ended; a client that leaves is no failure."""
        failed = upstream.status >= 500
        # Closed at once, not when it is collected: the engine must hear of a client that left.
        async with contextlib.aclosing(upstream.chunks()) as chunks:
            with self._counts.under_way(upstream.app):
                try:
                    async for chunk in chunks:
                        yield chunk
                except Exception:  # counted whatever it was; it goes on to the client's connection
                    failed = True
                    raise
                finally:
                    self._ended(upstream.app, is_client, failed=failed)

    def _ended(self, app: str, is_client: bool, *, failed: bool) -> None:
        """Count a client's request; what is pinned is specpilot's own."""
        if is_client:
            self._counts.ended(app, failed=failed)

    def _unavailable(self, message: str) -> Response:
        return JSONResponse(
            error_body(503, message), status_code=503, headers={"Retry-After": str(_RETRY_AFTER_S)}
        )


def router_app(
    *,
    num_replicas: int = 1,
    max_ongoing_requests: int = 1024,
    graceful_shutdown_timeout_s: float = 60.0,
    num_cpus: float = 0.0,
    assign_timeout_s: float = 10.0,
) -> Application:
    """Return the ingress application; its weights come as `user_config`.

    Args:
        num_replicas: Router replicas.
        max_ongoing_requests: Streams that one replica carries at once.
        graceful_shutdown_timeout_s: How long streams may run on when a replica goes.
        num_cpus: Reserved CPUs of each replica.
        assign_timeout_s: How long an engine may take to accept a request before another one gets
            it, or the client a 503: a replica that restarts, or is at max_ongoing_requests.
    """
    return serve.deployment(
        name=DEPLOYMENT_NAME,
        num_replicas=num_replicas,
        ray_actor_options={"num_cpus": num_cpus},
        max_ongoing_requests=max_ongoing_requests,
        graceful_shutdown_timeout_s=graceful_shutdown_timeout_s,
        user_config={"weights": {}},
    )(Router).bind(assign_timeout_s)
