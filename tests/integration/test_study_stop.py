"""A study that is stopped, whose MLflow hangs and whose Serve controller is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from demo_study import STAND_IN, STUDY, local_cluster

from infra.chaos.site import Site
from infra.demo import local_settings
from orchestrator.adapters.mlflow_tracker import MlflowTracker
from orchestrator.adapters.study_file import StudyFile, studies_dir
from orchestrator.config import load_config
from orchestrator.core.journal import BlockCheck
from orchestrator.journal import StudyState, check_journal
from orchestrator.resume import load_state

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),
]
FAST = [*STAND_IN, "load.streams=[1, 2]", "load.block_s=3"]
STOP_S = 60.0
ALL_THERE = BlockCheck(lost=(), double=(), unknown=())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with local_cluster(tmp_path_factory.mktemp("state")) as cluster:
        settings = [*FAST, *local_settings(cluster, load_config(STUDY, FAST))]
        yield Site(cluster=cluster, study=STUDY, settings=settings)


@dataclass
class Driver:
    """A study under way and what it says."""

    process: subprocess.Popen[str]
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            self.said.extend(self.process.stdout)

    def wait(self, is_there: Callable[[str], bool], limit_s: float = 240.0) -> None:
        deadline = time.monotonic() + limit_s
        while not is_there("".join(self.said)):
            assert time.monotonic() < deadline, "".join(self.said)
            assert self.process.poll() is None, "".join(self.said)
            time.sleep(0.1)

    def end(self, *signals: signal.Signals) -> float:
        """Send signals a second apart; return how long the end took."""
        begun = time.monotonic()
        for number in signals:
            self.process.send_signal(number)
            time.sleep(1.0)
        assert self.process.wait(2 * STOP_S) == 130, "".join(self.said)
        return time.monotonic() - begun


def state_of(site: Site) -> StudyState:
    (folder,) = studies_dir().glob("*")
    with StudyFile(folder.name, print) as file:
        return load_state(file)


def test_study_that_is_stopped_twice_with_a_tracker_that_hung_loses_no_block(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F17, G01: a SIGTERM, a stopped MLflow, a killed controller, and two Ctrl-Cs."""
    monkeypatch.setenv("SPECPILOT_STATE_DIR", str(site.cluster.state_dir))
    tracker = MlflowTracker(site.cluster.mlflow_uri, experiment=site.config.tracking.experiment)
    driver = Driver(site.begin("study"))
    driver.wait(lambda said: "tok/s" in said)

    assert driver.end(signal.SIGTERM) < STOP_S

    said = "".join(driver.said)
    assert "stopping: the trials end after their blocks" in said
    assert "cut off" not in said
    first = state_of(site)
    assert "to resume: python -m orchestrator study" in said
    assert f"--resume {first.study_id}" in said
    assert not trials(site)
    records = first.records or {}
    assert sum(map(len, records["measured"].values())) >= 2, "the block under way was finished"
    assert check_journal(first, tracker) == ALL_THERE

    driver = Driver(site.begin("study", "--resume", first.study_id))
    driver.wait(lambda said: "tok/s" in said)
    (mlflow,) = (server for server in site.cluster.servers if server.name == "mlflow")
    os.killpg(mlflow.process.pid, signal.SIGSTOP)
    try:
        assert site.kill_controller()
        num_ended = "".join(driver.said).count("done on node")
        driver.wait(lambda said: said.count("done on node") >= num_ended + 2)
        driver.wait(lambda said: "blocks wait for the tracker" in said)
    finally:
        os.killpg(mlflow.process.pid, signal.SIGCONT)
    driver.wait(lambda said: "the tracker has everything again" in said)

    assert driver.end(signal.SIGINT, signal.SIGINT) < STOP_S

    assert not trials(site), "".join(driver.said)
    found, state = check_journal(state_of(site), tracker), state_of(site)
    waiting = {e["block"]["block_id"] for e in (state.records or {})["pending"] if e["block"]}
    assert set(found.lost) <= waiting
    assert (found.double, found.unknown) == ((), ())
    race = state.race or {}
    assert len(race["boots"]) >= 2
    assert race["lost"] == []


def trials(site: Site) -> list[str]:
    """Return the applications of trials that are left; the reaper may take a moment more."""
    deadline = time.monotonic() + 20.0
    while True:
        left = [name for name in site.applications() if name.startswith("trial-")]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.5)
