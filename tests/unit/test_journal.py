"""The journal of a study: nothing measured is lost, and nothing is there twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from core_samples import make_block, make_boot
from hypothesis import given
from hypothesis import strategies as st
from journal_scene import ASKS, BEST, GOOD, ID, PLAN, Disk, Driver
from ray.tune.search import Searcher

from orchestrator.core.build_verdict import VerdictSettings, decide_builds
from orchestrator.core.journal import BlockCheck, Entry, check_blocks
from orchestrator.core.promotion import GateSettings
from orchestrator.core.proof_gates import Proofs
from orchestrator.core.types import Block, BootStatus
from orchestrator.errors import ConfigError, TransientError
from orchestrator.fakes.tracker import FakeTracker
from orchestrator.journal import Journal, StudyState, check_journal
from orchestrator.race_searcher import RaceSearcher

ALL_THERE = BlockCheck(lost=(), double=(), unknown=())


def assert_counted_once(driver: Driver) -> None:
    """See that the study ends, and that each boot and block is there once, whoever died before."""
    searcher, raced = driver.run()
    boots = {boot.trial_id: boot for boot in (*raced.boots, *raced.proofs)}
    assert len(boots) == len(raced.boots) + len(raced.proofs)
    assert len(set(driver.issued)) == len(driver.issued), "a number was used twice"
    runs = {run.name: run for run in driver.tracker.runs.values() if run.parent_id}
    assert set(boots) <= set(runs)
    for name, run in runs.items():
        if name in boots:
            is_ok = boots[name].status is BootStatus.OK
            assert list(run.blocks) == [block.block_id for block in boots[name].blocks]
            assert run.status == ("FINISHED" if is_ok else "FAILED")
            assert boots[name].run_id == run.run_id
            assert run.params["arm"] == boots[name].arm.label
        else:
            assert run.status == "FAILED", "it is a dead driver's"
    assert check_journal(driver.state, driver.tracker) == ALL_THERE
    stored = driver.tracker.block_counts(driver.state.run_id)
    assert driver.reached <= stored.keys()
    assert {block.block_id for boot in boots.values() for block in boot.blocks} <= stored.keys()
    assert driver.state.has_verdict
    found = decide_builds(
        PLAN.question,
        raced.boots,
        settings=VerdictSettings(gates=GateSettings(), confidence=0.95, premises={}),
        choices=raced.choices,
        proofs=Proofs(boots=raced.proofs),
    )
    assert found.production.kind in ("promote", "keep", "no_difference", "no_result")
    assert found.production.winner in (None, *(choice.arm for choice in raced.choices.values()))
    assert searcher.stop_reason
    assert len(raced.boots) <= PLAN.race.max_boots


@pytest.mark.parametrize("batch", range(10))
def test_study_with_killed_drivers_and_a_moody_tracker_has_each_block_once(batch: int) -> None:
    """F17, E09, G01: what was measured is in the tracker once, by its id; nothing is RUNNING."""
    drivers = [Driver(seed) for seed in range(batch * 10, batch * 10 + 10)]
    for driver in drivers:
        assert_counted_once(driver)

    assert sum(driver.num_kills for driver in drivers) > 30
    assert sum(driver.tracker.num_failed for driver in drivers) > 50


@pytest.mark.parametrize("seed", range(3))
def test_study_of_whole_trials_with_killed_drivers_has_each_block_once(seed: int) -> None:
    assert_counted_once(Driver(seed, is_whole=True))


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_driver_that_only_has_the_verdict_left_to_store_boots_nothing(seed: int) -> None:
    driver = Driver(seed)
    before, _ = driver.run()
    after = RaceSearcher(PLAN, lambda _id, _name: None)

    after.set_out_from(driver.state.race or {})

    assert after.suggest("new") == Searcher.FINISHED
    assert (after.boots, after.choices) == (before.boots, before.choices)
    assert after.stop_reason == before.stop_reason


def test_blocks_of_a_boot_that_ended_with_its_driver_stay_in_its_failed_run() -> None:
    driver = Driver(5)
    driver.run()

    kept = {boot["trial_id"] for boot in (driver.state.race or {})["boots"]}
    dead = [run for run in driver.tracker.runs.values() if run.parent_id and run.name not in kept]

    assert any(run.blocks and run.status == "FAILED" for run in dead)


class AwayTracker(FakeTracker):
    """A tracker that takes nothing while it is away, and nothing ever of some trials."""

    def __init__(self, *, refused: str = "") -> None:
        super().__init__()
        self.is_away = False
        self._refused = refused

    def open_trial(self, study_run_id: str, trial_id: str, params: Any) -> str:
        if self.is_away or trial_id == self._refused:
            raise TransientError("away")
        return super().open_trial(study_run_id, trial_id, params)

    def log_block(self, run_id: str, block: Block) -> None:
        if self.is_away:
            raise TransientError("away")
        super().log_block(run_id, block)


RACE: dict[str, Any] = {"boots": [], "proofs": {}}


def journal_of(tracker: FakeTracker, disk: Disk | None = None) -> tuple[Journal, list[str]]:
    said: list[str] = []
    run_id = tracker.open_study(ID, ID, {})
    state = StudyState(study_id=ID, run_id=run_id, asks=ASKS)
    return Journal(disk or Disk(lambda: None), state, tracker, said.append), said


def block_of(trial_id: str, index: int) -> Entry:
    block = replace(make_block(BEST, index=index), block_id=f"{trial_id}/{index}")
    return Entry(trial_id=trial_id, block=block)


def test_blocks_wait_for_a_tracker_that_is_away_and_come_in_their_order() -> None:
    tracker, disk = AwayTracker(), Disk(lambda: None)
    journal, said = journal_of(tracker, disk)
    tracker.is_away = True
    for index in range(3):
        journal.keep(RACE, [block_of("t", index)])
        assert not journal.replay()
    assert len(said) == 1
    assert "away" in said[0]
    assert len((disk.read()["records"])["pending"]) == 3

    tracker.is_away = False
    assert journal.replay()

    (run,) = (run for run in tracker.runs.values() if run.parent_id)
    assert list(run.blocks) == ["t/0", "t/1", "t/2"]
    assert len(said) == 2
    journal.keep(RACE)
    assert disk.read()["records"]["pending"] == []
    assert check_journal(journal.state, tracker) == ALL_THERE


def test_interrupt_while_a_block_is_taken_loses_no_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second Ctrl-C comes anywhere; the block is handed over again, or is not measured at all."""
    tracker, disk = FakeTracker(), Disk(lambda: None)
    journal, _ = journal_of(tracker, disk)
    journal.keep(RACE, [block_of("t", 0)])

    def interrupted(_value: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("orchestrator.journal.to_plain", interrupted)
        with pytest.raises(KeyboardInterrupt):
            journal.keep(RACE, [block_of("t", 1)])
    journal.keep(RACE)
    assert disk.read()["records"]["measured"] == {"t": ["t/0"]}
    journal.keep(RACE, [block_of("t", 1)])

    assert journal.replay()
    assert check_journal(journal.state, tracker) == ALL_THERE
    (run,) = (run for run in tracker.runs.values() if run.parent_id)
    assert list(run.blocks) == ["t/0", "t/1"]


def test_new_driver_tells_what_the_old_one_could_not() -> None:
    tracker, disk = AwayTracker(), Disk(lambda: None)
    journal, _ = journal_of(tracker, disk)
    tracker.is_away = True
    boot = replace(make_boot(BEST, [make_block(BEST)]), trial_id="t")
    opening = Entry(trial_id="t", params={"arm": BEST.label})
    journal.keep(RACE, [opening, Entry(trial_id="t", boot=boot, artifacts={"a.txt": "x"})])
    assert not journal.replay()
    tracker.is_away = False

    again, _ = journal_of(tracker, disk)
    again = Journal(disk, StudyState(**disk.read()), tracker)
    assert again.replay()

    (run,) = (run for run in tracker.runs.values() if run.parent_id)
    assert (run.status, run.params["arm"], run.artifacts) == (
        "FINISHED",
        BEST.label,
        {"a.txt": "x"},
    )
    assert again.with_run(boot).run_id == run.run_id


def test_what_the_tracker_refuses_of_one_trial_keeps_no_other_back() -> None:
    tracker = AwayTracker(refused="bad")
    journal, _ = journal_of(tracker)
    journal.keep(RACE, [block_of("bad", 0), block_of("good", 0), block_of("bad", 1)])

    assert not journal.replay()

    assert tracker.block_counts(journal.state.run_id) == {"good/0": 1}
    assert check_journal(journal.state, tracker).lost == ("bad/0", "bad/1")
    assert journal.flush(0.01) is False


def test_result_that_comes_twice_is_told_once() -> None:
    tracker = FakeTracker()
    journal, _ = journal_of(tracker)
    boot = replace(make_boot(GOOD, [make_block(GOOD)]), trial_id="t")
    told = [block_of("t", 0), Entry(trial_id="t", boot=boot)]
    journal.keep(RACE, told)
    journal.keep(RACE, told)

    records = journal.state.records or {}
    assert len(records["pending"]) == 2
    assert Counter(records["measured"]["t"]).most_common(1)[0][1] == 1


def test_thread_tells_the_tracker_by_itself() -> None:
    tracker = FakeTracker()
    journal, _ = journal_of(tracker)
    journal.start()
    journal.keep(RACE, [block_of("t", 0)])

    assert journal.flush(30.0)

    assert tracker.block_counts(journal.state.run_id) == {"t/0": 1}


def test_thread_lives_on_whatever_a_tracker_raises() -> None:
    class Broken(FakeTracker):
        num_calls = 0

        def open_trial(self, study_run_id: str, trial_id: str, params: Any) -> str:
            self.num_calls += 1
            if self.num_calls == 1:
                raise RuntimeError("a bug")
            if self.num_calls == 2:
                raise ConfigError("tracking.experiment", "it was deleted", "restore it")
            return super().open_trial(study_run_id, trial_id, params)

    tracker = Broken()
    journal, _ = journal_of(tracker)
    journal.start()
    for index in range(3):
        journal.keep(RACE, [block_of("t", index)])
        journal.flush(0.2)

    assert journal.flush(30.0)
    assert tracker.block_counts(journal.state.run_id) == {"t/0": 1, "t/1": 1, "t/2": 1}


ids = st.lists(st.sampled_from("abcdefgh"), unique=True)


@given(measured=ids, stored=st.lists(st.sampled_from("abcdefgh")))
def test_check_names_each_block_that_is_not_there_exactly_once(
    measured: list[str], stored: list[str]
) -> None:
    counts = Counter(stored)

    found = check_blocks({"t": measured[:3], "u": measured[3:]}, counts)

    assert set(found.lost) == {item for item in measured if counts[item] == 0}
    assert set(found.double) == {item for item, count in counts.items() if count > 1}
    assert set(found.unknown) == set(stored) - set(measured)
    assert (found == ALL_THERE) == (sorted(measured) == sorted(stored))
