"""Leases: who loses an application, and what is forgotten."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import GetTimeoutError, RayActorError

from orchestrator.adapters import serve_reaper
from orchestrator.adapters.serve_reaper import Lease, Reaper
from orchestrator.core.failures import CLASSES, FailedBoot, FailureClass, FailureKind
from orchestrator.errors import TransientError

ONE, TWO = "01000000", "02000000"
"""Ids of jobs, which are drivers of studies."""


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
    assert reaper.renew("trial-a", ONE)

    assert reaper.look(1030.0) == []
    assert reaper.leases() == ["trial-a"]
    assert reaper.look(1061.0) == []
    applications.append("trial-a")
    assert reaper.look(1062.0) == [], "tried again, it has a whole lease"


def test_application_that_does_not_go_is_deleted_again_until_it_has_gone(
    applications: list[str],
) -> None:
    applications.append("trial-a")
    reaper = Reaper("trial-", lease_s=60.0)
    reaper.look(1000.0)

    assert reaper.look(1061.0) == ["trial-a"]
    assert reaper.look(1066.0) == ["trial-a"], "the controller that was asked has died"
    applications.clear()
    assert reaper.look(1071.0) == []


def test_name_that_a_trial_takes_again_before_it_is_deleted_is_left_to_it(
    applications: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    applications.append("trial-a")
    deleted: list[str] = []
    serve = SimpleNamespace(
        status=lambda: SimpleNamespace(applications=applications),
        delete=lambda name, **_options: deleted.append(name),
    )
    monkeypatch.setattr(serve_reaper, "serve", serve)
    reaper = Reaper("trial-", lease_s=60.0)
    reaper.look(1000.0)
    (name,) = reaper.look(1061.0)

    assert reaper.renew(name, ONE)
    reaper._delete(name)
    assert deleted == []

    reaper.release(name)
    reaper._delete(name)
    assert deleted == ["trial-a"]


def test_study_that_is_over_loses_what_it_has_and_what_comes_up_later(
    applications: list[str],
) -> None:
    reaper = Reaper("trial-", lease_s=60.0)
    reaper.open(ONE)
    assert reaper.renew("trial-a", ONE)
    assert reaper.renew("trial-b", ONE)  # which is about to be deployed
    applications += ["trial-a", "specpilot-v1"]
    assert reaper.look(1001.0) == []

    reaper.close(ONE)

    assert reaper.leases() == []
    assert reaper.look(1002.0) == ["trial-a"]
    assert not reaper.renew("trial-a", ONE), "its actor lives on, and beats"
    assert not reaper.renew("trial-c", ONE)
    applications[:] = ["specpilot-v1", "trial-b"]
    assert reaper.look(1007.0) == ["trial-b"]
    assert reaper.look(9000.0) == ["trial-b"], "Serve's controller came back with it"


def test_study_that_begins_has_its_trials_and_ends_those_of_an_earlier_one(
    applications: list[str],
) -> None:
    reaper = Reaper("trial-", lease_s=60.0)
    reaper.open(ONE)
    assert reaper.renew("trial-a", ONE)  # its driver is killed, and says nothing
    applications += ["trial-a"]
    assert reaper.look(1001.0) == []

    reaper.open(TWO)
    assert reaper.renew("trial-b", TWO)
    applications += ["trial-b", "specpilot-v1"]
    reaper.close(ONE)  # which was on its way for long

    assert not reaper.renew("trial-a", ONE)
    assert reaper.look(1010.0) == ["trial-a"]
    assert reaper.leases() == ["trial-b"]
    assert reaper.look(1061.0) == ["trial-a", "trial-b"], "not renewed for a minute"


def test_study_that_is_opened_twice_keeps_its_leases(applications: list[str]) -> None:
    reaper = Reaper("trial-", lease_s=60.0)
    reaper.open(ONE)
    assert reaper.renew("trial-a", ONE)
    applications.append("trial-a")

    reaper.open(ONE)

    assert reaper.look(1001.0) == []
    reaper.close(ONE)
    reaper.open(ONE)
    assert reaper.look(1002.0) == ["trial-a"]


def test_study_that_ends_while_serve_is_asked_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that is being restarted answers late."""
    monkeypatch.setattr("threading.Thread.start", lambda _thread: None)
    reaper = Reaper("trial-", lease_s=60.0)
    reaper.open(ONE)
    assert reaper.renew("trial-a", ONE)

    def status() -> Any:
        reaper.close(ONE)
        return SimpleNamespace(applications=["trial-a"])

    monkeypatch.setattr(serve_reaper, "serve", SimpleNamespace(status=status))

    assert reaper.look(0.0) == ["trial-a"]


def test_driver_that_is_killed_leaves_its_trials_a_lease(applications: list[str]) -> None:
    reaper = Reaper("trial-", lease_s=60.0)
    reaper.open(ONE)
    assert reaper.renew("trial-a", ONE)
    applications.append("trial-a")

    assert reaper.look(1060.0) == []
    assert reaper.look(1061.0) == ["trial-a"]


def test_reaper_that_was_restarted_ends_no_trial_of_a_living_study(
    applications: list[str],
) -> None:
    applications += ["trial-a", "trial-dead"]
    restarted = Reaper("trial-", lease_s=60.0)

    assert restarted.look(1000.0) == []
    assert restarted.renew("trial-a", ONE)
    assert restarted.renew("trial-b", ONE)
    restarted.close(ONE)
    assert restarted.look(1001.0) == ["trial-a", "trial-dead"]
    assert not restarted.renew("trial-a", ONE)


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


class Rays:
    """Ray as the module sees it: one name, and answers in their order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: object) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Any, ...]] = []
        job = SimpleNamespace(get_job_id=lambda: ONE)
        monkeypatch.setattr(serve_reaper, "_reaper", lambda: self)
        monkeypatch.setattr("ray.get_runtime_context", lambda: job)
        monkeypatch.setattr("ray.get", self.get)
        self.now_s = 0.0
        monkeypatch.setattr("time.monotonic", lambda: self.now_s)
        monkeypatch.setattr("time.sleep", self.wait)

    def __getattr__(self, method: str) -> Any:
        if method not in ("open", "close", "renew", "release", "leases"):
            raise AttributeError(method)
        return SimpleNamespace(remote=lambda *args: self.asked.append((method, *args)))

    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    def get(self, _ref: object, timeout: float) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, GetTimeoutError):
            self.wait(timeout)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_trial_of_a_study_that_is_over_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    rays = Rays(monkeypatch, False)
    lease = Lease("trial-a")

    with pytest.raises(FailedBoot, match=r"^the study of trial-a is over") as caught:
        lease.start()
    lease.end()

    assert caught.value.failure.kind is FailureKind.CUT_SHORT
    assert CLASSES[caught.value.failure.kind] is FailureClass.TRANSIENT
    assert rays.asked == [("renew", "trial-a", ONE)]


def test_trial_whose_reaper_does_not_answer_does_not_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Rays(monkeypatch, GetTimeoutError("no answer in time"))

    with pytest.raises(TransientError, match=r"^the reaper does not answer: no answer in time$"):
        Lease("trial-a").start()


def test_trial_without_a_reaper_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Any:
        raise ValueError("Failed to look up actor\nwith more lines")

    Rays(monkeypatch)
    monkeypatch.setattr(serve_reaper, "_reaper", none)

    with pytest.raises(TransientError, match=r"^there is no reaper: Failed to look up actor$"):
        Lease("trial-a").start()


def test_ray_that_does_not_name_the_reaper_is_not_one_without_a_reaper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its head does not answer for a while."""

    def silent(_name: str, namespace: str) -> Any:
        del namespace
        raise GetTimeoutError("timed out\nwith more lines")

    monkeypatch.setattr("ray.get_actor", silent)
    lease = Lease("trial-a")

    for ask in (serve_reaper.leases, lambda: serve_reaper.close_leases(wait_s=0.0), lease.start):
        with pytest.raises(TransientError, match=r"^Ray does not name the reaper: timed out$"):
            ask()
    assert serve_reaper.release("trial-a") == "Ray does not name the reaper: timed out"


def test_end_of_a_study_is_told_again_to_a_reaper_that_is_being_restarted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rays = Rays(monkeypatch, RayActorError(), RayActorError(), None)

    serve_reaper.close_leases(wait_s=2.0)

    assert rays.asked == [("close", ONE)] * 3


@pytest.mark.parametrize("error", [GetTimeoutError("no answer in time"), RayActorError()])
def test_end_of_a_study_waits_for_no_reaper_for_ever(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    rays = Rays(monkeypatch, *[error] * 100)

    with pytest.raises(TransientError, match=r"^the reaper does not answer: .+"):
        serve_reaper.close_leases(wait_s=2.0)

    assert 1.5 < rays.now_s < 2.2


def test_reaper_of_an_earlier_version_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    rays, killed = Rays(monkeypatch, None), list[object]()
    earlier = SimpleNamespace(renew=None, release=None)
    there: list[object] = [earlier, earlier, rays]
    monkeypatch.setattr(serve_reaper, "_created", lambda _prefix: there.pop(0))
    monkeypatch.setattr("ray.kill", killed.append)

    serve_reaper.open_leases("trial-")

    assert killed == [earlier, earlier]
    assert rays.asked == [("open", ONE)]


def test_reaper_of_an_earlier_version_that_stays_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    Rays(monkeypatch)
    monkeypatch.setattr(serve_reaper, "_created", lambda _prefix: SimpleNamespace(renew=None))
    monkeypatch.setattr("ray.kill", lambda _actor: None)

    with pytest.raises(TransientError, match="of an earlier version and does not end"):
        serve_reaper.open_leases("trial-")
