"""A local cluster as the faults see it: versions, commands, processes, and what serves."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.local.cluster import LocalCluster
from infra.local.processes import tagged
from orchestrator.adapters.mlflow_registry import MlflowRegistry
from orchestrator.adapters.mlflow_tracker import MlflowTracker
from orchestrator.adapters.serve_production import production_state
from orchestrator.adapters.state import Folder
from orchestrator.compose import engine_spec
from orchestrator.config import StudyConfig, load_config
from orchestrator.core.codec import to_plain
from orchestrator.core.promise import Expected, Promise
from orchestrator.core.types import Arm
from orchestrator.delivery import EVIDENCE_TAG, heaviest
from orchestrator.incumbent import ARM_TAG, PREMISES_TAG, incumbent_tag
from orchestrator.ports import Version
from orchestrator.prepare import premises, prepare
from orchestrator.production_stage import app_name
from orchestrator.promotion_record import (
    BOOT_TIME_TAG,
    CHAMPION,
    GATE_PREFIX,
    GATE_REASON_PREFIX,
    STEP_TAG,
)
from serve_apps.engine import procfs
from serve_apps.engine.spec import BOOT_ID_VARIABLE, TRIAL_VARIABLE

COMMAND_TIMEOUT_S = 400.0
MODEST = Expected(mean=1.1, variance=0.01, weight=100.0, degrees_of_freedom=5)
"""An acceptance length that any draft has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One study's place on a cluster that runs."""

    cluster: LocalCluster
    study: Path
    settings: Sequence[str]
    config: StudyConfig = field(init=False)

    def __post_init__(self) -> None:
        """Read the study."""
        object.__setattr__(self, "config", load_config(self.study, self.settings))

    @property
    def model(self) -> str:
        """The registered model."""
        return self.config.tracking.registered_model

    @property
    def registry(self) -> MlflowRegistry:
        """The versions."""
        return MlflowRegistry(self.cluster.mlflow_uri)

    def register(
        self,
        env: Mapping[str, str] | None = None,
        *,
        args: Mapping[str, object] | None = None,
        step_time: Expected | None = None,
        settings: Sequence[str] = (),
    ) -> Version:
        """Register a version as a study does, with a promise that an honest engine keeps.

        Args:
            env: Added to its engine's environment.
            args: Added to its engine's arguments.
            step_time: What is promised of it; None promises acceptance only.
            settings: Of its study, beside the site's.
        """
        config = load_config(self.study, [*self.settings, *settings]) if settings else self.config
        arm = Arm(
            engine_build=config.engine.build,
            num_speculative_tokens=7,
            draft_sample_method="probabilistic",
            rejection_sample_method="block",
        )
        with environment("SPECPILOT_STATE_DIR", str(self.cluster.state_dir)):
            held = premises(prepare(config, models_must_exist=True))
        promise = Promise(
            arm=arm,
            cell=heaviest(config),
            confidence=0.99,
            is_modelled=step_time is None,
            step_time=step_time,
            acceptance=MODEST,
        )
        tracker = MlflowTracker(self.cluster.mlflow_uri, experiment=config.tracking.experiment)
        run = tracker.open_study("by-hand", "by-hand", {})
        spec = engine_spec(config, arm, f"{config.name}-{arm.label}").to_dict()
        state_dir = self.cluster.state_dir
        return self.registry.create_version(
            self.model,
            run,
            {
                **spec,
                "env": {**spec["env"], **(env or {})},
                "args": {**spec["args"], **(args or {})},
                "log_path": str(state_dir / Folder.LOGS / "by-hand-{boot_id}.log"),
                "cache_dir": str(state_dir / Folder.CACHE),
            },
            {
                EVIDENCE_TAG: json.dumps(to_plain(promise)),
                ARM_TAG: json.dumps(to_plain(arm)),
                PREMISES_TAG: json.dumps(held.to_dict()),
                **incumbent_tag(self.registry.by_alias(self.model, CHAMPION)),
                f"{GATE_PREFIX}better": "passed",
                f"{GATE_REASON_PREFIX}better": "by hand",
                BOOT_TIME_TAG: "2.0",
            },
        )

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Start one command of specpilot on this study."""
        name, *more = words
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "orchestrator", name, str(self.study)),
                *(*self.settings, *more),
            ],
            env={**self.cluster.environment(), "RAY_ADDRESS": self.cluster.gcs_address},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def command(self, *words: str) -> tuple[int, str]:
        """Run one command of specpilot and return its status and what it said."""
        process = self.begin(*words)
        said, _ = process.communicate(timeout=COMMAND_TIMEOUT_S)
        return process.returncode, said

    def step(self, version: Version) -> str | None:
        """Return the last step of a version's promotion."""
        found = self.registry.by_number(self.model, version.version)
        return None if found is None else found.tags.get(STEP_TAG)

    def champion(self) -> int | None:
        """Return the version that the registry calls the champion."""
        found = self.registry.by_alias(self.model, CHAMPION)
        return None if found is None else found.version

    def is_whole(self) -> bool:
        """Whether production serves the champion alone, and answers."""
        champion = self.champion()
        if champion is None:
            return False
        name = self.config.production.name
        app = app_name(name, champion)
        with contextlib.suppress(OSError, ValueError, KeyError):
            state = production_state(self._details(), name)
            is_alone = state.engines == {app: "RUNNING"} and state.weights == {app: 1.0}
            return is_alone and state.router_status == "RUNNING" and self._answers()
        return False

    def applications(self) -> list[str]:
        """Return the names of Serve's applications.

        Raises:
            OSError: Serve does not answer.
        """
        return [*self._details()["applications"]]

    def node_ids(self) -> frozenset[str]:
        """Return the ids of the Ray nodes that are alive; none when the head does not say."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            nodes = [
                item["raylet"] for item in self._asked("/nodes?view=summary")["data"]["summary"]
            ]
            return frozenset(node["nodeId"] for node in nodes if node["state"] == "ALIVE")
        return frozenset()

    def _details(self) -> dict[str, Any]:
        return self._asked("/api/serve/applications/")

    def _asked(self, path: str) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self.cluster.dashboard_url}{path}", headers=self.cluster.auth_headers()
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            said: dict[str, Any] = json.load(answer)
        return said

    def _answers(self) -> bool:
        body = {"model": self.config.engine.served_model_name, "prompt": "def f(", "max_tokens": 4}
        request = urllib.request.Request(
            f"{self.cluster.production_url}/v1/completions",
            data=json.dumps(body).encode(),
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return bool(json.load(answer)["choices"][0]["text"])

    def seconds_until_whole(self, limit_s: float) -> float | None:
        """Wait until production is whole; None when it is not by the limit."""
        begun = time.monotonic()
        while time.monotonic() - begun < limit_s:
            if self.is_whole():
                return time.monotonic() - begun
            time.sleep(0.5)
        return None

    def processes(self, wanted: Callable[[str], bool]) -> Iterator[int]:
        """Yield the cluster's processes whose command line is wanted."""
        for pid in tagged(self.cluster.tag):
            if wanted(procfs.command_line(pid)):
                yield pid

    def titled(self, title: str) -> list[int]:
        """Return the cluster's processes whose title begins so.

        A worker's title stands where its environment was, so that it is found by its raylet.
        """
        own = {*tagged(self.cluster.tag)}
        return [
            pid
            for pid in procfs.pids()
            if procfs.command_line(pid).startswith(title) and own & {*procfs.ancestors(pid)}
        ]

    def kill_router(self) -> bool:
        """SIGKILL the router's replica; return whether there was one."""
        return _kill(self.titled(f"ray::ServeReplica:{self.config.production.name}:Router"))

    def kill_controller(self) -> bool:
        """SIGKILL Serve's controller, which Ray restarts; return whether there was one."""
        return _kill(self.titled("ray::ServeController"))

    def kill_engine(self, version: int) -> bool:
        """SIGKILL the engine of a version; return whether there was one."""
        replica = f"ServeReplica:{app_name(self.config.production.name, version)}:"
        return _kill(
            [
                pid
                for pid in self._engines()
                if any(replica in procfs.command_line(above) for above in procfs.ancestors(pid))
            ]
        )

    def trial_engines(self) -> list[int]:
        """Return the engines' processes that carry the mark of a trial; guards are none."""
        return [pid for pid in self._engines() if TRIAL_VARIABLE in procfs.marks(pid)]

    def _engines(self) -> list[int]:
        """Return what carries the mark of a boot; its guard does, too, and is left out."""
        return [
            pid
            for pid in tagged(self.cluster.tag)
            if BOOT_ID_VARIABLE in procfs.marks(pid)
            and "engine.guard" not in procfs.command_line(pid)
        ]


def send(pids: Sequence[int], number: int) -> bool:
    """Send a signal to processes, gone ones left out; return whether any was named."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return bool(pids)


def _kill(pids: Sequence[int]) -> bool:
    return send(pids, signal.SIGKILL)


@contextlib.contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """Set one variable of this process for a while."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
