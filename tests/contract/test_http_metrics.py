"""What is known of a running server by its address: how it is written, its models, its counters."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from orchestrator.adapters import http_metrics
from orchestrator.adapters.http_metrics import base_url, is_local, metrics_text, served_models
from orchestrator.errors import ConfigError, TransientError
from orchestrator.fakes.openai import EngineSettings, engine_server, serving
from serve_apps.engine.sockets import free_port

KEY = "sk-planted-0123456789"


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://host:8000/v1", "http://host:8000"),
        ("http://host:8000/v1/", "http://host:8000"),
        ("http://host:8000/", "http://host:8000"),
        ("http://host:8000", "http://host:8000"),
        ("HTTP://host:8000/v1", "http://host:8000"),
        ("http://host/v1", "http://host"),
        ("https://api.host.example/v1", "https://api.host.example"),
        ("https://host/team/llm/v1", "https://host/team/llm"),
        ("https://host/team//v1//", "https://host/team"),
        ("https://host/v1/v1", "https://host/v1"),
        ("https://host/xv1", "https://host/xv1"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
        ("http://[::1]", "http://[::1]"),
        ("http://10.0.0.7:1", "http://10.0.0.7:1"),
    ],
)
def test_base_url_is_the_address_without_its_version(url: str, base: str) -> None:
    assert base_url(url, "--url") == base


@pytest.mark.parametrize(
    "url",
    [
        *("", "host:8000", "localhost:8000/v1", "ftp://host", "http://", "http:///v1", "/v1"),
        *("http://host:port/v1", "http://host:99999", "http://host:0", "http://host:-1"),
        *("http://[::1", "http://a..b/v1", "http://host /v1", "http://host\n/v1", "http://h\\v1"),
        *("http://\N{CYRILLIC SMALL LETTER A}pi/v1", f"http://{'x' * 64}/v1"),
    ],
)
def test_base_url_that_is_none_is_refused_in_one_line(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        base_url(url, "--url")

    message = str(caught.value)
    assert message.startswith("--url: ")
    assert message.endswith("; write it as http://host:port/v1")


@pytest.mark.parametrize(
    "url",
    [
        *(f"http://me:{KEY}@host:8000/v1", f"http://{KEY}@host/v1", f"http://host/v1?key={KEY}"),
        *(f"http://host/v1#{KEY}", f"http://me:{KEY}@host:port/v1", f"ftp://me:{KEY}@host"),
    ],
)
def test_base_url_with_a_key_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        base_url(url, "--url")

    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://localhost:8000", True),
        ("http://127.0.0.1:8000", True),
        ("http://127.8.8.8", True),
        ("http://[::1]:8000", True),
        ("http://0.0.0.0:8000", True),
        ("http://127.example.org", False),
        ("http://localhost.example.org", False),
        ("http://10.0.0.1", False),
        ("http://[2001:db8::1]", False),
        ("http://spark", False),
    ],
)
def test_is_local_is_this_machine_only(url: str, local: bool) -> None:
    assert is_local(url) is local


def test_models_and_counters_of_a_server_are_read() -> None:
    settings = EngineSettings(models=("first", "second"))
    with serving(engine_server(settings)) as server:
        assert served_models(server.url) == ("first", "second")
        assert "vllm:generation_tokens_total" in metrics_text(f"{server.url}/metrics")
        with pytest.raises(TransientError, match="answers HTTP 404"):
            metrics_text(f"{server.url}/nothing")


def test_nobody_listening_is_said() -> None:
    with pytest.raises(TransientError, match="does not answer"):
        served_models(f"http://127.0.0.1:{free_port()}")


@dataclass
class RawServer:
    """Answers every connection with the same bytes and closes it."""

    url: str
    answer: bytes = b""
    heard: list[bytes] = field(default_factory=list)


@pytest.fixture
def raw() -> Iterator[RawServer]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = RawServer(f"http://127.0.0.1:{listener.getsockname()[1]}")
        ended = threading.Event()

        def serve() -> None:
            while not ended.is_set():
                connection, _ = listener.accept()
                # A client that has read enough hangs up.
                with connection, suppress(OSError):
                    head = connection.recv(65536)
                    while head[:3] == b"GET" and not head.endswith(b"\r\n\r\n"):
                        head += connection.recv(65536)
                    server.heard.append(head)
                    connection.sendall(server.answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server
        ended.set()
        socket.create_connection(listener.getsockname()).close()
        thread.join(10)


def http(
    body: bytes, *, status: str = "200 OK", length: int | None = None, head: str = ""
) -> bytes:
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\n{head}\r\n".encode() + body


@pytest.mark.parametrize(
    "answer",
    [
        http(b"vllm:x 1\n", length=900),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nvllm:x 1\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nvllm:x 1\n",
        b"",
        b"HTTP/1.1 2",
        b"no http at all\r\n\r\n",
    ],
    ids=["length", "chunks", "chunk", "nothing", "status", "other"],
)
def test_metrics_that_were_cut_off_are_an_error_and_never_less(
    raw: RawServer, answer: bytes
) -> None:
    raw.answer = answer

    with pytest.raises(TransientError):
        metrics_text(f"{raw.url}/metrics")


def test_metrics_without_an_end_are_given_up(
    raw: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_metrics, "MAX_BYTES", 1 << 20)
    raw.answer = http(b"x" * (2 << 20))

    with pytest.raises(TransientError, match="more than 1 MiB"):
        metrics_text(f"{raw.url}/metrics")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>", "no list of models"),
        (b'{"data": []}', "offers no model"),
        (b'{"data": {"id": 1}}', "no list of models"),
        (b'{"data": ["m"]}', "no list of models"),
        (b'{"data": [{"name": "m"}]}', "no list of models"),
        (b"[" * 100_000, "no list of models"),
        (b'{"data": [{"id": "m\\u001b[2J"}]}', "control characters"),
        (b'{"error": "bad key ' + KEY.encode() + b'"}', "no list of models"),
    ],
)
def test_models_in_another_form_are_no_models(raw: RawServer, body: bytes, words: str) -> None:
    raw.answer = http(body)

    with pytest.raises(TransientError, match=words) as caught:
        served_models(raw.url, api_key=KEY)

    assert KEY not in str(caught.value)


def test_key_goes_to_the_models_and_not_to_the_counters(raw: RawServer) -> None:
    raw.answer = http(json.dumps({"data": [{"id": "m"}]}).encode())

    served_models(raw.url, api_key=KEY)
    metrics_text(f"{raw.url}/metrics")

    assert f"authorization: bearer {KEY}" in raw.heard[0].decode().lower()
    assert KEY.encode() not in raw.heard[1]


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
def test_redirect_is_not_followed_with_the_key(raw: RawServer, status: str) -> None:
    raw.answer = http(b"", status=status, head=f"Location: {raw.url}/elsewhere\r\n")

    with pytest.raises(TransientError, match=f"answers HTTP {status[:3]}"):
        served_models(raw.url, api_key=KEY)

    assert len(raw.heard) == 1


def test_proxy_of_the_environment_is_not_asked(
    raw: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw.answer = http(b"vllm:x 1\n")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")

    assert metrics_text(f"{raw.url}/metrics") == "vllm:x 1\n"


def test_https_to_a_server_without_it_is_an_error(raw: RawServer) -> None:
    raw.answer = b"\r\n"

    with pytest.raises(TransientError, match="does not answer"):
        served_models(raw.url.replace("http:", "https:"))


class DrippingServer:
    """Sends a byte at a time and never ends, in each of the parts of an answer."""

    def __init__(self, start: bytes) -> None:
        self._start = start
        self._end = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        client, _ = self._listener.accept()
        with client, suppress(OSError):
            client.recv(65536)
            client.sendall(self._start)
            while not self._end.wait(0.02):
                client.sendall(b"#")

    def close(self) -> None:
        self._end.set()
        self._thread.join()
        self._listener.close()


@pytest.mark.parametrize(
    "start",
    [
        *(b"", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n"),
        b"HTTP/1.1 200 OK\r\nContent-Length: 900000\r\n\r\n",
    ],
    ids=["status", "headers", "body", "length"],
)
def test_server_that_drips_is_given_up(start: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_metrics, "TIMEOUT_S", 0.3)
    server = DrippingServer(start)
    try:
        with pytest.raises(TransientError, match=r"has not answered in full after 0\.3 s"):
            metrics_text(f"{server.url}/metrics")
    finally:
        server.close()
