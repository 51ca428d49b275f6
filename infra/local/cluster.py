"""Two raylets with one GB10 token each, Ray Serve and an MLflow server, all on loopback."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from infra.local.processes import (
    TAG,
    Server,
    StartError,
    StateDirError,
    end_members,
    kill_all_but,
    members,
    reap,
    require_free,
    start_server,
    tail,
)
from serve_apps.engine.sockets import free_port

NODE_ADDRESSES = ("127.0.0.2", "127.0.0.3")
"""Ray replaces 127.0.0.1 by the machine's outside address; other loopback addresses it keeps."""
OBJECT_STORE_BYTES = 100_000_000
"""Nothing large goes through the object store; Ray's default would take 30 % of the memory."""
RAY_START_TIMEOUT_S = 120.0
MLFLOW_START_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Ports that a person sees; 0 picks a free one."""

    http: int = 0
    """Production route."""
    mlflow: int = 0
    dashboard: int = 0
    """Ray's dashboard, job and Serve API."""


def allowed_hosts(port: int, names: Sequence[str] = ("127.0.0.1", "localhost")) -> str:
    """Return what ``mlflow server --allowed-hosts`` takes: these names, with and without the port.

    MLflow's own list has ``10.*``, and so ``10.example.org``: a web page under such a name could
    read and write the registry from a browser on this machine.
    """
    return ",".join(host for name in names for host in (name, f"{name}:{port}"))


@dataclass(slots=True)
class LocalCluster:
    """A running local cluster; ``stop`` ends all that it started and nothing else."""

    state_dir: Path
    ports: Ports
    num_nodes: int = 2
    addresses: Sequence[str] = NODE_ADDRESSES
    """Of the nodes, the head's first."""
    prefixes: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """Words before a node's command, by its index: those that start it in a network of its own."""
    on_step: Callable[[str], None] = lambda _text: None
    tag: str = field(default_factory=lambda: uuid.uuid4().hex)
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Ray's own ports listen on all interfaces; without the token they refuse everybody."""
    temp_dir: Path | None = None
    servers: list[Server] = field(default_factory=list)
    gcs_address: str = ""
    _lock: int | None = None
    """Descriptor of the state folder's lock, which the kernel frees whatever ends this process."""

    @property
    def mlflow_uri(self) -> str:
        """Address of the MLflow server."""
        return f"http://{self._mlflow_host}:{self.ports.mlflow}"

    @property
    def _mlflow_host(self) -> str:
        # A node in a network of its own does not reach this machine's loopback.
        return self.addresses[0] if self.prefixes else "127.0.0.1"

    @property
    def _mlflow_names(self) -> Sequence[str]:
        return sorted({"localhost", "127.0.0.1", self._mlflow_host})

    @property
    def dashboard_url(self) -> str:
        """Address of Ray's job and Serve API."""
        return f"http://127.0.0.1:{self.ports.dashboard}"

    @property
    def production_url(self) -> str:
        """Address of the production route."""
        return f"http://127.0.0.1:{self.ports.http}"

    def start(self) -> None:
        """Start MLflow, the raylets and Serve; on failure end what was started.

        Raises:
            PortInUseError: A port that was asked for is taken; nothing was started.
            StateDirError: The state folder cannot be used; nothing was started.
            StartError: A server did not come up; the text holds the end of its log.
        """
        self._lock_state_dir()
        try:
            self._clean_dead_predecessor()
            self._choose_ports()
        except BaseException:
            self._unlock_state_dir()
            raise
        try:
            # Unix socket paths below it must stay under 107 bytes, so it cannot lie in the project.
            self.temp_dir = Path(tempfile.mkdtemp(prefix="sp-"))
            self._record()
            self._start_mlflow()
            self._start_ray()
            self._start_serve()
            self._wait_mlflow()
            self._write_shell_settings()
        except OSError as error:
            self.stop()
            raise self._unusable(error) from error
        except BaseException:
            self.stop()
            raise

    def stop(self) -> list[str]:
        """End everything of this cluster; return what could not be ended, "pid: command line"."""
        if self._lock is None:
            return []
        left = end_members(self.tag)
        reap(self.servers)
        self.servers.clear()
        if self.temp_dir is not None:
            shutil.rmtree(self.temp_dir, ignore_errors=True)
        self._state_file.unlink(missing_ok=True)
        self.shell_settings.unlink(missing_ok=True)
        self._unlock_state_dir()
        return left

    def environment(self) -> dict[str, str]:
        """Return the environment of every process of the cluster."""
        env = dict(os.environ)
        for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
            env.pop(name, None)
        env.pop("RAY_AUTH_TOKEN_PATH", None)
        env.update(
            {
                TAG: self.tag,
                "RAY_AUTH_MODE": "token",
                "RAY_AUTH_TOKEN": self.token,
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', '')}",
                "PYTHONUNBUFFERED": "1",
                # A job started by uv would make every worker rebuild its environment.
                "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
                # Unified memory is nearly full by design; Ray must not kill engines for it.
                "RAY_memory_monitor_refresh_ms": "0",
                "RAY_USAGE_STATS_ENABLED": "0",
                # Ray runs its workers, and so the engines below them, at niceness 15.
                "RAY_worker_niceness": "0",
                "RAY_SERVE_ENABLE_HA_PROXY": "0",
                "MLFLOW_TRACKING_URI": self.mlflow_uri,
                "MLFLOW_DISABLE_TELEMETRY": "true",
                # Seven more processes, for scorers and prompts that nobody here asks for.
                "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
                "SPECPILOT_STATE_DIR": str(self.state_dir),
            }
        )
        return env

    def auth_headers(self) -> dict[str, str]:
        """Return the headers that Ray's dashboard asks for."""
        return {"Authorization": f"Bearer {self.token}"}

    @property
    def shell_settings(self) -> Path:
        """File that a shell reads to reach this cluster with the command line."""
        return self.state_dir / "env"

    def _write_shell_settings(self) -> None:
        env = self.environment() | {"RAY_ADDRESS": self.gcs_address}
        names = (
            *("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"),
            *("MLFLOW_TRACKING_URI", "SPECPILOT_STATE_DIR"),
        )
        self.shell_settings.touch(mode=0o600)
        self.shell_settings.write_text(
            "".join(f"export {name}={shlex.quote(env[name])}\n" for name in names)
        )

    @property
    def _state_file(self) -> Path:
        return self.state_dir / "local.json"

    def _lock_state_dir(self) -> None:
        """Hold the state folder: two clusters in it would lose track of each other's processes."""
        try:
            self.state_dir.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.state_dir / "local.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise StateDirError(
                f"{self.state_dir}: another local cluster uses this folder; end that one, or name "
                "another folder with SPECPILOT_STATE_DIR"
            ) from error
        self._lock = lock

    def _unlock_state_dir(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _unusable(self, error: OSError) -> StateDirError:
        return StateDirError(
            f"{self.state_dir}: files of the cluster cannot be written ({error}); make room, or "
            "name another folder with SPECPILOT_STATE_DIR"
        )

    def _record(self) -> None:
        self._state_file.write_text(json.dumps({"tag": self.tag, "temp_dir": str(self.temp_dir)}))

    def _clean_dead_predecessor(self) -> None:
        try:
            state = json.loads(self._state_file.read_text())
            tag, temp_dir = str(state["tag"]), str(state["temp_dir"])
        except (OSError, ValueError, KeyError, TypeError):
            return
        if members(tag):
            self.on_step("ending what an interrupted run left behind")
            end_members(tag)
        if Path(temp_dir).name.startswith("sp-"):
            shutil.rmtree(temp_dir, ignore_errors=True)
        self._state_file.unlink(missing_ok=True)

    def _choose_ports(self) -> None:
        for port, key in (
            (self.ports.http, "HTTP_PORT"),
            (self.ports.mlflow, "MLFLOW_PORT"),
            (self.ports.dashboard, "DASHBOARD_PORT"),
        ):
            if port:
                require_free("127.0.0.1", port, key)
        self.ports = Ports(
            http=self.ports.http or free_port(),
            mlflow=self.ports.mlflow or free_port(),
            dashboard=self.ports.dashboard or free_port(),
        )

    def _start(self, name: str, command: list[str]) -> Server:
        server = start_server(
            name,
            command,
            env=self.environment(),
            log=self.state_dir / "logs" / f"{name}.log",
            cwd=self.state_dir,
        )
        self.servers.append(server)
        return server

    def _start_mlflow(self) -> None:
        self.on_step(f"MLflow server on {self.mlflow_uri}")
        self._start(
            "mlflow",
            [
                sys.executable, "-m", "mlflow", "server",
                "--host", self._mlflow_host, "--port", str(self.ports.mlflow), "--workers", "1",
                "--backend-store-uri", f"sqlite:///{self.state_dir / 'mlflow.db'}",
                "--artifacts-destination", str(self.state_dir / "artifacts"),
                "--allowed-hosts", allowed_hosts(self.ports.mlflow, self._mlflow_names),
            ],
        )  # fmt: skip

    def _wait_mlflow(self) -> None:
        self._wait_http(f"{self.mlflow_uri}/health", "mlflow", MLFLOW_START_TIMEOUT_S)

    def _start_ray(self) -> None:
        port = free_port(self.addresses[0])
        self.gcs_address = f"{self.addresses[0]}:{port}"
        for index in range(self.num_nodes):
            self.start_node(index)
            if index == 0:
                self._wait_http(f"{self.dashboard_url}/api/version", "ray-1", RAY_START_TIMEOUT_S)

    def start_node(self, index: int) -> None:
        """Start one Ray node, or start it again; the head is 0 and comes first."""
        self.on_step(
            f"Ray node {index + 1} of {self.num_nodes}: one GB10 token at {self.addresses[index]}"
        )
        command = [*self.prefixes.get(index, ()), *self._ray_command(index)]
        self._start(f"ray-{index + 1}", command)

    def restart_ray(self) -> None:
        """Kill all of Ray at once, as a head that loses power, and start it anew without a memory.

        MLflow goes on.

        Raises:
            StartError: Ray did not end, or Ray or Serve did not come up again.
        """
        mlflow = self.server("mlflow")
        if left := kill_all_but(self.tag, mlflow.process.pid):
            raise StartError(f"processes of Ray that could not be ended: {left}")
        reap([server for server in self.servers if server is not mlflow])
        self.servers[:] = [mlflow]
        self._start_ray()
        self._start_serve()
        self._write_shell_settings()

    def start_mlflow(self) -> None:
        """Start the tracking server, or start it again on what it has stored, and wait for it."""
        self._start_mlflow()
        self._wait_mlflow()

    def server(self, name: str) -> Server:
        """Return the server of this name that was started last."""
        return next(item for item in reversed(self.servers) if item.name == name)

    def _ray_command(self, index: int) -> list[str]:
        assert self.temp_dir is not None
        address, port = self.addresses[index], self.gcs_address.rpartition(":")[2]
        common = [
            sys.executable, "-m", "ray.scripts.scripts", "start", "--block",
            "--disable-usage-stats", "--node-ip-address", address, "--num-cpus", "1",
            "--num-gpus", "0", "--object-store-memory", str(OBJECT_STORE_BYTES),
            "--resources", json.dumps({"GB10": 1, "trial_slot": 1}),
            "--dashboard-agent-listen-port", str(free_port()),
            # Ray's own range for workers, 10002 to 19999, may hold a port that was asked for.
            "--min-worker-port", "0", "--max-worker-port", "0",
            # One each: a node that unpacks a job's working directory first removes what is there,
            # which would be the directory that the job runs in on the other node.
            "--temp-dir", str(self.temp_dir / f"n{index + 1}"),
        ]  # fmt: skip
        if index > 0:
            return [*common, "--address", self.gcs_address]
        return [
            *common, "--head", "--port", port, "--ray-client-server-port", str(free_port()),
            "--include-dashboard", "true", "--dashboard-host", "127.0.0.1",
            "--dashboard-port", str(self.ports.dashboard),
        ]  # fmt: skip

    def _start_serve(self) -> None:
        self.on_step(f"Ray Serve, production route on {self.production_url}")
        server = self._start(
            "serve",
            [
                sys.executable, "-m", "ray.serve.scripts", "start",
                "--address", self.gcs_address, "--http-host", "127.0.0.1",
                "--http-port", str(self.ports.http), "--proxy-location", "HeadOnly",
            ],
        )  # fmt: skip
        try:
            status = server.process.wait(timeout=RAY_START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            status = None
        if status != 0:
            raise StartError(f"Ray Serve did not start:\n{tail(server.log)}")

    def _wait_http(self, url: str, name: str, timeout_s: float) -> None:
        server = self.server(name)
        request = urllib.request.Request(url, headers=self.auth_headers())
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if not server.alive:
                raise StartError(f"{name} ended at once:\n{tail(server.log)}")
            try:
                with urllib.request.urlopen(request, timeout=2):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        raise StartError(f"{name} did not answer on {url} in {timeout_s:g} s:\n{tail(server.log)}")
