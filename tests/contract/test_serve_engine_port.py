"""The engine's port over its deployment, on the stand-in and without a cluster.

What Ray would carry between the two, the handle's calls, is carried in the process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.core.generated import common_pb2

from orchestrator.adapters.engine_evidence import EngineLogs
from orchestrator.adapters.serve_engine import EnginePlacement, ServeEngine, oom_words
from orchestrator.adapters.serve_reaper import Lease
from orchestrator.core.failures import FailureKind
from serve_apps.engine import procfs
from serve_apps.engine.deployment import MIN_ONGOING_REQUESTS, Engine
from serve_apps.engine.spec import FAKE_LAUNCHER, EngineSpec, boot_mark

APP = "trial-a"


class Reply:
    """A call's answer."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self._ask = ask

    def result(self, timeout_s: float) -> Any:
        del timeout_s
        return self._ask()


class Method:
    """A method of the handle."""

    def __init__(self, runner: asyncio.Runner, method: Callable[..., Any]) -> None:
        self._runner = runner
        self._method = method

    def remote(self, *args: object) -> Reply:
        def ask() -> Any:
            found = self._method(*args)
            return self._runner.run(found) if asyncio.iscoroutine(found) else found

        return Reply(ask)


class Handle:
    """A deployment's handle whose replica lives in this process."""

    def __init__(self, runner: asyncio.Runner, replica: Engine) -> None:
        self._runner = runner
        self._replica = replica

    def __getattr__(self, name: str) -> Method:
        return Method(self._runner, getattr(self._replica, name))


class Up:
    """An engine that is up behind its port."""

    def __init__(self, logs: Path, **knobs: str) -> None:
        spec = EngineSpec(
            model="/models/target",
            served_model_name="served",
            log_path=str(logs / f"{APP}-{{boot_id}}.log"),
            launcher=FAKE_LAUNCHER,
            env={f"SPECPILOT_FAKE_{name}": value for name, value in knobs.items()},
            boot_timeout_s=60.0,
            stop_timeout_s=1.0,
            trial=f"study/{APP}",
            boots_dir=str(logs / "boots"),
        )
        placement = EnginePlacement(
            app_name=APP,
            node_id="node",
            engine_token="GB10",
            num_gpus=0.0,
            max_streams=1,
            boot_timeout_s=60.0,
            trial=f"study/{APP}",
            boots_dir=logs / "boots",
        )
        self.runner = asyncio.Runner()
        self.replica = Engine.__new__(Engine)
        self.runner.run(self.replica.__init__(spec.to_dict(), MIN_ONGOING_REQUESTS))  # type: ignore[misc,func-returns-value]  # as Serve
        self.port = ServeEngine(placement, lambda _arm: spec.to_dict(), Lease(APP))
        self.port._handle = Handle(self.runner, self.replica)  # type: ignore[assignment]
        self.port._logs = EngineLogs(spec.log_path)
        self.port._boot_id = self.boot_id = self.replica.boot_id()

    def ask(self) -> None:
        """Ask for one completion, whatever becomes of it."""
        self.runner.run(self.replica.probe(1.0))

    def await_end(self) -> None:
        while self.replica._process.is_alive():
            self.runner.run(asyncio.sleep(0.05))

    def down(self) -> None:
        self.runner.run(self.replica._process.close())
        self.runner.close()


@pytest.fixture
def boot(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    found: list[Up] = []

    def make(**knobs: str) -> Up:
        found.append(Up(tmp_path, **knobs))
        return found[-1]

    yield make
    for up in found:
        up.down()


def test_engine_that_answers_is_neither_dead_nor_hanging(boot: Callable[..., Up]) -> None:
    up = boot()

    assert up.port.facts().boot_id == up.boot_id
    assert (up.port.probe(), up.port.post_mortem()) == (None, None)
    assert "Starting vLLM server" in up.port.log_tail()


def test_engine_that_died_of_memory_under_load_says_so_and_leaves_its_log(
    boot: Callable[..., Up],
) -> None:
    up = boot(OOM_AT_REQUEST="2")
    up.ask()
    up.await_end()

    failure = up.port.post_mortem()

    assert failure is not None
    assert failure.kind is FailureKind.OOM_UNDER_LOAD
    assert failure.cause.startswith("torch.OutOfMemoryError")
    assert "torch.OutOfMemoryError" in up.port.log_tail()
    assert up.port.probe() is not None


def test_log_and_its_evidence_outlive_the_replica(boot: Callable[..., Up]) -> None:
    up = boot(OOM_AT_REQUEST="2")
    up.ask()
    up.await_end()
    up.port._handle = None

    failure = up.port.post_mortem()

    assert failure is not None
    assert failure.kind is FailureKind.OOM_UNDER_LOAD
    assert "torch.OutOfMemoryError" in up.port.log_tail()


def test_engine_that_hangs_fails_its_probe_and_is_not_dead(
    boot: Callable[..., Up], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.adapters.serve_engine.PROBE_TIMEOUT_S", 0.5)
    up = boot(HANG_AFTER_REQUESTS="1")

    assert "no completion came within" in (up.port.probe() or "")
    assert up.port.post_mortem() is None


def test_kill_ends_all_of_the_boot_at_once_and_from_another_thread(
    boot: Callable[..., Up],
) -> None:
    up = boot(STUBBORN_CHILD="1")
    mark = boot_mark(up.boot_id)
    assert procfs.members(None, mark)

    thread = threading.Thread(target=up.port.kill)
    thread.start()
    thread.join(20)

    assert not procfs.members(None, mark)


def test_death_of_an_actor_by_rays_memory_monitor_is_known_by_its_cause() -> None:
    words = "1 worker(s) were killed due to the node running low on memory."
    oom = common_pb2.ActorDeathCause(oom_context=common_pb2.OomContext(error_message=words))
    other = common_pb2.ActorDeathCause(
        actor_died_error_context=common_pb2.ActorDiedErrorContext(error_message=words)
    )

    assert oom_words(oom) == words
    assert oom_words(other) is None
    assert oom_words(common_pb2.ActorDeathCause()) is None
    assert oom_words(None) is None
