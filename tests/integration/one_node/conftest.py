"""One Ray of one node with Serve, for all tests of this folder."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import ray

from serve_apps.engine import procfs
from serve_apps.engine.sockets import free_port

with warnings.catch_warnings():  # Serve's own use of pydantic is deprecated
    warnings.simplefilter("ignore")
    from ray import serve

HOST = "127.0.0.2"  # Ray replaces 127.0.0.1 by the outside address
START_S = 60.0


@dataclass(frozen=True, slots=True)
class OneNode:
    """A local Ray with Serve, which this process has joined."""

    address: str
    dashboard: str
    http_port: int
    state: Path
    """SPECPILOT_STATE_DIR of its processes."""


@pytest.fixture(scope="package")
def one_node() -> Iterator[OneNode]:
    """Start a raylet with three boards; end its process group afterwards."""
    temp = Path(tempfile.mkdtemp(prefix="rl"))  # short: unix sockets lie below it
    gcs, dashboard, http_port = free_port(), free_port(), free_port()
    found = OneNode(f"{HOST}:{gcs}", f"http://127.0.0.1:{dashboard}", http_port, temp / "state")
    found.state.mkdir()
    env = {
        **os.environ,
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "SPECPILOT_STATE_DIR": str(found.state),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        *("--node-ip-address", HOST, "--port", str(gcs), "--temp-dir", str(temp)),
        *("--dashboard-host", "127.0.0.1", "--dashboard-port", str(dashboard)),
        *("--dashboard-agent-listen-port", str(free_port())),
        *("--num-cpus", "2", "--num-gpus", "0", "--object-store-memory", "100000000"),
        *("--resources", json.dumps({"GB10": 3, "trial_slot": 3})),
    ]
    with (temp / "ray.log").open("wb") as log:
        head = subprocess.Popen(
            command, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        _wait_for(f"{found.dashboard}/api/version")
        ray.init(address=found.address, log_to_driver=False, logging_level=logging.ERROR)
        serve.start(
            proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": http_port}
        )
        yield found
    finally:
        ray.shutdown()
        left = procfs.end(head.pid, None, grace_s=3)
        head.wait(10)
        shutil.rmtree(temp, ignore_errors=True)
        assert not left


def _wait_for(url: str) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            assert time.monotonic() < deadline
            time.sleep(0.1)
