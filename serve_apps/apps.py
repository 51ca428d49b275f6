"""Import paths of the declarative configuration, and its entries.

`PUT /api/serve/applications/` names `serve_apps.apps:engine` and `serve_apps.apps:router`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.serve import Application


def engine(args: Mapping[str, Any]) -> Application:
    """Return a production engine application (args: spec, options)."""
    raise NotImplementedError


def router(args: Mapping[str, Any]) -> Application:
    """Return the ingress application (args: options)."""
    raise NotImplementedError


def engine_entry(
    name: str, spec: Mapping[str, Any], options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the `applications` entry of one engine version (no route: reached by the router).

    Args:
        name: Application name, one per promoted version.
        spec: `EngineSpec.to_dict()`.
        options: Fields of `EngineOptions` that differ from production's defaults.
    """
    raise NotImplementedError


def router_entry(
    name: str, weights: Mapping[str, float], *, route_prefix: str = "/", num_replicas: int = 1
) -> dict[str, Any]:
    """Return the `applications` entry of the ingress.

    Args:
        name: Application name; it never changes.
        weights: Share of the traffic by engine application name. They travel as `user_config`, so
            a PUT that changes only them reconfigures the running replicas in place.
        route_prefix: Where clients reach it.
        num_replicas: Router replicas.
    """
    raise NotImplementedError
