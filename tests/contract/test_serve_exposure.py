"""What a running Ray asks of strangers is found by asking it as one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator import cluster
from orchestrator.adapters import serve_exposure
from orchestrator.adapters.serve_exposure import exposure
from orchestrator.cluster import Cluster, one_study_at_a_time
from orchestrator.config import CONF_DIR, load_config
from orchestrator.core.exposure import Exposure
from orchestrator.errors import ConfigError

KEYS = "file:/etc/specpilot/keys"
CONFIG = load_config(CONF_DIR / "study" / "demo.yaml")


@contextmanager
def dashboard(status: int) -> Iterator[str]:
    """Yield the address of a dashboard that answers everybody so."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert "Authorization" not in self.headers
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  its base says so
            del format, args

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def declared(keys: str | None) -> dict[str, Any]:
    config = {} if keys is None else {"api_keys": keys}
    deployments = [{"user_config": {"weights": {}, **config}}]
    return {"specpilot": {"deployed_app_config": {"deployments": deployments}}}


def details(host: str, keys: str | None = None) -> dict[str, Any]:
    return {
        "proxies": {"node": {}},
        "http_options": {"host": host, "port": 8000},
        "applications": declared(keys),
    }


def look(url: str, found: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Exposure:
    monkeypatch.setattr(serve_exposure, "serve_details", lambda _url: found)
    return exposure(url, name="specpilot", http_host="10.0.0.10", api_keys=None)


def test_ray_whose_dashboard_fails_is_not_said_to_ask_nobody() -> None:
    with dashboard(503) as url, pytest.raises(ConfigError, match="dashboard does not answer"):
        exposure(url, name="specpilot", http_host="127.0.0.1", api_keys=None)


@pytest.mark.parametrize(("status", "asks"), [(200, False), (401, True), (403, True), (404, False)])
def test_ray_asks_for_a_token_if_it_refuses_who_has_none(
    status: int, asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")  # of this process, which proves nothing
    with dashboard(status) as url:
        found = look(url, {}, monkeypatch)
    assert found.asks_token is asks


def test_proxy_of_the_environment_does_not_answer_for_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    with dashboard(200) as url, dashboard(403) as other:
        monkeypatch.setenv("http_proxy", other)
        monkeypatch.delenv("no_proxy", raising=False)
        assert look(url, {}, monkeypatch).asks_token is False


def test_serve_that_runs_counts_before_what_the_study_says(monkeypatch: pytest.MonkeyPatch) -> None:
    with dashboard(401) as url:
        running = look(url, details("127.0.0.1", KEYS), monkeypatch)
        # Ray tells its defaults where no Serve runs.
        absent = look(url, {**details("0.0.0.0"), "proxies": {}}, monkeypatch)
    assert (running.http_host, running.api_keys) == ("127.0.0.1", KEYS)
    assert (absent.http_host, absent.api_keys) == ("10.0.0.10", None)


def test_dashboard_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="its dashboard does not answer"):
        look("http://127.0.0.1:1", {}, monkeypatch)


@pytest.mark.parametrize(
    ("status", "host", "keys", "where"),
    [
        (200, "10.0.0.10", KEYS, "RAY_AUTH_MODE"),
        (401, "0.0.0.0", "open", r"production\.api_keys"),
    ],
)
def test_study_is_refused_before_it_claims_the_cluster(
    status: int, host: str, keys: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def claimed(*_: object) -> None:
        raise AssertionError("something was started")

    monkeypatch.setattr(cluster, "ray", SimpleNamespace(remote=claimed))
    monkeypatch.setattr(serve_exposure, "serve_details", lambda _url: details(host, keys))
    with dashboard(status) as url:
        joined = Cluster(dashboard_url=url, num_trial_nodes=1)
        monkeypatch.setattr(cluster, "join_ray", lambda _config: joined)
        with pytest.raises(ConfigError, match=where), one_study_at_a_time(CONFIG):
            pass
