"""What a study does with a winner that passed every gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from core_samples import make_arm, make_block, make_boot
from journal_scene import Disk

from orchestrator.conduct import Conduct
from orchestrator.config import load_config
from orchestrator.core.journal import Entry
from orchestrator.core.types import Arm
from orchestrator.errors import ConfigError, PromotionError, TransientError
from orchestrator.events import Printer
from orchestrator.fakes.tracker import FakeRegistry, FakeTracker
from orchestrator.fakes.world import FakeClock
from orchestrator.journal import Journal, StudyState
from orchestrator.ports import Version
from orchestrator.study import RaceResult

DEMO = Path("conf/study/demo.yaml")
WINNER = Version(model_name="specpilot-demo", version=4, config={}, tags={}, run_id="run")


@dataclass
class Deliveries:
    """Remembers what was to be promoted."""

    error: Exception | None = None
    promoted: list[int] = field(default_factory=list)

    def promote(self, version: Version) -> None:
        if self.error is not None:
            raise self.error
        self.promoted.append(version.version)


def deliver(deliveries: Deliveries, *settings: str) -> tuple[bool, str]:
    """Return whether the winner was promoted and what was said."""
    sink = StringIO()
    prepared: Any = SimpleNamespace(config=load_config(DEMO, list(settings)))
    nothing: Any = None
    tools: Any = deliveries
    conduct = Conduct(
        prepared=prepared,
        cluster=nothing,
        study_id="study",
        run_id="run",
        premises={},
        champion=None,
        tracker=FakeTracker(),
        registry=FakeRegistry(),
        delivery=tools,
        printer=Printer(sink=sink, clock=FakeClock(), started_s=0.0),
        journal=nothing,
    )
    return conduct._deliver(WINNER), sink.getvalue()


def test_winner_is_promoted_by_itself() -> None:
    deliveries = Deliveries()

    assert deliver(deliveries)[0] is True
    assert deliveries.promoted == [4]


@pytest.mark.parametrize("setting", ["policy.approval=manual", "policy.promote=never"])
def test_winner_waits_as_challenger_where_a_person_decides(setting: str) -> None:
    deliveries = Deliveries()

    promoted, said = deliver(deliveries, setting)

    assert promoted is False
    assert deliveries.promoted == []
    assert "version 4 waits as challenger" in said
    assert setting in said


@pytest.mark.parametrize(
    "error",
    [PromotionError("it is slow"), ConfigError("node.engine_token", "no board is free", "wait")],
)
def test_promotion_that_fails_ends_the_study_without_one(error: Exception) -> None:
    promoted, said = deliver(Deliveries(error=error))

    assert promoted is False
    assert f"not promoted: {error}" in said


def test_delivery_that_the_tracker_cuts_off_does_not_undo_the_verdict() -> None:
    promoted, said = deliver(Deliveries(error=TransientError("MLflow: away")))

    assert promoted is False
    assert "not promoted: MLflow: away" in said


def test_driver_that_resumes_registers_no_version_twice() -> None:
    """The one before may have been killed between any two of its calls."""
    config = load_config(DEMO, [])
    build = config.engine.build
    arms = [replace(make_arm(depth), engine_build=build) for depth in (5, 7)]
    boots = [replace(make_boot(arm, [make_block(arm)]), run_id="run") for arm in arms]
    nothing: Any = None
    prepared: Any = SimpleNamespace(config=config)
    premises: Any = {build: SimpleNamespace(to_dict=dict)}
    registry = FakeRegistry()
    conduct = Conduct(
        prepared=prepared,
        cluster=nothing,
        study_id="study",
        run_id="run",
        premises=premises,
        champion=None,
        tracker=FakeTracker(),
        registry=registry,
        delivery=nothing,
        printer=Printer(sink=StringIO(), clock=FakeClock(), started_s=0.0),
        journal=nothing,
    )

    def number(driver: Conduct, arm: Arm) -> int:
        verdict: Any = SimpleNamespace(winner=arm, sentences=["fast"], gates=())
        return driver._register(boots, verdict).version

    assert [number(conduct, arm) for arm in arms] == [1, 2]
    assert [number(conduct, arm) for arm in arms] == [1, 2]
    assert number(replace(conduct, study_id="another"), arms[0]) == 3


class AwayTracker(FakeTracker):
    """A tracker that takes no verdict while it is away."""

    is_away = True

    def open_study(self, study_id: str, name: str, params: Mapping[str, object]) -> str:
        if self.is_away and self.runs:
            raise TransientError("MLflow: away")
        return super().open_study(study_id, name, params)

    def open_trial(self, study_run_id: str, trial_id: str, params: Mapping[str, object]) -> str:
        if self.is_away:
            raise TransientError("MLflow: away")
        return super().open_trial(study_run_id, trial_id, params)

    def close_study(self, run_id: str, **rest: Any) -> None:
        if self.is_away:
            raise TransientError("MLflow: away")
        super().close_study(run_id, **rest)


@pytest.mark.parametrize("is_told", [True, False])
def test_verdict_is_printed_and_kept_where_the_tracker_is_away_and_stored_by_the_next_driver(
    monkeypatch: pytest.MonkeyPatch, *, is_told: bool
) -> None:
    monkeypatch.setattr("orchestrator.conduct.TRACKER_S", 0.01)
    tracker, sink, nothing = AwayTracker(), StringIO(), cast("Any", None)
    run_id = tracker.open_study("study", "study", {})
    disk = Disk(lambda: None)
    journal = Journal(disk, StudyState(study_id="study", run_id=run_id, asks={}), tracker)
    told = [] if is_told else [Entry(trial_id="t", block=make_block(make_arm()))]
    journal.keep({"boots": [], "proofs": {}}, told)
    config = load_config(DEMO, [])
    build = config.engine.build
    prepared: Any = SimpleNamespace(config=config, arms=(replace(make_arm(), engine_build=build),))
    conduct = Conduct(
        prepared=prepared,
        cluster=nothing,
        study_id="study",
        run_id=run_id,
        premises={},
        champion=None,
        tracker=tracker,
        registry=FakeRegistry(),
        delivery=nothing,
        printer=Printer(sink=sink, clock=FakeClock(), started_s=0.0),
        journal=journal,
    )
    raced = RaceResult(boots=(), choices={})

    with pytest.raises(TransientError, match="away"):
        conduct.conclude(raced)

    assert "no boot of any arm has a score" in sink.getvalue()
    kept = disk.read()
    assert "no boot of any arm has a score" in kept["verdict"]
    assert kept["has_verdict"] is False
    assert tracker.runs[run_id].status == "RUNNING"

    tracker.is_away = False
    again = Journal(disk, StudyState(**kept), tracker)
    again.start()
    assert replace(conduct, journal=again).conclude(raced) is False
    assert tracker.runs[run_id].status == "FINISHED"
    assert len(tracker.block_counts(run_id)) == len(told)
    assert disk.read()["has_verdict"] is True
