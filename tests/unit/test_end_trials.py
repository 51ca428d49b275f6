"""The end of all trials: who is told, what is deleted, and what no fault there may undo."""

from __future__ import annotations

import io
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from orchestrator import cluster, commands
from orchestrator.errors import TransientError
from orchestrator.events import Printer
from orchestrator.fakes.world import FakeClock


class FakeServe:
    """Serve's applications in virtual time; each takes a while to go."""

    def __init__(self, *names: str, gone_after_s: float = 1.0) -> None:
        self.now_s = 0.0
        self.told_s: float | None = None
        self.coming: dict[float, str] = {}
        self._there = set(names)
        self._gone_after_s = gone_after_s
        self._goes: dict[str, float] = {}

    def status(self) -> Any:
        self._there |= {name for at, name in self.coming.items() if at <= self.now_s}
        self.coming = {at: name for at, name in self.coming.items() if at > self.now_s}
        self._there -= {name for name, at in self._goes.items() if at <= self.now_s}
        return SimpleNamespace(applications=sorted(self._there))

    def delete(self, name: str, *, _blocking: bool) -> None:
        assert not _blocking
        self._goes.setdefault(name, self.now_s + self._gone_after_s)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def close_leases(self, *, wait_s: float) -> None:
        del wait_s
        assert not self._goes, "what is deleted first has its place taken"
        self.told_s = self.now_s


@pytest.fixture
def ray_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeServe], FakeServe]:
    def put(serve: FakeServe) -> FakeServe:
        monkeypatch.setattr(cluster, "serve", serve)
        monkeypatch.setattr(cluster, "close_leases", serve.close_leases)
        monkeypatch.setattr(cluster, "on_every_node", lambda *_args, **_options: [])
        monkeypatch.setattr("time.monotonic", lambda: serve.now_s)
        monkeypatch.setattr("time.sleep", serve.sleep)
        return serve

    return put


def silent(serve: FakeServe) -> Callable[..., None]:
    def close(*, wait_s: float) -> None:
        serve.sleep(wait_s)
        raise TransientError("the reaper does not answer: it is busy")

    return close


def test_trials_are_over_for_the_reaper_before_they_are_swept(
    ray_with: Callable[[FakeServe], FakeServe],
) -> None:
    serve = ray_with(FakeServe("trial-a", "specpilot-v1"))

    assert cluster.end_trials(wait_s=6.0) == ["trial-a is gone"]
    assert serve.told_s == 0.0
    assert serve.status().applications == ["specpilot-v1"]


def test_trial_that_comes_up_during_the_sweep_is_swept_too(
    ray_with: Callable[[FakeServe], FakeServe],
) -> None:
    serve = ray_with(FakeServe("trial-a", gone_after_s=2.0))
    serve.coming = {1.0: "trial-b"}

    assert cluster.end_trials(wait_s=6.0) == ["trial-a is gone", "trial-b is gone"]


def test_deletion_that_a_dying_controller_lost_is_asked_for_again(
    ray_with: Callable[[FakeServe], FakeServe], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = ray_with(FakeServe("trial-a"))
    asked, delete = list[str](), serve.delete

    def forgetful(name: str, *, _blocking: bool) -> None:
        asked.append(name)
        if len(asked) > 1:
            delete(name, _blocking=_blocking)

    monkeypatch.setattr(serve, "delete", forgetful)

    assert cluster.end_trials(wait_s=6.0) == ["trial-a is gone"]


def test_trial_that_does_not_go_is_not_waited_for_longer(
    ray_with: Callable[[FakeServe], FakeServe],
) -> None:
    serve = ray_with(FakeServe("trial-a", gone_after_s=60.0))

    assert cluster.end_trials(wait_s=6.0) == ["trial-a is left"]
    assert serve.now_s <= 7.0


def test_reaper_that_does_not_answer_is_told_of_and_the_trials_go_all_the_same(
    ray_with: Callable[[FakeServe], FakeServe], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = ray_with(FakeServe("trial-a"))
    monkeypatch.setattr(cluster, "close_leases", silent(serve))

    with pytest.raises(TransientError) as caught:
        cluster.end_trials(wait_s=6.0)

    assert str(caught.value) == (
        "trial-a is gone; a trial that still comes up stays until its lease runs out: "
        "the reaper does not answer: it is busy"
    )
    assert serve.status().applications == []
    assert serve.now_s <= 6.5


@pytest.mark.parametrize(
    "error", [TransientError("it is away"), ray.exceptions.RayError("it died")]
)
def test_verdict_stands_whatever_fails_at_the_end(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def failing() -> list[str]:
        raise error

    monkeypatch.setattr(commands, "end_trials", failing)
    sink = io.StringIO()

    commands._end_trials(Printer(sink=sink, clock=FakeClock(), started_s=0.0))

    assert f"something of trials may be left, which `clean` shows: {error}" in sink.getvalue()


def test_verdict_stands_whatever_the_reaper_does(
    ray_with: Callable[[FakeServe], FakeServe], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = ray_with(FakeServe())
    monkeypatch.setattr(cluster, "close_leases", silent(serve))
    sink = io.StringIO()

    commands._end_trials(Printer(sink=sink, clock=FakeClock(), started_s=0.0))

    assert "something of trials may be left, which `clean` shows: a trial that" in sink.getvalue()
