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


def engine(args: dict[str, Any]) -> Application:
    """Return a production engine application (args: spec, options)."""
    return production_engine(args)


def router(args: dict[str, Any]) -> Application:
    """Return the ingress application (args: keywords of `router_app`)."""
    return router_app(**args)


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
        "args": dict(args or {}),
        "deployments": [{"name": ROUTER, "user_config": config}],
    }
