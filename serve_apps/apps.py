"""Import paths of the declarative configuration, and its entries.

`PUT /api/serve/applications/` names `serve_apps.apps:engine` and `serve_apps.apps:router`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.serve import Application

from serve_apps.engine.deployment import production_engine
from serve_apps.router.deployment import DEPLOYMENT_NAME as ROUTER
from serve_apps.router.deployment import router_app

ROUTER_PROTOCOL = 1
"""Raised with each change of what a router's methods are or answer, or of its `user_config`.

Serve reconfigures a router in place where only weights, keys and limits change, so one that runs
the code of an earlier version would stay. The number is one of its declared args, which restart it.
"""


def engine(args: dict[str, Any]) -> Application:
    """Return a production engine application (args: spec, options)."""
    return production_engine(args)


def router(args: dict[str, Any]) -> Application:
    """Return the ingress application (args: protocol, and keywords of `router_app`).

    Raises:
        ValueError: It was declared by another version of specpilot than this node has.
    """
    keywords = dict(args)
    protocol = keywords.pop("protocol", None)
    if protocol != ROUTER_PROTOCOL:
        raise ValueError(
            f"the router is declared with protocol {protocol}, this node has {ROUTER_PROTOCOL}: "
            "install the same specpilot on the driver and on Ray's nodes"
        )
    return router_app(**keywords)


def engine_entry(
    name: str, spec: Mapping[str, Any], options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the `applications` entry of one engine version (no route: reached by the router).

    Args:
        name: Application name, one per promoted version.
        spec: `EngineSpec.to_dict()`.
        options: Fields of `EngineOptions` that differ from PRODUCTION_OPTIONS.
    """
    return {
        "name": name,
        "route_prefix": None,
        "import_path": "serve_apps.apps:engine",
        "args": {"spec": dict(spec), "options": dict(options or {})},
    }


def router_entry(
    name: str,
    weights: Mapping[str, float],
    *,
    route_prefix: str = "/",
    api_keys: str | None = None,
    limits: Mapping[str, Any] | None = None,
    args: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the `applications` entry of the ingress.

    Weights, keys and limits travel as `user_config`, so a PUT that changes only them reconfigures
    the running replicas in place.

    Args:
        name: Application name; it never changes.
        weights: Share of the traffic by engine application name.
        route_prefix: Where clients reach it.
        api_keys: Where the keys are, as `KeyRing` reads it; never a key. None asks for none.
        limits: Fields of `Limits` that differ from the defaults.
        args: Keywords of `router_app`; a change of these restarts the router.
    """
    config: dict[str, Any] = {"weights": dict(weights)}
    if api_keys is not None:
        config["api_keys"] = api_keys
    if limits:
        config["limits"] = dict(limits)
    return {
        "name": name,
        "route_prefix": route_prefix,
        "import_path": "serve_apps.apps:router",
        "args": {"protocol": ROUTER_PROTOCOL, **(args or {})},
        "deployments": [{"name": ROUTER, "user_config": config}],
    }
