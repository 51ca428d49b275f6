"""The Serve deployment around one engine process, and the builders of its applications."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import ray
from ray import serve
from ray.serve import Application

from serve_apps.engine.boot_watch import BootProgress
from serve_apps.engine.door import Door
from serve_apps.engine.errors import EngineNotRunning
from serve_apps.engine.http import HttpError
from serve_apps.engine.spec import EngineSpec
from serve_apps.engine.supervisor import EngineProcess

logger = logging.getLogger(__name__)

DEPLOYMENT_NAME = "Engine"

_LOG_EVERY_S = 30.0
# Under Serve's own limit (30 s), so that a miss is reported as what it is. Serve restarts a
# replica after three misses in a row: an engine that is busy for one check is left alone.
_HEALTH_TIMEOUT_S = 25.0

Head = tuple[int, dict[str, str]]
"""Status and headers of an answer."""
MIN_ONGOING_REQUESTS = 64
"""An engine lets in so many requests at once, whatever the load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How Serve places and keeps an engine, in plain JSON types."""

    resources: dict[str, float] = field(default_factory=lambda: {"GB10": 1.0})
    num_gpus: float = 0.0
    """1 on a real node: it sets CUDA_VISIBLE_DEVICES, which a resource token alone does not."""
    node_id: str | None = None
    """Ray node id that the replica must land on (a trial's own node)."""
    max_ongoing_requests: int = MIN_ONGOING_REQUESTS
    """At least the engine's max_num_seqs, and the highest concurrency that is sent."""
    max_queued_requests: int = -1
    """Requests that wait in each router beyond that before it answers 503; -1 is no limit."""
    max_constructor_retry_count: int = 1
    """A boot takes minutes: an out-of-memory boot must not be tried three times."""
    graceful_shutdown_timeout_s: float = 10.0
    """How long requests in flight may take once the replica is told to go, and the stop itself."""
    health_check_period_s: float = 10.0
    health_check_timeout_s: float = 30.0


# Both tokens: a Tune trial reserves `trial_slot`, so none is scheduled on the production node.
PRODUCTION_OPTIONS = EngineOptions(
    resources={"GB10": 1.0, "trial_slot": 1.0}, graceful_shutdown_timeout_s=60.0
)


class Engine:
    """One engine in one Serve replica."""

    async def __init__(self, spec: Mapping[str, Any], max_ongoing_requests: int) -> None:  # type: ignore[misc]  # Serve awaits it
        """Boot the engine; the replica is ready when one real completion has come.

        Args:
            spec: `EngineSpec.to_dict()`.
            max_ongoing_requests: As in its options, for the door alone: Serve counts no request
                that comes through it.

        Raises:
            EngineBootError: With kind, cause and log tail in its text, which Serve shows as the
                deployment's message (see `errors.boot_error_from_text`).
        """
        self._told_s = 0.0
        self._process = EngineProcess(EngineSpec.from_dict(spec))
        self._process.start()
        logger.info("engine boot %s: pid %d", self._process.boot_id, self._process.pid)
        facts = await self._process.wait_ready(self._on_progress)
        self._door = self._process.door(max_ongoing_requests)
        logger.info("engine boot %s: ready in %.1f s", facts.boot_id, facts.boot_time_s)

    def _on_progress(self, progress: BootProgress) -> None:
        if progress.elapsed_s - self._told_s >= _LOG_EVERY_S:
            self._told_s = progress.elapsed_s
            logger.info(
                "engine boot %s: %.0f s, log silent for %.0f s: %s",
                self._process.boot_id,
                progress.elapsed_s,
                progress.idle_s,
                progress.last_line,
            )

    def boot_id(self) -> str:
        """Return the identity of this boot: Serve restarts replicas without a word."""
        return self._process.boot_id

    def facts(self) -> dict[str, Any]:
        """Return `EngineFacts.to_dict()`."""
        return self._process.facts().to_dict()

    async def metrics_text(self) -> str:
        """Return the engine's own Prometheus exposition, unchanged."""
        return await self._process.metrics_text()

    def actor_id(self) -> str:
        """Return Ray's id of this replica, under which it knows how the replica ended."""
        return str(ray.get_runtime_context().get_actor_id())

    async def probe(self, timeout_s: float) -> str | None:
        """Ask for one completion; return None when it came, else what happened instead."""
        return await self._process.probe(timeout_s=timeout_s)

    async def post_mortem(self) -> str | None:
        """Return the text of the `EngineBootError` of an engine that ended; None while it runs."""
        ended = await asyncio.to_thread(self._process.post_mortem)
        return None if ended is None else str(ended)

    async def check_health(self) -> None:
        """Raise when the engine process is gone or /health does not answer."""
        if not self._process.is_alive():
            raise EngineNotRunning(self._process.boot_id, f"exited: {self._process.tail(5)}")
        if not await self._process.is_healthy(timeout_s=_HEALTH_TIMEOUT_S):
            raise EngineNotRunning(self._process.boot_id, "/health does not answer 200")

    async def forward(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncGenerator[Head | bytes | None, None]:
        """Forward one request to the engine; for a streaming handle.

        Closing the generator, or cancelling the handle's response, aborts the request in the
        engine.

        Yields:
            None at once: this replica has the request (a caller can tell a slow prefill from a
            replica that is not there). Then status and headers, then the body's chunks exactly as
            the engine sent them.

        Raises:
            EngineNotRunning: The engine does not answer, or stopped in the middle.
        """
        yield None
        try:
            async with self._process.http.stream(method, path, headers=headers, body=body) as (
                status,
                answer_headers,
                chunks,
            ):
                yield status, answer_headers
                async for chunk in chunks:
                    yield chunk
        except HttpError as error:
            detail = f"{type(error).__name__} while forwarding {path}"
            raise EngineNotRunning(self._process.boot_id, detail) from error

    async def door(self, node_id: str) -> tuple[Any, ...]:
        """Return the ``DoorAddress`` for a router on a node, and listen there from now on.

        Raises:
            OSError: It cannot listen there.
        """
        here = ray.get_runtime_context().get_node_id()
        host = None if node_id == here else await asyncio.to_thread(_host_of, here)
        return tuple(await self._door.address(host))

    def __del__(self) -> None:
        """End the engine; Serve calls this once requests are drained, the interpreter again.

        Of those that come through the door Serve knows nothing. They end first, unless Serve ends
        this replica as too late: ``graceful_shutdown_timeout_s``.
        """
        door: Door | None = getattr(self, "_door", None)
        if door is not None:
            door.drain()
            door.close()
        process: EngineProcess | None = getattr(self, "_process", None)
        if process is not None:
            process.stop()


def _host_of(node_id: str) -> str:
    """Return the address under which Ray's other nodes know one."""
    nodes = ray.nodes()  # type: ignore[no-untyped-call]  # Ray's
    hosts = [node["NodeManagerAddress"] for node in nodes if node["NodeID"] == node_id]
    return str(hosts[0])


def max_ongoing_requests(max_streams: int) -> int:
    """Return how many requests an engine lets in: twice what is sent, so that it never limits.

    Args:
        max_streams: Highest concurrency of the load.
    """
    return max(MIN_ONGOING_REQUESTS, 2 * max_streams)


def _deployment_options(options: EngineOptions) -> dict[str, Any]:
    """Return the keyword arguments of `Deployment.options`."""
    actor: dict[str, Any] = {"num_cpus": 0, "resources": dict(options.resources)}
    if options.num_gpus:
        actor["num_gpus"] = options.num_gpus
    if options.node_id is not None:
        actor["label_selector"] = {"ray.io/node-id": options.node_id}
    return {
        "name": DEPLOYMENT_NAME,
        "num_replicas": 1,
        "ray_actor_options": actor,
        "max_ongoing_requests": options.max_ongoing_requests,
        "max_queued_requests": options.max_queued_requests,
        "max_constructor_retry_count": options.max_constructor_retry_count,
        "graceful_shutdown_timeout_s": options.graceful_shutdown_timeout_s,
        "health_check_period_s": options.health_check_period_s,
        "health_check_timeout_s": options.health_check_timeout_s,
    }


def _application(spec: Mapping[str, Any], options: EngineOptions) -> Application:
    checked = EngineSpec.from_dict(spec).to_dict()  # fail here, not in a replica
    return serve.deployment(**_deployment_options(options))(Engine).bind(
        checked, options.max_ongoing_requests
    )


def trial_app(spec: Mapping[str, Any], options: EngineOptions) -> Application:
    """Return the application of one trial, for `serve.run_many` without waiting.

    Args:
        spec: `EngineSpec.to_dict()`.
        options: Placement and lifetime.
    """
    return _application(spec, options)


def production_engine(args: Mapping[str, Any]) -> Application:
    """Return a production engine, for a declarative PUT.

    Args:
        args: {"spec": EngineSpec.to_dict(), "options": fields that differ from PRODUCTION_OPTIONS}.

    Raises:
        ValueError: On an unknown key.
    """
    changes = dict(args.get("options") or {})
    unknown = sorted(set(changes) - {f.name for f in fields(EngineOptions)})
    unknown += sorted(set(args) - {"spec", "options"})
    if unknown:
        raise ValueError(f"engine application: unknown key {unknown[0]!r}")
    return _application(args["spec"], replace(PRODUCTION_OPTIONS, **changes))
