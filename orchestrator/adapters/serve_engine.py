"""An engine behind its own Serve application, one a trial, on the trial's node."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

from orchestrator.adapters.serve_reaper import Lease
from orchestrator.core.secrecy import redact_text, scrub
from orchestrator.core.types import Arm, EngineFacts
from orchestrator.errors import InfeasibleArm, TransientError
from serve_apps.engine import procfs
from serve_apps.engine.deployment import (
    DEPLOYMENT_NAME,
    EngineOptions,
    max_ongoing_requests,
    trial_app,
)
from serve_apps.engine.errors import BootFailure, boot_error_from_text
from serve_apps.engine.spec import boot_mark

TRIAL_PREFIX = "trial-"
"""Serve applications with this prefix belong to trials; production never carries it."""
CALL_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 90.0
POLL_S = 0.5
PROGRESS_S = 15.0

_INFEASIBLE = frozenset({BootFailure.BAD_ARGUMENTS, BootFailure.OUT_OF_MEMORY})


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlacement:
    """Where a trial's engine runs and how long its boot may take."""

    app_name: str
    node_id: str
    """Ray node of the trial; the engine lands on the same one."""
    engine_token: str
    num_gpus: float
    max_streams: int
    """Highest concurrency of the load; the application lets that many requests in."""
    boot_timeout_s: float


class ServeEngine:
    """The ``Engine`` port on Ray Serve."""

    def __init__(
        self,
        placement: EnginePlacement,
        spec_for: Callable[[Arm], Mapping[str, Any]],
        lease: Lease,
    ) -> None:
        self._placement = placement
        self._spec_for = spec_for
        self._lease = lease
        self._handle: DeploymentHandle[Any] | None = None

    def start(self, arm: Arm, on_progress: Callable[[str], None]) -> EngineFacts:
        """Boot the arm in its application; see ``ports.Engine.start``."""
        place = self._placement
        options = EngineOptions(
            resources={place.engine_token: 1.0},
            num_gpus=place.num_gpus,
            node_id=place.node_id,
            max_ongoing_requests=max_ongoing_requests(place.max_streams),
        )
        self._lease.start()
        app = trial_app(self._spec_for(arm), options)
        target = serve.RunTarget(target=app, name=place.app_name, route_prefix=None)
        # The blocking form never returns when the resources are not there.
        serve.run_many([target], wait_for_applications_running=False)
        self._wait_running(on_progress)
        self._handle = serve.get_app_handle(place.app_name)
        return self.facts()

    def facts(self) -> EngineFacts:
        """Ask the engine what it is."""
        return facts_from_plain(self._call("facts"))

    def metrics_text(self) -> str:
        """Return the engine's own exposition."""
        return str(self._call("metrics_text"))

    def pids(self) -> frozenset[int]:
        """Return the boot's processes; the engine runs on the node of the trial that asks."""
        try:
            facts = self.facts()
            return frozenset(procfs.members(os.getpgid(facts.pid), boot_mark(facts.boot_id)))
        except (TransientError, ProcessLookupError):
            return frozenset()

    def log_tail(self) -> str:
        """Return the end of the engine's log, or the reason why there is none."""
        if self._handle is None:
            return deployment_message(self._placement.app_name)
        try:
            return redact_text(str(self._call("tail", 80)))
        except TransientError as error:
            return f"the log cannot be read: {error}"

    def stop(self) -> None:
        """Delete the application and wait until it is gone."""
        name = self._placement.app_name
        self._handle = None
        try:
            serve.delete(name, _blocking=False)
            deadline = time.monotonic() + STOP_TIMEOUT_S
            while name in serve.status().applications:
                if time.monotonic() > deadline:
                    raise TransientError(f"application {name} did not go in {STOP_TIMEOUT_S:g} s")
                time.sleep(POLL_S)
        finally:
            self._lease.end()

    def _call(self, method: str, *args: object) -> Any:
        if self._handle is None:
            raise TransientError("the engine is not up")
        try:
            response = getattr(self._handle, method).remote(*args)
            return response.result(timeout_s=CALL_TIMEOUT_S)
        except (ray.exceptions.RayError, serve.exceptions.RayServeException, TimeoutError) as error:
            reason = str(error).strip().splitlines()[-1] if str(error).strip() else repr(error)
            raise TransientError(f"the engine does not answer {method}: {reason}") from error

    def _wait_running(self, on_progress: Callable[[str], None]) -> None:
        name = self._placement.app_name
        started = time.monotonic()
        told = started
        while True:
            app = serve.status().applications.get(name)
            status = None if app is None else str(app.status.value)
            if status == "RUNNING":
                return
            if status in ("DEPLOY_FAILED", "UNHEALTHY"):
                raise boot_failure(deployment_message(name))
            now = time.monotonic()
            if now - started > self._placement.boot_timeout_s + CALL_TIMEOUT_S:
                raise TransientError(
                    f"not up after {now - started:.0f} s (engine.boot_timeout_s); "
                    f"Serve says: {deployment_message(name) or status}"
                )
            if now - told > PROGRESS_S:
                told = now
                on_progress(f"booting for {now - started:.0f} s")
            time.sleep(POLL_S)


def deployment_message(app_name: str) -> str:
    """Return what Serve says of an application's engine; empty when it says nothing.

    The application's own message only says that a deployment failed; the cause stands there.
    """
    app = serve.status().applications.get(app_name)
    if app is None:
        return ""
    deployment = app.deployments.get(DEPLOYMENT_NAME)
    return (deployment.message if deployment is not None else "") or app.message


def boot_failure(message: str) -> InfeasibleArm | TransientError:
    """Return the error that a failed boot's message stands for, without secrets."""
    error = boot_error_from_text(message)
    if error is None:
        last = redact_text(message.strip())[-2000:]
        return TransientError(f"the engine's application failed: {last}")
    text = redact_text(f"{error.reason}: {error.cause}" if error.cause else error.reason)
    return InfeasibleArm(text) if error.kind in _INFEASIBLE else TransientError(text)


def facts_from_plain(data: Mapping[str, Any]) -> EngineFacts:
    """Return the engine's facts from what its deployment sends, without secrets.

    vLLM shows its resolved config with the token of the model hub.
    """
    weights_gib = data["weights_gib"]
    return EngineFacts(
        boot_id=data["boot_id"],
        pid=data["pid"],
        base_url=data["base_url"],
        engine_version=data["engine_version"],
        model_runner=data["model_runner"],
        num_speculative_tokens=data["num_speculative_tokens"],
        draft_sample_method=data["draft_sample_method"],
        rejection_sample_method=data["rejection_sample_method"],
        draft_architecture=data["draft_architecture"],
        kv_cache_tokens=data["kv_cache_tokens"],
        kv_max_concurrency=data["kv_max_concurrency"],
        kv_cache_tokens_log=data["kv_cache_tokens_log"],
        kv_max_concurrency_log=data["kv_max_concurrency_log"],
        max_model_len=data["max_model_len"],
        boot_time_s=data["boot_time_s"],
        weights_bytes=None if weights_gib is None else round(weights_gib * 2**30),
        log_path=data["log_path"],
        resolved_config=_scrubbed(data["resolved_config"]),
        build=_scrubbed(data["build"]),
    )


def _scrubbed(data: Mapping[str, Any] | None) -> dict[str, Any]:
    plain = scrub(data or {})
    assert isinstance(plain, dict)
    return plain
