"""Trials of the stand-in engine on the local Ray, and its reaper."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray

from one_node.conftest import OneNode
from orchestrator.core.types import Arm
from serve_apps.engine.spec import FAKE_LAUNCHER, EngineSpec

with warnings.catch_warnings():  # Serve's own use of pydantic is deprecated
    warnings.simplefilter("ignore")
    from ray import serve

    from orchestrator.adapters.serve_engine import EnginePlacement, ServeEngine
    from orchestrator.adapters.serve_reaper import REAPER_NAME, Lease, start_reaper
    from serve_apps.engine.deployment import EngineOptions, trial_app

STUDY = "demo-1a2b3c4d-20261129-101500"
BASELINE = Arm(engine_build="0.32.0", num_speculative_tokens=0)


def until(what: Callable[[], object], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@contextmanager
def reaper_on(node: OneNode) -> Iterator[None]:
    """Give a Ray a reaper that looks after trials, and let what is called here find both."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECPILOT_STATE_DIR", str(node.state))
        patch.setenv("RAY_ADDRESS", node.address)
        ray.get(start_reaper("trial-").__ray_ready__.remote())
        yield
        ray.kill(start_reaper("trial-"))
        until(lambda: not has_reaper())


def has_reaper() -> bool:
    """Return whether the Ray has one."""
    named = ray.util.list_named_actors(all_namespaces=True)
    return REAPER_NAME in {actor["name"] for actor in named}


def spec(state: Path, app: str | None) -> EngineSpec:
    return EngineSpec(
        model="/models/target",
        served_model_name="served",
        log_path=str(state / "{boot_id}.log"),
        launcher=FAKE_LAUNCHER,
        boot_timeout_s=60,
        stop_timeout_s=1,
        trial=None if app is None else f"{STUDY}/{app}",
        boots_dir=None if app is None else str(state / "boots"),
    )


def deploy(**apps: EngineSpec) -> None:
    """Bring up an application for each spec, all at once; "_" stands for "-" in a name."""
    names = declare(**apps)
    until(lambda: {serve.status().applications[name].status for name in names} == {"RUNNING"})


def declare(**apps: EngineSpec) -> list[str]:
    """Declare applications as ``deploy`` does, without waiting for them; return their names."""
    options = EngineOptions(node_id=ray.get_runtime_context().get_node_id())
    named = {name.replace("_", "-"): what for name, what in apps.items()}
    targets = [
        serve.RunTarget(target=trial_app(what.to_dict(), options), name=name, route_prefix=None)
        for name, what in named.items()
    ]
    serve.run_many(targets, wait_for_applications_running=False)
    return list(named)


def engine_of(state: Path, name: str) -> ServeEngine:
    """Return the port of a trial's engine, as the trial's actor wires it."""
    return ServeEngine(
        EnginePlacement(
            app_name=name,
            node_id=ray.get_runtime_context().get_node_id(),
            engine_token="GB10",
            num_gpus=0,
            max_streams=4,
            boot_timeout_s=60,
            trial=f"{STUDY}/{name}",
            boots_dir=state / "boots",
        ),
        spec_for=lambda _arm: spec(state, None),
        lease=Lease(name),
    )
