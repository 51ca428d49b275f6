"""Whether a tracking address is refused, and in what words."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from orchestrator.adapters.tracking_uri import artifact_location, check
from orchestrator.errors import ConfigError
from serve_apps.engine.sockets import free_port


class Health(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.server.status)  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base's name
        pass


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", free_port()), Health) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


def address(server: HTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_port}"


@pytest.mark.parametrize("status", [200, 401])
def test_check_server_that_is_up_passes_without_its_slash(server: HTTPServer, status: int) -> None:
    server.status = status  # type: ignore[attr-defined]

    assert check(address(server) + "/", num_nodes=4) == address(server)


def test_check_server_that_refuses_our_host_names_the_flag(server: HTTPServer) -> None:
    server.status = 403  # type: ignore[attr-defined]

    with pytest.raises(ConfigError, match="--allowed-hosts"):
        check(address(server))


def test_check_server_error_is_a_config_error(server: HTTPServer) -> None:
    server.status = 500  # type: ignore[attr-defined]

    with pytest.raises(ConfigError, match="HTTP 500") as caught:
        check(address(server))
    assert caught.value.where == "tracking.uri"


def test_check_nobody_listens_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"does not answer \(.*refused"):
        check(f"http://127.0.0.1:{free_port()}")


def test_check_silent_server_ends_at_the_timeout() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(ConfigError, match="does not answer"):
            check(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.2)


def test_check_server_that_speaks_no_http_is_a_config_error() -> None:
    with socket.socket() as odd:
        odd.bind(("127.0.0.1", 0))
        odd.listen()
        thread = threading.Thread(target=greet_as_ssh, args=(odd,), daemon=True)
        thread.start()
        with pytest.raises(ConfigError, match="does not answer"):
            check(f"http://127.0.0.1:{odd.getsockname()[1]}")
        thread.join(10)


def greet_as_ssh(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")


@pytest.mark.parametrize("uri", ["http://", "http://[bad", "http://127.0.0.1:99999"])
def test_check_malformed_address_is_a_config_error(uri: str) -> None:
    with pytest.raises(ConfigError, match=r"tracking\.uri"):
        check(uri)


@pytest.mark.parametrize("uri", ["sqlite:///ml.db", "file:./mlruns", "mlruns"])
def test_check_local_store_with_several_nodes_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError, match="any of 2 nodes"):
        check(uri, num_nodes=2)


def test_check_relative_sqlite_path_becomes_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert check("sqlite:///ml.db") == f"sqlite:///{tmp_path}/ml.db"
    assert check(f"sqlite:///{tmp_path}/ml.db") == f"sqlite:///{tmp_path}/ml.db"


def test_check_shared_database_is_for_any_number_of_nodes() -> None:
    uri = "postgresql://user@db/mlflow"

    assert check(uri, num_nodes=8) == uri


def test_artifact_location_is_beside_sqlite_and_else_the_servers() -> None:
    assert artifact_location("sqlite:////data/ml.db") == "file:///data/mlartifacts"
    assert artifact_location("http://host:5000") is None


@pytest.mark.parametrize("uri", ["ftp://host/store", "htp://127.0.0.1:5000", "databricks://x"])
def test_check_scheme_that_mlflow_cannot_log_to_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError, match=r"tracking\.uri: .*nothing that MLflow can log to"):
        check(uri, num_nodes=2)


def test_check_database_with_a_driver_passes() -> None:
    uri = "mysql+pymysql://user@host/mlflow"

    assert check(uri, num_nodes=4) == uri
