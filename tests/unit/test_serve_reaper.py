"""Leases: who loses an application, and what is forgotten."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import GetTimeoutError, RayActorError

from orchestrator.adapters import serve_reaper
from orchestrator.adapters.serve_reaper import Reaper
from orchestrator.errors import TransientError


@pytest.fixture
def applications(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names that Serve has; no reaper looks by itself."""
    names: list[str] = []
    status = SimpleNamespace(status=lambda: SimpleNamespace(applications=names))
    monkeypatch.setattr(serve_reaper, "serve", status)
    monkeypatch.setattr("threading.Thread.start", lambda _thread: None)
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    return names


def test_application_without_a_lease_gets_one_and_loses_it(applications: list[str]) -> None:
    applications += ["trial-a", "specpilot-v1"]
    reaper = Reaper("trial-", lease_s=60.0)

    assert reaper.look(1000.0) == []
    assert reaper.leases() == ["trial-a"]
    assert reaper.look(1060.0) == []
    assert reaper.look(1061.0) == ["trial-a"]
    assert reaper.leases() == []


def test_lease_of_an_application_that_is_not_up_yet_is_kept_and_then_forgotten(
    applications: list[str],
) -> None:
    reaper = Reaper("trial-", lease_s=60.0)
    reaper.renew("trial-a")

    assert reaper.look(1030.0) == []
    assert reaper.leases() == ["trial-a"]
    assert reaper.look(1061.0) == []
    applications.append("trial-a")
    assert reaper.look(1062.0) == [], "tried again, it has a whole lease"


def actor_of(monkeypatch: pytest.MonkeyPatch, actor: object, answer: Exception) -> None:
    """Put an actor in the reaper's place, and an error in that of its answer."""

    def get(_ref: object, timeout: float) -> Any:
        del timeout
        raise answer

    monkeypatch.setattr(serve_reaper, "_reaper", lambda: actor)
    monkeypatch.setattr("ray.get", get)


@pytest.mark.parametrize("error", [GetTimeoutError("no answer in time"), RayActorError()])
def test_reaper_that_does_not_answer_is_no_empty_list(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    actor = SimpleNamespace(leases=SimpleNamespace(remote=lambda: "ref"))
    actor_of(monkeypatch, actor, error)

    with pytest.raises(TransientError, match=r"^the reaper does not answer: .+") as caught:
        serve_reaper.leases()
    assert "\n" not in str(caught.value)


def test_reaper_of_an_earlier_version_is_no_empty_list(monkeypatch: pytest.MonkeyPatch) -> None:
    actor_of(monkeypatch, SimpleNamespace(), AssertionError("it is not asked"))

    with pytest.raises(TransientError, match="earlier version"):
        serve_reaper.leases()


def test_no_reaper_has_no_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Any:
        raise ValueError("no actor of this name")

    monkeypatch.setattr(serve_reaper, "_reaper", none)

    assert serve_reaper.leases() == []
