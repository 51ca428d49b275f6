"""The production applications, declared through Ray's Serve API and reached through the route."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, fields
from http.client import HTTPException
from typing import Any

import ray
from ray import serve
from ray.dashboard.modules.serve.sdk import ServeSubmissionClient
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
from ray.serve.exceptions import RayServeException

from orchestrator.core.codec import from_plain
from orchestrator.errors import ConfigError, TransientError
from orchestrator.ports import ProductionState, Served
from orchestrator.watch_ports import RecordedRequest, RequestPage
from serve_apps.apps import engine_entry, router_entry
from serve_apps.engine.errors import boot_error_from_text
from serve_apps.router.limits import Limits
from serve_apps.router.policy import APP_HEADER, OWN_HEADER

CALL_TIMEOUT_S = 120.0
ASK_TIMEOUT_S = 30.0
"""Of a question to a running application that needs no engine step."""
_REQUEST_FIELDS = tuple(item.name for item in fields(RecordedRequest))


class ServeProduction:
    """The ``Production`` port on Ray Serve.

    Args:
        dashboard_url: Address of Ray's dashboard, which carries the Serve API.
        name: Name of the router's application and prefix of the engines'.
        route: Route prefix of the router.
        model: Served model name.
        engine_options: Placement of a production engine, as ``EngineOptions`` fields.
        api_keys: Where the router finds its clients' keys; None leaves what is declared.
        limits: Of clients' requests; None is the router's own.
    """

    def __init__(
        self,
        dashboard_url: str,
        *,
        name: str,
        route: str,
        model: str,
        engine_options: Mapping[str, Any],
        api_keys: str | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._dashboard_url = dashboard_url
        self._name = name
        self._route = route
        self._model = model
        self._engine_options = dict(engine_options)
        self._api_keys = api_keys
        self._limits = {} if limits is None else asdict(limits)

    @property
    def url(self) -> str:
        """Address of the production route, from where Serve's proxy listens."""
        options = self._details().get("http_options") or {}
        host = str(options.get("host") or "127.0.0.1")
        if host in ("0.0.0.0", ""):
            host = "127.0.0.1"
        return f"http://{host}:{options.get('port', 8000)}{self._route.rstrip('/')}"

    def state(self) -> ProductionState:
        """Read the declared applications and their status."""
        return production_state(self._details(), self._name)

    def declare(
        self, engines: Mapping[str, Mapping[str, object]], weights: Mapping[str, float]
    ) -> None:
        """Make exactly these engines and weights specpilot's part of the declared set.

        A PUT replaces the whole declared set, so applications of others are declared again. So are
        the router's keys where this study names none: it must not open what another one closed.
        """
        client, details = self._client(), self._details()
        entries = _foreign(details, self._name)
        entries += [
            engine_entry(name, spec, self._engine_options) for name, spec in engines.items()
        ]
        entries.append(
            router_entry(
                self._name,
                weights,
                route_prefix=self._route,
                api_keys=self._api_keys or declared_keys(details, self._name),
                limits=self._limits,
            )
        )
        try:
            client.deploy_applications({**_running(details), "applications": entries})
        except RuntimeError as error:
            raise ConfigError("production", f"Serve refuses it: {error}", "see the text") from error
        except (ConnectionError, OSError) as error:
            raise TransientError(f"Serve does not answer: {error}") from error

    def complete(self, prompt: str, max_tokens: int, app: str | None) -> Mapping[str, object]:
        """Send one completion through the production route."""
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 1.0,
            "top_p": 1.0,
            "ignore_eos": True,
        }
        headers = {"content-type": "application/json", **self._own()}
        if app is not None:
            headers[APP_HEADER] = app
        request = urllib.request.Request(
            f"{self.url}/v1/completions", data=json.dumps(body).encode(), headers=headers
        )
        try:
            with urllib.request.urlopen(request, timeout=CALL_TIMEOUT_S) as answer:
                data = json.load(answer)
            choice = data["choices"][0]
            return {
                "text": choice["text"],
                "finish_reason": choice["finish_reason"],
                "output_tokens": data["usage"]["completion_tokens"],
            }
        except urllib.error.HTTPError as error:
            detail = error.read()[:500].decode(errors="replace")
            raise TransientError(f"production answers {error.code}: {detail}") from error
        except (OSError, HTTPException, ValueError, KeyError, IndexError, TypeError) as error:
            raise TransientError(f"no completion from production: {error!r}") from error

    def pin(self, app: str) -> Mapping[str, str]:
        """Return the headers by which the router sends a request of ours to this engine."""
        return {APP_HEADER: app, **self._own()}

    def _own(self) -> dict[str, str]:
        """Return the header that the router knows us by; a router that restarts has another."""
        return {OWN_HEADER: str(self._ask(self._name, "own_token"))}

    def served(self) -> Mapping[str, Served]:
        """Return the counts of the router's replica; there is one, so they are all."""
        counts: dict[str, dict[str, int]] = self._ask(self._name, "counts")
        return {app: Served(**numbers) for app, numbers in counts.items()}

    def boot_id(self, app: str) -> str:
        """Return the identity of the engine's boot."""
        return str(self._ask(app, "boot_id"))

    def metrics_text(self, app: str) -> str:
        """Return the engine's exposition, read where it runs."""
        return str(self._ask(app, "metrics_text"))

    def requests(self, after: int) -> RequestPage:
        """Return what the router's replica recorded of clients' requests; there is one."""
        return request_page(self._ask(self._name, "requests", after))

    def _ask(self, app: str, method: str, *arguments: object) -> Any:
        """Call a method of an application's only replica; this process has joined Ray."""
        try:
            handle = serve.get_app_handle(app)
            return getattr(handle, method).remote(*arguments).result(timeout_s=ASK_TIMEOUT_S)
        except (RayServeException, ray.exceptions.RayError, TimeoutError) as error:
            # Ray's text is the other process's traceback; its last line is the reason.
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise TransientError(f"{app} does not answer {method}: {reason}") from error

    def _client(self) -> ServeSubmissionClient:
        return _client(self._dashboard_url)

    def _details(self) -> dict[str, Any]:
        return serve_details(self._dashboard_url)


def _client(dashboard_url: str) -> ServeSubmissionClient:
    try:
        return ServeSubmissionClient(dashboard_url)
    except (ConnectionError, RuntimeError) as error:
        raise TransientError(
            f"{dashboard_url}: Ray's Serve API does not answer: {error}"
        ) from error


def serve_details(dashboard_url: str) -> dict[str, Any]:
    """Return the answer of Serve's ``GET /api/serve/applications/``.

    Raises:
        TransientError: It does not answer, or not for the controller that runs.
    """
    try:
        details: dict[str, Any] = _client(dashboard_url).get_serve_details()
    except (ConnectionError, RuntimeError, OSError) as error:
        raise TransientError(f"Serve does not answer: {error}") from error
    # Ray's dashboard tells a controller that it could not look up in time as it tells none: with
    # no applications. Who declared on that would end those of others.
    if not details.get("controller_info") and _has_controller():
        raise TransientError("Serve does not answer: Ray's dashboard does not find its controller")
    return details


def _has_controller() -> bool:
    """Return whether Serve's controller runs or starts again; no where this process has no Ray."""
    if not ray.is_initialized():
        return False
    try:
        ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
    except ValueError:  # there is no such actor
        return False
    except ray.exceptions.RayError:
        return True  # it is not known, and that is no reason to take it for gone
    return True


def declared_keys(details: Mapping[str, Any], name: str) -> str | None:
    """Return where the declared router finds its clients' keys; None where nothing is declared.

    Args:
        details: Of ``serve_details``.
        name: Name of the router's application.
    """
    found = _user_config(_applications(details, name).get(name, {})).get("api_keys")
    return None if found is None else str(found)


def _running(details: Mapping[str, Any]) -> dict[str, Any]:
    """Return where Serve listens, for a declaration that finds it gone.

    Serve's API would start it again by its own defaults: on all nodes and all interfaces.
    """
    options = details.get("http_options") or {}
    host, port = options.get("host") or "127.0.0.1", options.get("port", 8000)
    return {"proxy_location": "HeadOnly", "http_options": {"host": host, "port": port}}


def production_state(details: Mapping[str, Any], name: str) -> ProductionState:
    """Return what is declared of specpilot's and how it is doing.

    Args:
        details: Answer of Serve's ``GET /api/serve/applications/``.
        name: Name of the router's application and prefix of the engines'.
    """
    apps = _applications(details, name)
    router = apps.get(name)
    return ProductionState(
        weights={} if router is None else _weights(router),
        engines={app: _status(found) for app, found in apps.items() if app != name},
        router_status=None if router is None else _status(router),
        messages={
            app: _message(found) for app, found in apps.items() if _status(found) != "RUNNING"
        },
    )


def _applications(details: Mapping[str, Any], name: str) -> dict[str, Any]:
    # No others that begin so: a second production may be named `<name>-vision`.
    own = re.compile(rf"{re.escape(name)}(-v[0-9]+)?")
    return {
        app: found
        for app, found in (details.get("applications") or {}).items()
        if own.fullmatch(app)
    }


def _foreign(details: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the declarations of applications that are not specpilot's."""
    ours = _applications(details, name)
    return [
        dict(found["deployed_app_config"])
        for app, found in (details.get("applications") or {}).items()
        if app not in ours and found.get("deployed_app_config")
    ]


def request_page(data: Any) -> RequestPage:
    """Return what the router's ``requests`` answers.

    Raises:
        TransientError: It is not that: the router is of another version, and will be declared anew.
    """
    try:
        return RequestPage(
            router=str(data["boot"]),
            next=int(data["last"]),
            lost=int(data["lost"]),
            requests=tuple(
                from_plain(RecordedRequest, _fields_of(item)) for item in data["records"]
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise TransientError(f"the router's requests cannot be read: {error}") from error


def _fields_of(item: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: item[name] for name in _REQUEST_FIELDS}
    if item["output_tokens_from"] != "usage":
        # A chunk holds all tokens of a step, so that their number is no number of tokens.
        found["output_tokens"] = None
    return found


def _status(app: Mapping[str, Any]) -> str:
    return str(app.get("status"))


def _message(app: Mapping[str, Any]) -> str:
    parts = [str(app.get("message") or "")]
    parts += [str(item.get("message") or "") for item in (app.get("deployments") or {}).values()]
    text = "\n".join(part for part in parts if part)
    # Serve tells a traceback, in which the engine's own reason stands far down.
    found = boot_error_from_text(text)
    if found is None:
        return text
    return f"{found.reason}{': ' + found.cause if found.cause else ''}\n{text}"


def _weights(router: Mapping[str, Any]) -> dict[str, float]:
    weights = _user_config(router).get("weights") or {}
    return {str(name): float(value) for name, value in weights.items()}


def _user_config(router: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the router's deployment is declared with."""
    config = router.get("deployed_app_config") or {}
    for deployment in config.get("deployments") or []:
        found: dict[str, Any] = deployment.get("user_config") or {}
        if found:
            return found
    return {}
