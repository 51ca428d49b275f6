"""What the production adapter declares, and how its own requests prove themselves."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
import ray

from orchestrator.adapters import serve_production
from orchestrator.adapters.serve_production import ServeProduction
from orchestrator.errors import TransientError
from serve_apps.apps import ROUTER_PROTOCOL
from serve_apps.router.limits import Limits

KEYS = "file:/etc/specpilot/keys"
SPEC = {"model": "m"}


class ServeApi:
    """Ray's Serve API in memory: what is declared is what it tells."""

    def __init__(self) -> None:
        self.port = 8000
        self.applications: dict[str, Any] = {}
        self.finds_controller = True

    def __call__(self, _address: str) -> ServeApi:
        return self

    def get_serve_details(self) -> dict[str, Any]:
        if not self.finds_controller:  # as Ray's dashboard says it, with status 200
            return {"controller_info": {}, "proxies": {}, "applications": {}}
        return {
            "controller_info": {"node_id": "n1"},
            "applications": self.applications,
            "http_options": {"port": self.port},
        }

    def deploy_applications(self, config: Mapping[str, Any]) -> None:
        # As over the wire: what is not JSON would not arrive.
        entries = json.loads(json.dumps(config))["applications"]
        self.applications = {
            item["name"]: {"status": "RUNNING", "deployed_app_config": item} for item in entries
        }

    def router(self) -> dict[str, Any]:
        (deployment,) = self.applications["specpilot"]["deployed_app_config"]["deployments"]
        found: dict[str, Any] = deployment["user_config"]
        return found


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> ServeApi:
    api = ServeApi()
    monkeypatch.setattr(serve_production, "ServeSubmissionClient", api)
    return api


def production(api_keys: str | None = None, limits: Limits | None = None) -> ServeProduction:
    return ServeProduction(
        "http://127.0.0.1:8265",
        name="specpilot",
        route="/",
        model="served",
        engine_options={},
        api_keys=api_keys,
        limits=limits,
    )


def test_declaration_names_where_the_keys_are_and_the_limits(api: ServeApi) -> None:
    production(KEYS, Limits(max_streams=7)).declare({"specpilot-v1": SPEC}, {"specpilot-v1": 1.0})

    declared = api.router()
    assert declared["weights"] == {"specpilot-v1": 1.0}
    assert declared["api_keys"] == KEYS
    assert Limits.from_dict(declared["limits"]) == Limits(max_streams=7)
    args = api.applications["specpilot"]["deployed_app_config"]["args"]
    assert args == {"protocol": ROUTER_PROTOCOL}, "only another one restarts it"
    assert production().state().weights == {"specpilot-v1": 1.0}


def test_second_production_whose_name_begins_like_the_first_is_not_touched(api: ServeApi) -> None:
    vision = ServeProduction(
        "http://127.0.0.1:8265",
        name="specpilot-vision",
        route="/vision",
        model="served",
        engine_options={},
    )
    vision.declare({"specpilot-vision-v4": SPEC}, {"specpilot-vision-v4": 1.0})

    production().declare({"specpilot-v1": SPEC}, {"specpilot-v1": 1.0})

    assert set(production().state().engines) == {"specpilot-v1"}
    assert set(vision.state().engines) == {"specpilot-vision-v4"}


def test_declaration_by_a_study_without_keys_does_not_open_production(api: ServeApi) -> None:
    production(KEYS).declare({}, {})
    production().declare({"specpilot-v1": SPEC}, {"specpilot-v1": 1.0})
    assert api.router()["api_keys"] == KEYS


def test_keys_end_only_where_a_study_says_open(api: ServeApi) -> None:
    production(KEYS).declare({}, {})
    production("open").declare({}, {})
    assert api.router()["api_keys"] == "open"


def test_first_declaration_without_keys_is_open(api: ServeApi) -> None:
    production().declare({}, {})
    assert "api_keys" not in api.router()


def no_actor(*_arguments: object, **_options: object) -> None:
    raise ValueError("Failed to look up actor")


def unknown_actor(*_arguments: object, **_options: object) -> None:
    raise ray.exceptions.GetTimeoutError("the lookup took too long")


@pytest.mark.parametrize("look_up", [lambda *_arguments, **_options: "handle", unknown_actor])
def test_controller_that_the_dashboard_does_not_find_is_no_empty_cluster(
    api: ServeApi, monkeypatch: pytest.MonkeyPatch, look_up: Callable[..., object]
) -> None:
    """Its answer is then 200 and no applications; a declaration would end those of others."""
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_actor", look_up)
    production().declare({"specpilot-v1": SPEC}, {"specpilot-v1": 1.0})
    declared = dict(api.applications)
    api.finds_controller = False

    with pytest.raises(TransientError, match="does not find its controller"):
        production().declare({}, {})
    with pytest.raises(TransientError, match="does not find its controller"):
        production().state()

    assert api.applications == declared


def test_cluster_without_serve_has_no_applications(
    api: ServeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_actor", no_actor)
    api.finds_controller = False

    assert production().state().engines == {}


class _Route(BaseHTTPRequestHandler):
    seen: list[dict[str, str]]

    def do_POST(self) -> None:
        self.seen.append({name.lower(): value for name, value in self.headers.items()})
        self.rfile.read(int(self.headers["content-length"]))
        choice = {"text": "t", "finish_reason": "stop"}
        body = json.dumps({"choices": [choice], "usage": {"completion_tokens": 1}}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def seen(api: ServeApi) -> Iterator[list[dict[str, str]]]:
    """Return the headers that the route gets."""
    _Route.seen = []
    server = HTTPServer(("127.0.0.1", 0), _Route)
    api.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield _Route.seen
    server.shutdown()
    thread.join()
    server.server_close()


def test_own_requests_carry_the_routers_token_and_only_pinned_ones_the_pin(
    seen: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def ask(_self: object, app: str, method: str) -> str:
        asked.append((app, method))
        return f"token-{len(asked)}"

    monkeypatch.setattr(ServeProduction, "_ask", ask)
    route = production(KEYS)

    route.complete("p", 4, "specpilot-v2")
    route.complete("p", 4, None)

    pinned, unpinned = seen
    assert (pinned["x-specpilot-app"], pinned["x-specpilot-token"]) == ("specpilot-v2", "token-1")
    assert unpinned["x-specpilot-token"] == "token-2", "a router that restarted has another"
    assert "x-specpilot-app" not in unpinned
    assert set(asked) == {("specpilot", "own_token")}
    assert route.pin("specpilot-v2") == {
        "x-specpilot-app": "specpilot-v2",
        "x-specpilot-token": "token-3",
    }


def test_declaration_that_finds_serve_gone_does_not_open_it_to_all(api: ServeApi) -> None:
    """Serve's API would start it again on all interfaces of all nodes."""
    asked: list[Mapping[str, Any]] = []
    api.deploy_applications = asked.append  # type: ignore[method-assign]  # only what is asked

    production().declare({}, {})

    (declared,) = asked
    assert declared["http_options"] == {"host": "127.0.0.1", "port": 8000}
    assert declared["proxy_location"] == "HeadOnly"
