"""A study that is over: what its trials still deploy on a local Ray goes, and production stays."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private import state as ray_state

from one_node.conftest import OneNode
from one_node.trials import (
    BASELINE,
    STUDY,
    declare,
    deploy,
    engine_of,
    has_reaper,
    reaper_on,
    spec,
    until,
)
from orchestrator.core.failures import FailedBoot, FailureKind
from serve_apps.engine import procfs
from serve_apps.engine.spec import trial_mark

with warnings.catch_warnings():  # Serve's own use of pydantic is deprecated
    warnings.simplefilter("ignore")
    from ray import serve

    from orchestrator import cluster
    from orchestrator.adapters.serve_reaper import (
        LEASE_S,
        REAPER_NAME,
        REAPER_NAMESPACE,
        Lease,
        close_leases,
        leases,
        open_leases,
        start_reaper,
    )

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(240),
    # Ray's own sockets and deprecated calls are not ours to judge.
    pytest.mark.filterwarnings("ignore"),
]

GONE_S = LEASE_S / 2
"""A look and Serve's end of an engine fit in; the end of a lease does not."""


@pytest.fixture
def state(one_node: OneNode) -> Iterator[Path]:
    """Return the state folder of a Ray with a reaper of its own."""
    with reaper_on(one_node):
        yield one_node.state


def trial_actor() -> Any:
    """Return a trial's process as Tune has it: of the study's job, which it may outlive."""

    class TrialActor:  # in here: the node's workers cannot import this file
        def take(self, name: str) -> str:
            """Take a lease; return why there is none."""
            try:
                Lease(name).start()
            except FailedBoot as error:
                return str(error)
            return ""

    return ray.remote(TrialActor).options(num_cpus=0).remote()


def earlier_reaper() -> Any:
    """Start a reaper that cannot be told of studies, and return it."""

    class Earlier:
        def renew(self, _app_name: str) -> None:
            """Extend a lease."""

    actor: Any = ray.remote(Earlier).options(
        name=REAPER_NAME, namespace=REAPER_NAMESPACE, lifetime="detached", num_cpus=0
    )
    return actor.remote()


def test_trial_that_deploys_after_the_last_sweep_is_ended_at_once(state: Path) -> None:
    open_leases("trial-")
    actor = trial_actor()
    assert ray.get(actor.take.remote("trial-there")) == ""
    deploy(trial_there=spec(state, "trial-there"), specpilot_v1=spec(state, None))
    assert ray.get(actor.take.remote("trial-late")) == ""

    swept = cluster.end_trials(wait_s=30)
    declare(trial_late=spec(state, "trial-late"))

    assert swept == ["trial-there is gone"]
    until(lambda: "trial-late" in serve.status().applications)
    until(lambda: "trial-late" not in serve.status().applications, GONE_S)
    until(lambda: not procfs.members(None, trial_mark(f"{STUDY}/trial-late")), GONE_S)
    assert "the study of trial-next is over" in ray.get(actor.take.remote("trial-next"))
    assert leases() == []
    assert serve.status().applications["specpilot-v1"].status == "RUNNING"
    serve.delete("specpilot-v1")


def test_engine_of_a_study_that_is_over_is_not_deployed(state: Path) -> None:
    open_leases("trial-")
    close_leases(wait_s=10)
    engine = engine_of(state, "trial-over")

    with pytest.raises(FailedBoot, match="the study of trial-over is over") as caught:
        engine.start(BASELINE, lambda _text: None)
    engine.stop()

    assert caught.value.failure.kind is FailureKind.CUT_SHORT
    assert "trial-over" not in serve.status().applications
    assert list((state / "boots").glob("*")) == []


def test_end_of_a_study_reaches_a_reaper_that_has_just_died(state: Path) -> None:
    open_leases("trial-")
    reaper = start_reaper("trial-")
    living = ray_state.actors(actor_state_name="ALIVE").values()
    (actor,) = (actor for actor in living if actor["Name"] == REAPER_NAME)
    os.kill(actor["Pid"], signal.SIGKILL)

    close_leases(wait_s=60)

    assert not ray.get(reaper.renew.remote("trial-a", "01000000"))


@pytest.mark.usefixtures("state")
def test_study_replaces_a_reaper_of_an_earlier_version() -> None:
    ray.kill(start_reaper("trial-"))
    until(lambda: not has_reaper())
    ray.get(earlier_reaper().renew.remote("trial-a"))

    open_leases("trial-")

    assert leases() == []
    close_leases(wait_s=10)
