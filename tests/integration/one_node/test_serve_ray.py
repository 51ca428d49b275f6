"""The Serve applications on a local Ray, with the stand-in engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import ray

from one_node.conftest import HOST, OneNode
from serve_apps.engine import procfs
from serve_apps.engine.door import DoorAddress
from serve_apps.engine.errors import BootFailure, boot_error_from_text
from serve_apps.engine.spec import BOOT_ID_VARIABLE, FAKE_LAUNCHER, EngineSpec

with warnings.catch_warnings():  # Serve's own use of pydantic is deprecated
    warnings.simplefilter("ignore")
    from ray import serve

    from serve_apps.apps import engine_entry, router_entry
    from serve_apps.engine.deployment import EngineOptions, trial_app
    from serve_apps.router.passage import Items, request_bytes

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(120),
    # Ray's own sockets and deprecated calls are not ours to judge.
    pytest.mark.filterwarnings("ignore"),
]

_ROUTE = "/llm"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A local Ray with Serve."""

    dashboard: str
    http_port: int

    def applications(self, put: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        """GET the Serve API, or PUT the declarative set."""
        body = None if put is None else json.dumps({"applications": put}).encode()
        request = urllib.request.Request(
            f"{self.dashboard}/api/serve/applications/",
            data=body,
            method="GET" if put is None else "PUT",
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            text = answer.read()
        return json.loads(text)["applications"] if put is None else {}

    def request(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        connection = HTTPConnection("127.0.0.1", self.http_port, timeout=30)
        payload = None if body is None else json.dumps(body)
        connection.request(method, _ROUTE + path, payload, headers or {})
        answer = connection.getresponse()
        found = answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        connection.close()
        return found


def _until(what: Callable[[], Any], *, within_s: float = 60.0) -> Any:
    deadline = time.monotonic() + within_s
    while True:
        found = what()
        if found or time.monotonic() > deadline:
            assert found
            return found
        time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster(one_node: OneNode) -> Cluster:
    return Cluster(one_node.dashboard, one_node.http_port)


@pytest.fixture(scope="module")
def make_spec(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    logs = tmp_path_factory.mktemp("engines")

    def make(**knobs: str) -> dict[str, Any]:
        return EngineSpec(
            model="/models/target",
            served_model_name="served",
            log_path=str(logs / "engine-{boot_id}.log"),
            launcher=FAKE_LAUNCHER,
            args={"max_model_len": 2048},
            env={f"SPECPILOT_FAKE_{name}": value for name, value in knobs.items()},
            boot_timeout_s=20,
            stop_timeout_s=1,
        ).to_dict()

    return make


def _deploy(name: str, spec: dict[str, Any]) -> None:
    options = EngineOptions(
        node_id=ray.get_runtime_context().get_node_id(), health_check_period_s=1.0
    )
    target = serve.RunTarget(target=trial_app(spec, options), name=name, route_prefix=None)
    serve.run_many([target], wait_for_applications_running=False)


def _bring_up(name: str, spec: dict[str, Any]) -> Any:
    _deploy(name, spec)
    return _until(lambda: _settled(name))


def _settled(name: str) -> Any:
    application = serve.status().applications[name]
    return application if application.status in ("RUNNING", "DEPLOY_FAILED") else None


def _processes(boot_id: str) -> list[int]:
    return procfs.members(None, f"{BOOT_ID_VARIABLE}={boot_id}")


def test_trial_app_boot_failure_is_told_with_its_cause(cluster: Cluster, make_spec: Any) -> None:
    status = _bring_up("trial-b", make_spec(FAIL="out_of_memory"))
    error = boot_error_from_text(status.deployments["Engine"].message)
    serve.delete("trial-b")
    assert error is not None
    assert error.kind is BootFailure.OUT_OF_MEMORY
    assert "CUDA out of memory" in error.cause


def test_trial_app_deleted_in_mid_boot_leaves_no_process(
    cluster: Cluster, make_spec: Any, tmp_path: Path
) -> None:
    spec = {**make_spec(FAIL="hang"), "log_path": str(tmp_path / "{boot_id}"), "boot_timeout_s": 90}
    _deploy("trial-e", spec)
    log = _until(lambda: next(tmp_path.iterdir(), None))
    _until(lambda: "Using V2" in log.read_text())
    assert _processes(log.name)
    serve.delete("trial-e")
    _until(lambda: not _processes(log.name), within_s=5)


def test_replica_killed_leaves_no_engine_and_restarts_as_another_boot(
    cluster: Cluster, make_spec: Any
) -> None:
    _bring_up("trial-c", make_spec())
    handle = serve.get_app_handle("trial-c")
    facts = handle.facts.remote().result()
    guard = _parent(facts["pid"])
    os.kill(_parent(guard), signal.SIGKILL)
    _until(lambda: not _processes(facts["boot_id"]), within_s=10)
    other = _until(lambda: _boot_id_or_none(handle))
    assert other != facts["boot_id"]
    serve.delete("trial-c")
    assert not _processes(other)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def _boot_id_or_none(handle: Any) -> Any:
    with contextlib.suppress(Exception):
        return handle.boot_id.remote().result(timeout_s=5)
    return None


def _completion(**fields: Any) -> dict[str, Any]:
    return {"model": "served", "prompt": "one two", "max_tokens": 8, **fields}


def _open_stream(cluster: Cluster, max_tokens: int) -> socket.socket:
    body = json.dumps(_completion(max_tokens=max_tokens, stream=True)).encode()
    stream = socket.create_connection(("127.0.0.1", cluster.http_port), timeout=30)
    head = f"POST {_ROUTE}/v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    stream.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return stream


def _read_chunks(stream: socket.socket) -> tuple[str, list[bytes]]:
    """Return the head, and the HTTP chunks as they are framed on the wire."""
    with stream.makefile("rb") as file:
        head = b"".join(iter(file.readline, b"\r\n")).decode().lower()
        chunks = []
        while size := int(file.readline(), 16):
            chunks.append(file.read(size))
            file.readline()
    return head, chunks


def _router_pids(cluster: Cluster) -> list[int]:
    replicas = cluster.applications()["production"]["deployments"]["Router"]["replicas"]
    return [replica["pid"] for replica in replicas]


def _own_pin(app: str) -> dict[str, str]:
    token = serve.get_app_handle("production").own_token.remote().result()
    return {"x-specpilot-app": app, "x-specpilot-token": token}


def _running(cluster: Cluster, *names: str) -> bool:
    found = cluster.applications()
    return all(found.get(name, {}).get("status") == "RUNNING" for name in names)


def _router(weights: dict[str, float]) -> dict[str, Any]:
    args = {"assign_timeout_s": 3.0}
    return router_entry("production", weights, route_prefix=_ROUTE, args=args)


@pytest.fixture(scope="module")
def production(cluster: Cluster, make_spec: Any) -> Callable[..., None]:
    """PUT two engine versions and the router; return a way to PUT other weights."""
    engines = [
        engine_entry(name, make_spec(STEP_S="0.02"), {"health_check_period_s": 1.0})
        for name in ("engine-1", "engine-2")
    ]

    def put(**weights: float) -> None:
        named = {name.replace("_", "-"): weight for name, weight in weights.items()}
        cluster.applications([*engines, _router(named)])

    put(engine_1=1.0)
    _until(lambda: _running(cluster, "engine-1", "engine-2", "production"))
    return put


def test_production_declared_beside_a_trial_leaves_it_and_shifts_traffic_in_place(
    cluster: Cluster, make_spec: Any, production: Callable[..., None]
) -> None:
    _bring_up("trial-d", make_spec())
    trial_boot = serve.get_app_handle("trial-d").boot_id.remote().result()
    pids = _router_pids(cluster)

    stream = _open_stream(cluster, max_tokens=150)
    stream.recv(1, socket.MSG_PEEK)
    production(engine_1=0.0, engine_2=1.0)
    _until(lambda: cluster.request("GET", "/health")[1]["x-specpilot-version"] == "engine-2")
    head, chunks = _read_chunks(stream)
    stream.close()

    assert "x-specpilot-version: engine-1" in head
    assert "text/event-stream" in head
    # Each event that the engine sent is one HTTP chunk at the client: 150 tokens, and [DONE].
    assert chunks[-1] == b"data: [DONE]\n\n"
    assert len(chunks) == 151
    assert all(chunk.startswith(b"data: ") and chunk.count(b"\n\n") == 1 for chunk in chunks)
    assert _router_pids(cluster) == pids

    pinned = cluster.request("GET", "/v1/models", headers={"x-specpilot-app": "engine-1"})
    assert pinned[1]["x-specpilot-version"] == "engine-1"
    assert [card["id"] for card in json.loads(pinned[2])["data"]] == ["served"]
    assert cluster.request("GET", "/health", headers={"x-specpilot-app": "trial-d"})[0] == 404
    assert cluster.request("GET", "/metrics")[0] == 404
    assert cluster.request("GET", "/server_info")[0] == 404
    assert serve.get_app_handle("trial-d").boot_id.remote().result() == trial_boot
    assert _processes(trial_boot)
    serve.delete("trial-d")
    assert not _processes(trial_boot)


def test_router_without_an_engine_says_503_in_openai_shape(
    cluster: Cluster, production: Callable[..., None]
) -> None:
    status, headers, body = cluster.request(
        "POST", "/v1/completions", _completion(), _own_pin("engine-9")
    )
    assert status == 503
    assert int(headers["retry-after"]) > 0
    assert json.loads(body)["error"]["code"] == 503


def _door(engine: Any, *, is_here: bool) -> DoorAddress:
    node_id = ray.get_runtime_context().get_node_id() if is_here else "another"
    return DoorAddress(*engine.door.remote(node_id).result())


@pytest.mark.parametrize("is_here", [True, False])
def test_engine_that_is_ended_finishes_what_came_through_its_door(
    cluster: Cluster, make_spec: Any, *, is_here: bool
) -> None:
    """Serve knows nothing of such a stream, and must not end the replica under it."""
    name = f"trial-door-{is_here}"
    options = EngineOptions(graceful_shutdown_timeout_s=60.0)
    app = trial_app(make_spec(STEP_S="0.02"), options)
    serve.run_many([serve.RunTarget(target=app, name=name, route_prefix=None)])
    engine = serve.get_app_handle(name)
    boot_id = engine.boot_id.remote().result()
    door = _door(engine, is_here=is_here)
    assert (door.path is not None) == is_here
    assert door.host == (None if is_here else HOST)
    body = json.dumps(_completion(max_tokens=600, stream=True)).encode()
    request = request_bytes("POST", "/v1/completions", {"content-type": "application/json"}, body)

    async def read() -> list[bytes]:
        items = Items(door, name, request)
        found = [item async for item in _deleting(items)]
        return [item for item in found if isinstance(item, bytes)]

    async def _deleting(items: Items) -> AsyncIterator[object]:
        yield await anext(items)
        yield await anext(items)
        serve.delete(name, _blocking=False)
        async for item in items:
            yield item

    chunks = asyncio.run(read())
    assert chunks[-1] == b"data: [DONE]\n\n"
    assert len(chunks) > 600
    _until(lambda: name not in serve.status().applications)
    _until(lambda: not _processes(boot_id))


def test_router_goes_through_the_doors_of_its_engines(
    cluster: Cluster, production: Callable[..., None]
) -> None:
    production(engine_1=1.0)

    def unix_sockets() -> str:
        return Path("/proc/net/unix").read_text()

    door = _door(serve.get_app_handle("engine-1"), is_here=True)
    _until(lambda: cluster.request("GET", "/health")[1]["x-specpilot-version"] == "engine-1")

    def is_used() -> bool:
        stream = _open_stream(cluster, max_tokens=50)
        came = stream.recv(200)
        count = unix_sockets().count(str(door.path))
        while b"[DONE]" not in came:
            came += stream.recv(65536)
        stream.close()
        return count > 1  # the one that listens, and the stream's

    _until(is_used)


def test_client_that_disconnects_aborts_the_request_in_the_engine(
    cluster: Cluster, production: Callable[..., None]
) -> None:
    production(engine_1=1.0)
    _until(lambda: cluster.request("GET", "/health")[1]["x-specpilot-version"] == "engine-1")
    stream = _open_stream(cluster, max_tokens=1500)
    stream.recv(200)
    stream.close()
    engine = serve.get_app_handle("engine-1")
    aborted = 'vllm:request_success_total{engine="0",finished_reason="abort",model_name="served"} 1'
    _until(lambda: aborted in engine.metrics_text.remote().result(), within_s=10)


def test_router_counts_clients_requests_by_engine_and_not_what_is_pinned(
    cluster: Cluster, production: Callable[..., None]
) -> None:
    production(engine_1=1.0)
    _until(lambda: cluster.request("GET", "/health")[1]["x-specpilot-version"] == "engine-1")
    router = serve.get_app_handle("production")
    before = router.counts.remote().result()

    assert cluster.request("POST", "/v1/completions", _completion())[0] == 200
    pinned = cluster.request("POST", "/v1/completions", _completion(), _own_pin("engine-2"))
    assert pinned[0] == 200
    with contextlib.closing(_open_stream(cluster, max_tokens=300)) as stream:
        stream.recv(200)
        assert router.counts.remote().result()["engine-1"]["under_way"] == 1

    _until(lambda: router.counts.remote().result()["engine-1"]["under_way"] == 0)
    after = router.counts.remote().result()
    # The client that left counts as answered: it was no failure of the engine.
    assert after["engine-1"]["answered"] == before["engine-1"]["answered"] + 2
    assert after["engine-1"]["failed"] == before["engine-1"]["failed"]
    assert after["engine-2"] == before["engine-2"]


def test_router_passes_over_an_engine_that_is_not_there(
    cluster: Cluster, production: Callable[..., None]
) -> None:
    production(engine_2=0.001, engine_9=1.0)
    _until(lambda: cluster.request("GET", "/health")[1]["x-specpilot-version"] == "engine-2")
    assert cluster.request("POST", "/v1/completions", _completion())[0] == 200


def test_router_passes_over_an_engine_that_restarts(
    cluster: Cluster, production: Callable[..., None]
) -> None:
    production(engine_1=1.0, engine_2=0.001)
    handle = serve.get_app_handle("engine-1")
    boot = handle.boot_id.remote().result()
    os.kill(_parent(_parent(handle.facts.remote().result()["pid"])), signal.SIGKILL)
    status, headers, _ = cluster.request("POST", "/v1/completions", _completion())
    assert (status, headers["x-specpilot-version"]) == (200, "engine-2")
    assert _until(lambda: _boot_id_or_none(handle)) != boot


def test_router_whose_engine_was_taken_away_says_503_at_once(
    cluster: Cluster, production: Callable[..., None]
) -> None:
    cluster.applications([_router({"engine-2": 1.0})])
    _until(lambda: not {"engine-1", "engine-2"} & set(cluster.applications()))
    asked = time.monotonic()
    assert cluster.request("POST", "/v1/completions", _completion())[0] == 503
    assert time.monotonic() - asked < 5
