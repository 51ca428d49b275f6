"""An engine behind its own Serve application, one a trial, on the trial's node."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray._private import state as ray_state
from ray.serve.handle import DeploymentHandle

from orchestrator.adapters.engine_evidence import EngineLogs, by_ray, ended_engine, failed_boot
from orchestrator.adapters.serve_reaper import Lease
from orchestrator.core.failures import Failure, FailureKind, boot_error
from orchestrator.core.secrecy import redact_text, scrub
from orchestrator.core.types import Arm, EngineFacts
from orchestrator.errors import TransientError
from serve_apps.engine import leftovers, procfs
from serve_apps.engine.deployment import (
    DEPLOYMENT_NAME,
    EngineOptions,
    max_ongoing_requests,
    trial_app,
)
from serve_apps.engine.oomkills import OomKills
from serve_apps.engine.spec import EngineSpec, boot_mark, trial_mark

TRIAL_PREFIX = "trial-"
"""Serve applications with this prefix belong to trials; production never carries it."""
CALL_TIMEOUT_S = 30.0
PROBE_TIMEOUT_S = 20.0
"""For one short completion of an engine that has nothing else to do; less than a call may take."""
STOP_TIMEOUT_S = 90.0
GUARDS_S = 30.0
"""How long guards of a replica that Serve had to kill may take: ``stop_timeout_s`` and a bit."""
POLL_S = 0.5
PROGRESS_S = 15.0


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
    trial: str
    """"<study id>/<application>", which every process of the trial's boots carries."""
    boots_dir: Path
    """Folder of the records of boots, on the trial's node."""


class ServeEngine:
    """The ``Engine`` port on Ray Serve."""

    def __init__(
        self,
        placement: EnginePlacement,
        spec_for: Callable[[Arm], EngineSpec],
        lease: Lease,
    ) -> None:
        self._placement = placement
        self._spec_for = spec_for
        self._lease = lease
        self._handle: DeploymentHandle[Any] | None = None
        self._logs: EngineLogs | None = None
        self._kills = OomKills()
        self._boot_id: str | None = None
        self._actor_id: str | None = None
        self._message = ""

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
        spec = replace(self._spec_for(arm), trial=place.trial, boots_dir=str(place.boots_dir))
        self._logs, self._kills = EngineLogs(spec.log_path), OomKills()
        app = trial_app(spec.to_dict(), options)
        target = serve.RunTarget(target=app, name=place.app_name, route_prefix=None)
        # The blocking form never returns when the resources are not there.
        serve.run_many([target], wait_for_applications_running=False)
        self._wait_running(on_progress)
        self._handle = serve.get_app_handle(place.app_name)
        facts = self.facts()
        self._boot_id, self._actor_id = facts.boot_id, str(self._call("actor_id"))
        return facts

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
        """Return the end of the boot's log, without secrets."""
        return "" if self._logs is None else redact_text(self._logs.tail(self._boot_id))

    def serve_message(self) -> str:
        """Return what Serve says of the engine's deployment; when it failed, what it said then."""
        try:
            return self._message or deployment_message(self._placement.app_name)
        except (ray.exceptions.RayError, serve.exceptions.RayServeException) as error:
            return f"Serve does not answer: {error}"

    def probe(self) -> str | None:
        """Ask for one completion; see ``ports.Engine.probe``."""
        try:
            problem = self._call("probe", PROBE_TIMEOUT_S)
        except TransientError as error:
            return str(error)
        return None if problem is None else str(problem)

    def post_mortem(self) -> Failure | None:
        """Return what ended the engine, by Ray's word, its replica's, its log and the kernel's."""
        if self._actor_id is not None:
            said = _killed_for_memory(self._actor_id)
            if said is not None:
                return by_ray(said)
        try:
            told = self._call("post_mortem")
        except TransientError:
            told = None
        text = "" if self._logs is None else self._logs.text(self._boot_id)
        return ended_engine(told, text, self._kills)

    def kill(self) -> None:
        """End the trial's processes at once; its application stays until ``stop``."""
        procfs.end(None, trial_mark(self._placement.trial), grace_s=0.0)

    def stop(self) -> None:
        """Delete the application and see that nothing of the trial is left on its node.

        Raises:
            TransientError: Something is, or Serve does not answer.
        """
        place, self._handle = self._placement, None
        try:
            left = self._delete()
        except (ray.exceptions.RayError, serve.exceptions.RayServeException) as error:
            left = [f"application {place.app_name}: {error}"]
        finally:
            self._lease.end()
        # The trial's processes are its own to end, also where Serve does not do it.
        guards_s = 0.0 if left else GUARDS_S
        left += leftovers.end_trial(place.trial, place.boots_dir, wait_s=guards_s)
        if left:
            raise TransientError(f"of {place.trial} is left: {'; '.join(left)}")

    def _delete(self) -> list[str]:
        """Delete the application and wait until it is gone; return why it is not."""
        name = self._placement.app_name
        serve.delete(name, _blocking=False)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while name in serve.status().applications:
            if time.monotonic() > deadline:
                return [f"application {name} did not go in {STOP_TIMEOUT_S:g} s"]
            time.sleep(POLL_S)
        return []

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
                self._message = deployment_message(name)
                raise boot_error(failed_boot(self._message, self._kills))
            now = time.monotonic()
            if now - started > self._placement.boot_timeout_s + CALL_TIMEOUT_S:
                self._message = deployment_message(name)
                reason = f"not up after {now - started:.0f} s (engine.boot_timeout_s)"
                said = redact_text(f"Serve says: {self._message or status}")
                raise boot_error(Failure(FailureKind.TIMEOUT, f"{reason}; {said}"))
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


def _killed_for_memory(actor_id: str) -> str | None:
    """Return Ray's words when its memory monitor killed an actor, else None.

    The caller of a method hears of it only if the actor died in the call. Nothing public says how
    an actor ended without a way to the dashboard, which listens on the head's loopback.
    """
    try:
        cause = ray_state.actors(actor_id).get("DeathCause")
    except ray.exceptions.RayError:
        return None
    return oom_words(cause)


def oom_words(death_cause: Any) -> str | None:
    """Return the words of an actor's ``ActorDeathCause`` that is the memory monitor, else None."""
    if death_cause is None or not death_cause.HasField("oom_context"):
        return None
    return str(death_cause.oom_context.error_message)


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
