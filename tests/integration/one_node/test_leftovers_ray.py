"""What trials leave is ended and removed through a local Ray; production stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from one_node.conftest import OneNode
from one_node.trials import BASELINE, STUDY, deploy, engine_of, reaper_on, spec
from orchestrator.errors import ConfigError
from serve_apps.engine import procfs, record
from serve_apps.engine.spec import (
    BOOT_ID_VARIABLE,
    BOOTS_DIR_VARIABLE,
    SUPERVISOR_VARIABLE,
    TRIAL_VARIABLE,
    trial_mark,
)

with warnings.catch_warnings():  # Serve's own use of pydantic is deprecated
    warnings.simplefilter("ignore")
    from ray import serve

    from orchestrator import cluster
    from orchestrator.adapters.serve_reaper import leases, start_reaper

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(240),
    # Ray's own sockets and deprecated calls are not ours to judge.
    pytest.mark.filterwarnings("ignore"),
]

GONE = "4194303:1"


@pytest.fixture(scope="module")
def state(one_node: OneNode) -> Iterator[Path]:
    """Return the state folder of a Ray whose reaper looks after trials; also ``clean`` joins it."""
    with reaper_on(one_node):
        yield one_node.state


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


def test_trial_whose_guard_was_killed_leaves_nothing_after_its_stop(state: Path) -> None:
    name = "trial-guardless"
    trial = f"{STUDY}/{name}"
    engine = engine_of(state, name)
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
    state: Path, orphan: subprocess.Popen[bytes]
) -> None:
    deploy(trial_left=spec(state, "trial-left"), specpilot_v1=spec(state, None))

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
        ray.get(start_reaper("trial-").renew.remote(name, "01000000"))
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
    state: Path, orphan: subprocess.Popen[bytes]
) -> None:
    deploy(trial_dying=spec(state, "trial-dying"))
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


def claim_pid() -> int | None:
    """Return the process of this test's Ray that keeps the claim's name, if there is one."""
    for pid in procfs.pids():
        title = procfs.command_line(pid)
        if title.startswith("ray::_Claim") and os.getpid() in procfs.ancestors(pid):
            return pid
    return None


def test_claim_outlives_the_process_that_keeps_its_name(state: Path) -> None:
    """A SIGKILL of it, by the kernel for want of memory, let a second study sweep the first's."""
    with cluster.claimed():
        first = claim_pid()
        assert first is not None
        os.kill(first, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while claim_pid() in (None, first):
            assert cluster.is_claimed()
            assert time.monotonic() < deadline
            time.sleep(0.05)

        with pytest.raises(ConfigError, match="another study or promotion is under way"):
            cluster.claimed().__enter__()

    assert not cluster.is_claimed()
    with cluster.claimed():
        pass
