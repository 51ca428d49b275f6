"""A Ray of one node with the production applications: router, and stand-in engines behind it."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from infra.local.processes import TAG, end_members, reap, start_server, tail
from serve_apps.apps import engine_entry, router_entry
from serve_apps.engine.sockets import free_port
from serve_apps.engine.spec import FAKE_LAUNCHER, EngineSpec

PROJECT = Path(__file__).resolve().parents[3]
MODEL = "served"
_HOST = "127.0.0.2"
"""Ray replaces 127.0.0.1 by the machine's outside address."""
_START_TIMEOUT_S = 180.0
_CALL_TIMEOUT_S = 60.0
_LISTENS = re.compile(r"Starting vLLM server on (http://\S+)")
_ROUTER = re.compile(r"server SERVE_REPLICA_bench-Router-\S+ (\S+) check")

_T = TypeVar("_T")


HAPROXY, PROXY = "HAProxy", "Serve's proxy"


class BenchError(Exception):
    """The cluster did not come up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """The ways to each engine."""

    direct: Mapping[str, str]
    """Address of the engine's own HTTP by application."""
    routed: Mapping[str, str]
    """Addresses of the route by what stands first on the way: ``PROXY``, and more with HAProxy."""


@contextmanager
def serving(
    folder: Path, engines: Mapping[str, Mapping[str, str]], *, with_haproxy: bool = False
) -> Iterator[Ways]:
    """Run router and engines until the block ends.

    Args:
        folder: For logs and Ray's session; its path must be short, for unix sockets.
        engines: Knobs of the stand-in by application; the first one gets all that is not pinned.
        with_haproxy: Whether HAProxy is in front, with Serve's own proxy beside it.

    Raises:
        BenchError: Something did not come up; the text holds the end of its log.
    """
    tag, token = uuid.uuid4().hex, uuid.uuid4().hex
    dashboard, http_port, proxy_port = free_port(), free_port(), free_port()
    log = folder / "ray.log"
    env = {
        **{name: text for name, text in os.environ.items() if not name.startswith("RAY_")},
        TAG: tag,
        # This checkout's, wherever the installed one lies.
        "PYTHONPATH": str(PROJECT),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "serve_apps.router.proxy:middlewares",
        **(_haproxy_variables(folder, proxy_port) if with_haproxy else {}),
    }
    server = start_server("ray", _ray_command(dashboard, folder), env=env, log=log, cwd=folder)
    api = _Api(f"http://127.0.0.1:{dashboard}", token)
    front, proxy = (f"http://127.0.0.1:{port}" for port in (http_port, proxy_port))
    try:
        _until(api.answers, lambda: tail(log))
        api.put(http_port, _applications(folder, engines))
        _until(api.all_running, api.messages)
        routed = {PROXY: front}
        if with_haproxy:
            _until(lambda: _router_port(folder) is not None, lambda: "HAProxy knows no router")
            routed = {
                "router's own port": f"http://{_router_port(folder)}",
                HAPROXY: front,
                PROXY: proxy,
            }
        yield Ways(
            direct={name: _address(folder, name) for name in engines},
            routed=routed,
        )
    finally:
        left = end_members(tag)
        reap([server])
        if left:
            sys.stderr.write(f"processes that could not be ended: {left}\n")


def _haproxy_variables(folder: Path, proxy_port: int) -> dict[str, str]:
    launcher, state = folder / "specpilot-haproxy", folder / "h"
    launcher.write_text(  # the installed one may be another checkout's
        f"#!{sys.executable}\nfrom serve_apps.router.haproxy import main\n\nmain()\n"
    )
    launcher.chmod(0o700)
    first = free_port()
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(launcher),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(state / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(state / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(state),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(state / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(state / "metrics.sock"),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port()),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port()),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(proxy_port),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(first),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(first + 100),
    }


def _router_port(folder: Path) -> str | None:
    """Return host and port of the router's own HTTP, as HAProxy knows them."""
    for file in (folder / "h").glob("*/haproxy.cfg"):
        found = _ROUTER.findall(file.read_text(encoding="utf-8"))
        if found:
            return str(found[-1])
    return None


def _ray_command(dashboard: int, folder: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        *("--node-ip-address", _HOST, "--port", str(free_port()), "--temp-dir", str(folder / "r")),
        *("--dashboard-host", "127.0.0.1", "--dashboard-port", str(dashboard)),
        *("--dashboard-agent-listen-port", str(free_port())),
        *("--num-cpus", "2", "--num-gpus", "0", "--object-store-memory", "100000000"),
        *("--resources", json.dumps({"GB10": 4, "trial_slot": 4})),
    ]


def _applications(folder: Path, engines: Mapping[str, Mapping[str, str]]) -> list[dict[str, Any]]:
    first = next(iter(engines))
    specs = {
        name: EngineSpec(
            model="/models/target",
            served_model_name=MODEL,
            log_path=str(folder / f"{name}.log"),
            launcher=FAKE_LAUNCHER,
            args={"max_model_len": 2048, "max_num_seqs": 64},
            env={f"SPECPILOT_FAKE_{knob}": value for knob, value in knobs.items()},
            boot_timeout_s=60,
        ).to_dict()
        for name, knobs in engines.items()
    }
    weights = {name: float(name == first) for name in engines}
    entries = [engine_entry(name, spec) for name, spec in specs.items()]
    return [*entries, router_entry("bench", weights)]


@dataclass(frozen=True, slots=True)
class _Api:
    """Ray's Serve API."""

    url: str
    token: str

    def answers(self) -> bool:
        try:
            self._call("GET", "/api/version")
        except OSError:
            return False
        return True

    def put(self, http_port: int, applications: list[dict[str, Any]]) -> None:
        body = {
            "proxy_location": "HeadOnly",
            "http_options": {"host": "127.0.0.1", "port": http_port},
            "applications": applications,
        }
        self._call("PUT", "/api/serve/applications/", body)

    def applications(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._call("GET", "/api/serve/applications/"))
        return dict(found["applications"])

    def all_running(self) -> bool:
        try:
            found = self.applications()
        except OSError:  # busy with what it starts
            return False
        return bool(found) and all(app["status"] == "RUNNING" for app in found.values())

    def messages(self) -> str:
        return "; ".join(
            f"{name} {app['status']}: {app.get('message')}"
            for name, app in self.applications().items()
        )

    def _call(self, method: str, path: str, body: object = None) -> bytes:
        request = urllib.request.Request(
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={
                "Authorization": f"Bearer {self.token}",
                "Content-Type": "application/json",
            },
        )
        with urllib.request.urlopen(request, timeout=_CALL_TIMEOUT_S) as answer:
            return bytes(answer.read())


def _until(is_so: Callable[[], bool], say: Callable[[], str]) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not is_so():
        if time.monotonic() > deadline:
            raise BenchError(f"not up after {_START_TIMEOUT_S:g} s: {say()}")
        time.sleep(0.2)


def _address(folder: Path, name: str) -> str:
    found = _LISTENS.findall((folder / f"{name}.log").read_text(errors="replace"))
    if not found:
        raise BenchError(f"{name} does not say where it listens")
    return str(found[-1])
