"""How joining Ray that fails is told; `tests/contract` has what does not answer at all."""

from __future__ import annotations

from itertools import pairwise

import pytest
import ray

from orchestrator.cluster import connect
from orchestrator.errors import ConfigError


def fails(*causes: Exception) -> ConfigError:
    """Return what is said where ``ray.init`` raises the first, by reason of those behind it."""
    for error, cause in pairwise(causes):
        error.__cause__ = cause

    def init(**_settings: object) -> None:
        raise causes[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", "auto")
        patch.setattr(ray, "init", init)
        with pytest.raises(ConfigError) as raised:
            connect()
    return raised.value


def test_a_wrong_token_is_told_as_that_and_not_as_no_ray() -> None:
    """Ray 2.60 raises a ConnectionError, and has the reason in the text of its cause alone."""
    trace = "Last connection error: ... ray.exceptions.AuthenticationError: InvalidAuthToken"

    error = fails(ConnectionError("Failed to connect to Ray cluster"), RuntimeError(trace))

    assert "refuses this environment's token" in str(error)
    assert "RAY_AUTH_TOKEN" in str(error)


def test_other_causes_are_no_running_ray() -> None:
    error = fails(ConnectionError("Failed to connect"), RuntimeError("timed out"))

    assert "no running Ray answers" in str(error)
    assert "token" not in str(error)
