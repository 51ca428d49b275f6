"""The tracker and registry contracts through a real `mlflow server`, and its death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import mlflow_store
import pytest
from mlflow_store import open_store
from records import block
from tracker_contract import RegistryContract, Store, TrackerContract

from infra.local.cluster import allowed_hosts
from orchestrator.adapters.mlflow_tracker import MlflowTracker
from orchestrator.adapters.tracking_uri import check
from orchestrator.errors import ConfigError, TransientError
from serve_apps.engine.sockets import free_port

START_TIMEOUT_S = 150.0
"""A server imports MLflow in two processes and makes its tables: 45 s on two busy cores."""

pytestmark = [pytest.mark.integration, pytest.mark.timeout(START_TIMEOUT_S + 60)]


PROJECT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Server:
    """A running `mlflow server`."""

    uri: str
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """End the server and the workers that it started, all in its own process group."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)


def start_server(folder: Path) -> Server:
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/ml.db"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    command += ["--allowed-hosts", allowed_hosts(port)]
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=os.environ | quiet,
            start_new_session=True,
        )
    server = Server(f"http://127.0.0.1:{port}", process)
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            check(server.uri, timeout_s=1.0)
        except ConfigError:
            time.sleep(0.2)
        else:
            return server
    server.kill()
    pytest.fail((folder / "server.log").read_text(encoding="utf-8")[-2000:])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start_server(tmp_path_factory.mktemp("server"))
    yield server
    server.kill()


@pytest.fixture
def store(server: Server, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return a store with an experiment of its own on the shared server."""
    name = f"contract-{uuid.uuid4().hex}"
    monkeypatch.setattr(mlflow_store, "EXPERIMENT", name)
    return open_store(server.uri, experiment=name)


class TestServedTracker(TrackerContract):
    pass


class TestServedRegistry(RegistryContract):
    pass


def test_run_url_is_that_of_the_web_page(server: Server, store: Store) -> None:
    study = store.tracker.open_study("s1", "s", {})

    url = store.tracker.run_url(study)
    assert url.startswith(f"{server.uri}/#/experiments/")
    assert url.endswith(f"/runs/{study}")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("127.0.0.1", 200), ("localhost", 200), ("evil.example", 403), ("10.evil.example", 403)),
        *(("10.0.0.10", 403), ("127.0.0.1.evil.example", 403), ("", 403)),
    ],
)
def test_server_of_the_demo_answers_to_its_own_names_only(
    server: Server, host: str, status: int
) -> None:
    port = int(server.uri.rpartition(":")[2])
    for name in (host, f"{host}:{port}" if host else host):
        connection = HTTPConnection("127.0.0.1", port, timeout=20)
        connection.putrequest(
            "GET", "/api/2.0/mlflow/experiments/get?experiment_id=0", skip_host=True
        )
        connection.putheader("Host", name)
        connection.endheaders()
        assert connection.getresponse().status == status
        connection.close()


def test_no_list_of_hosts_has_a_star() -> None:
    assert "*" not in allowed_hosts(5000)
    for path in sorted(PROJECT.rglob("*.md")) + sorted((PROJECT / "infra").rglob("*.py")):
        for line in path.read_text(encoding="utf-8").splitlines():
            assert "*" not in line.partition("--allowed-hosts")[2], path


def test_server_that_dies_costs_seconds_and_a_transient_error(server: Server) -> None:
    # The last test of the file: it ends the server that all of them share.
    tracker = MlflowTracker(server.uri, experiment="death")
    trial = tracker.open_trial(tracker.open_study("s1", "s", {}), "t1", {})
    server.kill()

    started = time.monotonic()
    with pytest.raises(TransientError, match="MLflow"):
        tracker.log_block(trial, block(0))
    assert time.monotonic() - started < 20
    # The next trial makes its tracker all the same, and boots.
    late = MlflowTracker(server.uri, experiment="death")
    with pytest.raises(TransientError, match="MLflow"):
        late.open_trial("0" * 32, "t2", {})
    with pytest.raises(ConfigError, match="does not answer"):
        check(server.uri)
