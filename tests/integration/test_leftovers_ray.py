"""What trials leave is ended and removed through a local Ray; production stays."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray

from orchestrator.core.types import Arm
from serve_apps.engine import procfs, record
from serve_apps.engine.sockets import free_port
from serve_apps.engine.spec import (
    BOOT_ID_VARIABLE,
    BOOTS_DIR_VARIABLE,
    FAKE_LAUNCHER,
    SUPERVISOR_VARIABLE,
    TRIAL_VARIABLE,
    EngineSpec,
    trial_mark,
)

with warnings.catch_warnings():  # Serve's own use of pydantic is deprecated
    warnings.simplefilter("ignore")
    from ray import serve

    from orchestrator import cluster
    from orchestrator.adapters.serve_engine import EnginePlacement, ServeEngine
    from orchestrator.adapters.serve_reaper import Lease, leases, start_reaper
    from serve_apps.engine.deployment import EngineOptions, trial_app

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(240),
    # Ray's own sockets and deprecated calls are not ours to judge.
    pytest.mark.filterwarnings("ignore"),
]

HOST = "127.0.0.2"  # Ray replaces 127.0.0.1 by the outside address
STUDY = "demo-1a2b3c4d-20261129-101500"
GONE = "4194303:1"
BASELINE = Arm(engine_build="0.32.0", num_speculative_tokens=0)


def until(what: Callable[[], object], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture(scope="module")
def state() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="sl"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECPILOT_STATE_DIR", str(folder))
        yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def address(state: Path) -> Iterator[str]:
    """Start a raylet with two boards; end its process group afterwards."""
    temp = Path(tempfile.mkdtemp(prefix="rl"))  # short: unix sockets lie below it
    gcs, dashboard = free_port(), free_port()
    env = {
        **os.environ,
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "SPECPILOT_STATE_DIR": str(state),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        *("--node-ip-address", HOST, "--port", str(gcs), "--temp-dir", str(temp)),
        *("--dashboard-host", "127.0.0.1", "--dashboard-port", str(dashboard)),
        *("--dashboard-agent-listen-port", str(free_port())),
        *("--num-cpus", "2", "--num-gpus", "0", "--object-store-memory", "100000000"),
        *("--resources", json.dumps({"GB10": 2, "trial_slot": 2})),
    ]
    with (temp / "ray.log").open("wb") as log:
        head = subprocess.Popen(
            command, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    found = f"{HOST}:{gcs}"
    try:
        until(lambda: answers(dashboard))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_ADDRESS", found)
            ray.init(address=found, log_to_driver=False, logging_level=logging.ERROR)
            serve.start(
                proxy_location="HeadOnly",
                http_options={"host": "127.0.0.1", "port": free_port()},
            )
            ray.get(start_reaper("trial-").__ray_ready__.remote())
            yield found
    finally:
        ray.shutdown()
        left = procfs.end(head.pid, None, grace_s=3)
        head.wait(10)
        shutil.rmtree(temp, ignore_errors=True)
        assert not left


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/version", timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False


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


def deploy(name: str, what: EngineSpec) -> None:
    options = EngineOptions(node_id=ray.get_runtime_context().get_node_id())
    target = serve.RunTarget(
        target=trial_app(what.to_dict(), options), name=name, route_prefix=None
    )
    serve.run_many([target], wait_for_applications_running=False)
    until(lambda: serve.status().applications[name].status == "RUNNING")


def guard_of(boot: record.BootRecord) -> int:
    """Return the boot's first process, which leads its group."""
    members = procfs.members(None, f"{BOOT_ID_VARIABLE}={boot.boot_id}")
    return min(pid for pid in members if os.getpgid(pid) == pid)


@pytest.fixture
def orphan(state: Path) -> Iterator[subprocess.Popen[bytes]]:
    """An engine core of a boot whose replica and guard were killed."""
    marks = {
        BOOT_ID_VARIABLE: "b0",
        TRIAL_VARIABLE: f"{STUDY}/trial-dead",
        SUPERVISOR_VARIABLE: GONE,
        BOOTS_DIR_VARIABLE: str(state / "boots"),
    }
    process = subprocess.Popen(["/bin/sleep", "600"], env={**os.environ, **marks})
    yield process
    process.kill()
    process.wait()


def test_trial_whose_guard_was_killed_leaves_nothing_after_its_stop(
    address: str, state: Path
) -> None:
    del address
    name = "trial-guardless"
    trial = f"{STUDY}/{name}"
    engine = ServeEngine(
        EnginePlacement(
            app_name=name,
            node_id=ray.get_runtime_context().get_node_id(),
            engine_token="GB10",
            num_gpus=0,
            max_streams=4,
            boot_timeout_s=60,
            trial=trial,
            boots_dir=state / "boots",
        ),
        spec_for=lambda _arm: spec(state, None),
        lease=Lease(name),
    )
    engine.start(BASELINE, lambda _text: None)
    (file,) = record.files(state / "boots")
    boot = record.read(file)
    assert boot is not None
    assert boot.trial == trial
    # The guard goes first, and with its engine: nobody is there to clean up after them.
    os.kill(guard_of(boot), signal.SIGKILL)

    engine.stop()

    assert name not in serve.status().applications
    assert procfs.members(None, trial_mark(trial)) == []
    assert list((state / "boots").iterdir()) == []
    assert not Path(boot.folder).exists()
    assert name not in leases()


def test_sweep_ends_trials_and_dead_boots_and_leaves_production(
    address: str, state: Path, orphan: subprocess.Popen[bytes]
) -> None:
    del address
    deploy("trial-left", spec(state, "trial-left"))
    deploy("specpilot-v1", spec(state, None))

    said = cluster.sweep_trials()

    assert said[0] == "trial-left is gone"
    assert any(f"boot b0 of {STUDY}/trial-dead" in text and "is gone" in text for text in said)
    assert orphan.wait(5) < 0
    assert procfs.members(None, trial_mark(f"{STUDY}/trial-left")) == []
    assert serve.status().applications["specpilot-v1"].status == "RUNNING"
    assert cluster.sweep_trials() == []
    serve.delete("specpilot-v1")


def clean(*options: str) -> str:
    for name in ("trial-dying", "trial-lost"):  # a lease is long enough for one look
        ray.get(start_reaper("trial-").renew.remote(name))
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", "clean", *options],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_clean_leaves_a_study_under_way_alone_and_removes_it_when_it_is_dead(
    address: str, state: Path, orphan: subprocess.Popen[bytes]
) -> None:
    del address
    deploy("trial-dying", spec(state, "trial-dying"))
    with cluster.claimed():
        during = clean("--yes")

    assert "Serve application trial-dying (Ray) [a study or promotion is under way]" in during
    assert "trial-dying" in serve.status().applications
    assert orphan.poll() is None

    shown = clean()

    removed = shown.partition("to be removed:\n")[2]
    assert removed.startswith("  Serve application trial-dying (Ray)\n")
    assert "  lease trial-lost (Ray)\n" in removed
    assert f"{orphan.pid}: /bin/sleep 600" in shown
    assert orphan.poll() is None

    clean("--yes")

    assert "trial-dying" not in serve.status().applications
    assert "trial-lost" not in leases()
    assert orphan.wait(5) < 0
