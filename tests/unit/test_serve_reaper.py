"""Leases: who loses an application, and what is forgotten."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from orchestrator.adapters import serve_reaper
from orchestrator.adapters.serve_reaper import Reaper


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
