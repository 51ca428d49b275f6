"""The Serve deployment around one engine process, and the builders of its applications."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ray.serve import Application

DEPLOYMENT_NAME = "Engine"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How Serve places and keeps an engine, in plain JSON types."""

    resources: dict[str, float] = field(default_factory=lambda: {"GB10": 1.0})
    num_gpus: float = 0.0
    node_id: str | None = None
    """Ray node id that the replica must land on (a trial's own node)."""
    max_ongoing_requests: int = 64
    """At least the engine's max_num_seqs, and the highest concurrency that is sent."""
    max_constructor_retry_count: int = 1
    """A boot takes minutes: an out-of-memory boot must not be tried three times."""
    graceful_shutdown_timeout_s: float = 10.0
    health_check_period_s: float = 10.0
    health_check_timeout_s: float = 30.0
    max_surge_percent: int | None = None
    """Production only: 100 starts the new replica before the old one stops."""


def trial_app(spec: Mapping[str, Any], options: EngineOptions) -> Application:
    """Return the application of one trial, for `serve.run_many`.

    Args:
        spec: `EngineSpec.to_dict()`.
        options: Placement and lifetime.
    """
    raise NotImplementedError


def production_engine(args: Mapping[str, Any]) -> Application:
    """Return a production engine, for a declarative PUT.

    Args:
        args: {"spec": EngineSpec.to_dict(), "options": EngineOptions fields}.
    """
    raise NotImplementedError
