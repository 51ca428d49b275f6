"""The ingress: forwards clients' requests to engine applications, by weight."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from serve_apps.router.counts import Counts
from serve_apps.router.gate import Gate, Visitor
from serve_apps.router.keys import OPEN
from serve_apps.router.limits import (
    MAX_BODIES_BYTES,
    MAX_PROBES,
    PATIENCE_S,
    Limits,
    Room,
    Senders,
    Take,
    header_refusal,
    read_body,
    read_object,
)
from serve_apps.router.policy import (
    HEALTH,
    READ_TIMEOUT_HEADER,
    VERSION_HEADER,
    Refusal,
    checked_weights,
    error_body,
    order,
    refusal,
    upstream_headers,
    without_boot_names,
)
from serve_apps.router.records import Records, stated_temperature
from serve_apps.router.upstream import NOT_THERE, Answer, Engines, FindDoor, Passing, find_door

logger = logging.getLogger(__name__)

DEPLOYMENT_NAME = "Router"
MAX_ONGOING_REQUESTS = 1024
"""Of the replica, above MAX_CLIENT_STREAMS: beyond it Serve queues without a word."""
GRACEFUL_SHUTDOWN_TIMEOUT_S = 60.0
"""How long streams may run on when the replica goes."""
PLACE_WITHIN_S, PLACE_WAIT_S = PATIENCE_S + 1.0, 0.01
"""Longest wait for a place while others only send their bodies, and the least between two looks."""
RETRY_AFTER_S = 5
"""What a client that finds no room is told: about an answer's time, and short beside a boot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One request, as an engine gets it and as it is recorded."""

    visitor: Visitor
    method: str
    path: str
    target: str
    """Path and query."""
    headers: dict[str, str]
    body: bytes
    temperature: float | None
    """Where the body states one."""
    started_at: float
    streams_at_start: int

    @property
    def is_traffic(self) -> bool:
        """Whether it is what production is for, so that it is counted and recorded."""
        is_steered = self.visitor.is_own or self.visitor.pinned is not None
        return self.path.endswith("/completions") and not is_steered


class Router:
    """Serves the OpenAI routes over engine applications with weights that change in place."""

    def __init__(
        self,
        assign_timeout_s: float,
        get_handle: Callable[[str], DeploymentHandle[Any]] = serve.get_app_handle,
        find_door: FindDoor | None = None,
    ) -> None:
        """Start without weights: every request is answered 503.

        Args:
            assign_timeout_s: How long an engine may take to accept a request (not to answer it).
            get_handle: Returns an engine application's handle.
            find_door: As ``Engines``'.
        """
        self._weights: dict[str, float] = {}
        self._engines = Engines(get_handle, assign_timeout_s, find_door)
        self._source = random.Random()
        self._counts = Counts()
        self._records = Records()
        self._gate = Gate()
        self._limits = Limits()
        self._streams, self._probes, self._bodies = Room(), Room(), Room()
        self._senders = Senders()

    def reconfigure(self, user_config: Mapping[str, Any]) -> None:
        """Take new weights, keys and limits; requests in flight stay where they are.

        Args:
            user_config: {"weights": {engine application name: weight}}, and where they differ
                from the defaults {"api_keys": source of ``KeyRing``, "limits": of ``Limits``}.

        Raises:
            ValueError: A value is out of range; nothing is changed.
        """
        weights = checked_weights(user_config.get("weights") or {})
        limits = Limits.from_dict(user_config.get("limits") or {})
        self._gate.take_keys(user_config.get("api_keys") or OPEN)
        self._limits, self._weights = limits, weights
        self._engines.keep(weights)
        logger.info("router weights: %s, limits: %s", self._weights, limits)

    def weights(self) -> dict[str, float]:
        """Return the weights in force."""
        return dict(self._weights)

    def counts(self) -> dict[str, dict[str, int]]:
        """Return what became of clients' completions by engine application; see ``Counts``."""
        return self._counts.to_dict()

    def requests(self, after: int) -> dict[str, Any]:
        """Return the records of clients' completions that ended since; see ``Records.since``."""
        return self._records.since(after)

    def own_token(self) -> str:
        """Return what specpilot's own requests carry in ``OWN_HEADER``, for callers over Ray."""
        return self._gate.own_token

    async def __call__(self, request: Request) -> Response:
        """Answer one request."""
        started_at = time.time()
        path = request.scope["path"].removeprefix(request.scope.get("root_path", "")) or "/"
        refused = header_refusal(request.scope["headers"], self._limits)
        refused = refused or refusal(request.method, path)
        visitor = refused or self._gate.visitor(path, request.headers, self._weights)
        if isinstance(visitor, Refusal):
            return _refused(visitor)
        with contextlib.ExitStack() as held:
            body_bytes = float("inf")
            if not visitor.is_own:
                room, most = self._streams, self._limits.max_streams
                if path == HEALTH:
                    room, most = self._probes, MAX_PROBES
                if not await self._has_place(held.enter_context(room.share(most))):
                    return _unavailable(f"{room.taken} requests are under way")
                body_bytes = max(MAX_BODIES_BYTES, self._limits.max_body_bytes)
            with self._bodies.share(body_bytes) as take:
                asked = await self._read(request, visitor, path, started_at, take)
                if isinstance(asked, Refusal):
                    return _refused(asked)
                return await self._answer(asked, held)

    async def _has_place(self, take: Take) -> bool:
        """Take a place; where all are taken, one of a client that only drips, and wait for that."""
        now_s = asyncio.get_running_loop().time
        deadline_s = now_s() + PLACE_WITHIN_S
        while not take(1):
            left_s = self._senders.end_longest()
            if left_s is None or now_s() + left_s > deadline_s:
                return False
            await asyncio.sleep(max(left_s, PLACE_WAIT_S))  # one that was ended has to leave yet
        return True

    async def _read(
        self, request: Request, visitor: Visitor, path: str, started_at: float, take: Take
    ) -> _Asked | Refusal:
        streams_at_start = self._streams.taken
        body, fields = b"", dict[str, Any]()
        if request.method == "POST":  # nothing else has a use for one, and /health asks for no key
            senders = None if visitor.is_own else self._senders
            read = await read_body(request, self._limits, take, senders)
            if isinstance(read, Refusal):
                return read
            found = read_object(read)
            if isinstance(found, Refusal):
                return found
            body, fields = read, found
        return _Asked(
            visitor=visitor,
            method=request.method,
            path=path,
            target=_target(path, request.scope),
            headers=upstream_headers(request.headers),
            body=body,
            temperature=stated_temperature(fields),
            started_at=started_at,
            streams_at_start=streams_at_start,
        )

    async def _answer(self, asked: _Asked, held: contextlib.ExitStack) -> Response:
        """Ask one engine after the other; what the answer takes with it leaves ``held``."""
        reasons: list[str] = []
        for app in order(self._weights, asked.visitor.pinned, self._source):
            with contextlib.ExitStack() as turn:
                turn.enter_context(self._counts.under_way(app))
                try:
                    answer = await self._engines.ask(
                        app, asked.method, asked.target, asked.headers, asked.body
                    )
                except BackPressureError as error:
                    # Another engine would get this one's overflow on top of its own share.
                    self._ended(app, asked, failed=True)
                    return _unavailable(f"{app} is at its limit: {error}")
                except NOT_THERE as error:
                    reasons.append(f"{app}: {type(error).__name__}")
                    logger.warning("engine application %s is not there: %s", app, error)
                    self._ended(app, asked, failed=True)
                    continue
                # Without the body: an answer may take minutes, and the body's room is given back.
                turn.callback(self._over, replace(asked, body=b""), answer)
                held.enter_context(turn.pop_all())
                return await self._respond(asked, answer, held)
        return _unavailable(f"no engine answers ({'; '.join(reasons) or 'none configured'})")

    async def _respond(self, asked: _Asked, answer: Answer, held: contextlib.ExitStack) -> Response:
        headers = {**answer.headers, VERSION_HEADER: answer.app}
        if asked.path == "/v1/models" and answer.status == 200:
            return await _models(answer, headers)
        headers[READ_TIMEOUT_HEADER] = f"{self._limits.read_timeout_s:g}"
        return Passing(answer, headers, held.pop_all())

    def _over(self, asked: _Asked, answer: Answer) -> None:
        """Count and record an answer; a client that left is no failure."""
        answer.close()
        self._ended(answer.app, asked, failed=answer.has_failed)
        if asked.is_traffic and answer.status < 400:
            self._records.add(
                started_at=asked.started_at,
                ended_at=time.time(),
                temperature=asked.temperature,
                streams_at_start=asked.streams_at_start,
                tokens=answer.tally.tokens(),
            )

    def _ended(self, app: str, asked: _Asked, *, failed: bool) -> None:
        """Count what clients wait for; probes would fill a canary and thin out its failures."""
        if asked.is_traffic:
            self._counts.ended(app, failed=failed)


def _target(path: str, scope: Scope) -> str:
    # Not by request.url, which is made of the Host header too and fails with it.
    query = scope.get("query_string", b"").decode("latin-1")
    return f"{path}?{query}" if query else path


async def _models(answer: Answer, headers: Mapping[str, str]) -> Response:
    """Return the list of models, or that this engine's cannot be had."""
    try:
        body = without_boot_names(b"".join([chunk async for chunk in answer.chunks()]))
    except (*NOT_THERE, ValueError) as error:  # what an engine says else is not for clients
        logger.warning("engine application %s gave no list of models: %s", answer.app, error)
        return _unavailable(f"{answer.app} gave no list of models")
    return Response(body, headers=dict(headers))


def _unavailable(message: str) -> Response:
    return _refused(Refusal(503, message))


def _refused(refused: Refusal) -> Response:
    headers = dict(refused.headers)
    if refused.status == 503:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    return JSONResponse(error_body(refused), status_code=refused.status, headers=headers)


def router_app(*, assign_timeout_s: float = 10.0) -> Application:
    """Return the ingress application; its weights come as `user_config`.

    Args:
        assign_timeout_s: How long an engine may take to accept a request before another one gets
            it, or the client a 503: a replica that restarts, or is at max_ongoing_requests.
    """
    return serve.deployment(
        name=DEPLOYMENT_NAME,
        num_replicas=1,  # its token, counts, records and limits are one process's
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        graceful_shutdown_timeout_s=GRACEFUL_SHUTDOWN_TIMEOUT_S,
        user_config={"weights": {}},
    )(Router).bind(assign_timeout_s, find_door=find_door)
