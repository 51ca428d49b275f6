"""The race as Tune drives it, in memory: no Ray runs here."""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from core_samples import BASELINE, make_arm, make_block, make_boot, make_facts
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.tune.search import Searcher
from study_stage import ARMS, RACE, WEIGHTS, Cluster, make_plan, result_of

from orchestrator.core.codec import from_plain, to_plain
from orchestrator.core.lossless.judge import judge
from orchestrator.core.proof import MAX_CHOICES
from orchestrator.core.proof_gates import ProofDemands, TextFinding
from orchestrator.core.types import Arm, Boot, BootStatus, ProofPart
from orchestrator.events import Pace, Printer
from orchestrator.fakes.board import BootFault, Faults
from orchestrator.fakes.world import FakeClock
from orchestrator.incumbent import with_incumbent
from orchestrator.ports import Finding
from orchestrator.race_searcher import RaceSearcher, StudyPlan
from orchestrator.study_progress import Progress
from orchestrator.trial_text import describe_end


def make_searcher(plan: StudyPlan | None = None) -> RaceSearcher:
    return RaceSearcher(plan or make_plan(), lambda _trial, _name: None)


def drive(
    searcher: RaceSearcher, cluster: Cluster, ids: Iterator[int], *, parallel: int = 1
) -> Iterator[tuple[Arm, int]]:
    """Do what Tune does, to the end of the race; yield every boot when it is issued."""
    running: dict[str, dict[str, Any]] = {}
    while True:
        trial_id = f"t{next(ids)}"
        config = searcher.suggest(trial_id) if len(running) < parallel else None
        if config == Searcher.FINISHED:
            assert not running
            return
        if isinstance(config, dict):
            yield from_plain(Arm, config["arm"]), config["replicate"]
            running[trial_id] = config
            continue
        assert running, "the race waits for nothing"
        first = next(iter(running))
        searcher.on_trial_complete(first, cluster.boot(first, running.pop(first)))


def race(
    faults: Mapping[Arm, Faults] | None = None,
    plan: StudyPlan | None = None,
    *,
    parallel: int = 1,
) -> tuple[RaceSearcher, list[tuple[Arm, int]]]:
    searcher = make_searcher(plan)
    issued = list(drive(searcher, Cluster(faults or {}), count(), parallel=parallel))
    return searcher, issued


def test_race_covers_all_arms_and_gives_the_choice_fresh_boots() -> None:
    searcher, issued = race()

    assert {arm for arm, _ in issued[:5]} == set(ARMS)
    boots = Counter(arm for arm, _ in issued)
    assert boots[BASELINE] == 2, "the reference is measured again beside the choice"
    assert searcher.choice is not None
    assert searcher.choice.arm.rejection_sample_method == "block"
    fresh = [
        boot
        for boot in searcher.boots
        if boot.arm == searcher.choice.arm and boot.trial_id not in searcher.choice.chosen_by
    ]
    assert len(fresh) == 2
    assert all(boot.status is BootStatus.OK for boot in searcher.boots)
    assert searcher.stop_reason == searcher.choice.reason
    assert searcher.running == 0


def test_race_numbers_an_arms_boots_from_0() -> None:
    searcher, issued = race()

    for arm in ARMS:
        numbers = [number for item, number in issued if item == arm]
        assert numbers == list(range(len(numbers)))
    assert [(boot.arm, boot.replicate) for boot in searcher.boots] == issued


def test_race_on_two_nodes_covers_the_same_arms_and_ends() -> None:
    searcher, issued = race(parallel=2)

    assert {arm for arm, _ in issued} == set(ARMS)
    assert searcher.choice is not None


def test_race_on_two_nodes_spreads_the_boots_of_those_it_compares_over_both() -> None:
    """What nodes differ by must not pass for a difference of arms."""
    searcher, cluster = make_searcher(), Cluster({})
    running: dict[str, tuple[str, dict[str, Any]]] = {}
    for number in count():
        config = searcher.suggest(f"t{number}") if len(running) < 2 else None
        if config == Searcher.FINISHED:
            break
        if isinstance(config, dict):
            free = min({"a", "b"} - {node for node, _ in running.values()})
            running[f"t{number}"] = (free, config)
            continue
        trial_id = next(iter(running))
        node, config = running.pop(trial_id)
        result = cluster.boot(trial_id, config)
        boot = replace(from_plain(Boot, json.loads(result["boot"])), node_id=node)
        searcher.on_trial_complete(trial_id, {**result, "boot": json.dumps(to_plain(boot))})

    assert searcher.choice is not None
    for arm in (searcher.choice.arm, BASELINE):
        assert {boot.node_id for boot in searcher.boots if boot.arm == arm} == {"a", "b"}


def test_issued_boots_are_told_at_once() -> None:
    told: list[tuple[str, str]] = []
    searcher = RaceSearcher(make_plan(), lambda trial_id, name: told.append((trial_id, name)))

    config = searcher.suggest("t0")

    assert isinstance(config, dict)
    assert told == [("t0", f"{from_plain(Arm, config['arm']).label} (boot 1)")]
    assert searcher.running == 1


def test_arm_that_cannot_run_gets_one_boot_and_is_out() -> None:
    best = make_arm(7, "probabilistic", "block")

    searcher, issued = race({best: Faults(boot=BootFault.INFEASIBLE)})

    assert Counter(arm for arm, _ in issued)[best] == 1
    assert searcher.choice is not None
    assert searcher.choice.arm != best


def test_arm_that_is_not_in_force_gets_one_boot_and_is_out() -> None:
    best = make_arm(7, "probabilistic", "block")

    _, issued = race({best: Faults(ignored_keys=("rejection_sample_method",))})

    assert Counter(arm for arm, _ in issued)[best] == 1


def test_failed_boot_is_made_good_once() -> None:
    best = make_arm(7, "probabilistic", "block")

    searcher, issued = race({best: Faults(boot=BootFault.TRANSIENT, failing_boots=1)})

    ends = [boot.status for boot in searcher.boots if boot.arm == best]
    assert ends[:2] == [BootStatus.FAILED, BootStatus.OK]
    assert set(ends[1:]) == {BootStatus.OK}
    assert Counter(arm for arm, _ in issued)[best] == len(ends)


def test_arm_whose_boots_keep_failing_is_not_retried_for_ever() -> None:
    """A17: no endless retry."""
    best = make_arm(7, "probabilistic", "block")

    _, issued = race({best: Faults(boot=BootFault.TRANSIENT)})

    assert Counter(arm for arm, _ in issued)[best] == 2


def test_race_without_any_arm_that_runs_ends_and_says_so() -> None:
    searcher, issued = race({arm: Faults(boot=BootFault.INFEASIBLE) for arm in ARMS})

    assert len(issued) == 5
    assert searcher.stop_reason == "no arm can run here"


def test_arguments_that_no_arm_can_have_end_the_study_after_two_boots() -> None:
    kept: list[Mapping[str, Any]] = []
    searcher = RaceSearcher(
        make_plan(), lambda _trial, _name: None, keep=lambda race, _told: kept.append(race)
    )
    cluster = Cluster({arm: Faults(boot=BootFault.REFUSED) for arm in ARMS})

    issued = [arm for arm, _ in drive(searcher, cluster, count())]

    assert len(issued) == 2
    assert BASELINE in issued
    assert searcher.fault is not None
    assert "unrecognized arguments: --nonsense" in str(searcher.fault.error())
    # Once the fault is put right the same study may go on: no arm is out of it.
    resumed = make_searcher()
    resumed.set_out_from(kept[-1])
    again = [arm for arm, _ in drive(resumed, Cluster({}), count(10))]
    assert set(again) == set(ARMS)
    assert resumed.choice is not None


def test_arm_whose_arguments_are_refused_is_out_and_the_others_go_on() -> None:
    refused = make_arm(7, "greedy", "block")

    searcher, issued = race({refused: Faults(boot=BootFault.REFUSED)})

    assert Counter(arm for arm, _ in issued)[refused] == 1
    assert searcher.fault is None
    assert searcher.choice is not None


def first_arms(number: int, seed: int) -> list[Arm]:
    """Return the arms that a coverage begins with."""
    searcher = make_searcher(make_plan(race=replace(RACE, seed=seed)))
    orders = [searcher.suggest(f"t{i}") for i in range(number)]
    return [from_plain(Arm, order["arm"]) for order in orders if isinstance(order, dict)]


def test_refusal_is_followed_by_the_baseline() -> None:
    seed = next(seed for seed in count() if BASELINE not in first_arms(2, seed))
    first, usual = first_arms(2, seed)

    _, issued = race(
        {first: Faults(boot=BootFault.REFUSED)}, make_plan(race=replace(RACE, seed=seed))
    )

    assert [arm for arm, _ in issued[:3]] == [first, BASELINE, usual]


def test_spent_budget_ends_the_race() -> None:
    searcher, issued = race(plan=make_plan(race=replace(RACE, max_boots=6)))

    assert len(issued) == 6
    assert "search.max_boots=6 is spent" in searcher.stop_reason


@pytest.mark.parametrize("result", [None, {}, {"text": "half a trial"}])
def test_trial_whose_process_died_is_a_lost_boot_and_is_made_good(
    result: dict[str, Any] | None,
) -> None:
    """E09: a node vanishes in mid-trial."""
    searcher, cluster = make_searcher(), Cluster({})
    first = searcher.suggest("dead")
    assert isinstance(first, dict)
    searcher.on_trial_complete("dead", result, error=result is None)

    issued = list(drive(searcher, cluster, count()))

    arm = from_plain(Arm, first["arm"])
    assert (arm, 0) not in issued, "the lost boot's number is not used again"
    assert (arm, 1) in issued
    assert len(searcher.boots) == len(issued)


def test_arm_whose_processes_keep_dying_is_not_retried_for_ever() -> None:
    searcher, cluster, ids = make_searcher(), Cluster({}), count()
    killer = make_arm(7, "probabilistic", "block")
    killed = 0
    while (config := searcher.suggest(trial_id := f"t{next(ids)}")) != Searcher.FINISHED:
        assert isinstance(config, dict)
        if from_plain(Arm, config["arm"]) == killer:
            killed += 1
            searcher.on_trial_complete(trial_id, error=True)
        else:
            searcher.on_trial_complete(trial_id, cluster.boot(trial_id, config))

    assert killed == 2


def test_end_of_a_trial_that_was_not_issued_changes_nothing() -> None:
    searcher = make_searcher()
    searcher.on_trial_complete("stranger", result_of(make_boot(BASELINE, [])))

    assert searcher.boots == ()


def synthetic(config: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return the end of a trial whose speed is luck, or nothing for one that died."""
    arm, number = from_plain(Arm, config["arm"]), int(config["replicate"])
    draw = rng.random()
    if draw < 0.1:
        return {}
    if draw < 0.15:
        status = BootStatus.INFEASIBLE
        return result_of(make_boot(arm, [], replicate=number, status=status, reason="memory"))
    seconds = rng.lognormvariate(0, 0.05) / (2 + arm.num_speculative_tokens)
    blocks = [make_block(arm, cell=cell, seconds_per_token=seconds) for cell in WEIGHTS]
    return result_of(make_boot(arm, blocks, replicate=number))


def steps(
    searcher: RaceSearcher,
    running: dict[str, dict[str, Any]],
    seed: int,
    *,
    start: int,
    stop: int,
    parallel: int,
) -> list[object]:
    """Do so many steps of a history that follows from the seed, and tell what was decided."""
    told: list[object] = []
    for step in range(start, stop):
        rng = random.Random(f"{seed}/{step}")
        if len(running) < parallel and rng.random() < 0.7:
            config = searcher.suggest(f"t{step}")
            told.append(config)
            if isinstance(config, dict):
                running[f"t{step}"] = config
        elif running:
            trial_id = rng.choice(sorted(running))
            result = synthetic(running.pop(trial_id), rng)
            searcher.on_trial_complete(trial_id, result)
    return told


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), cut=st.integers(0, 40), parallel=st.integers(1, 4))
def test_race_decides_after_a_restore_as_without_it(seed: int, cut: int, parallel: int) -> None:
    """F17: what is done is kept, and the rest is the same rest."""
    depths = tuple(make_arm(depth) for depth in (4, 5, 6))
    plan = make_plan((BASELINE, *depths), race=replace(RACE, max_hours=2.0))
    before, other = (RaceSearcher(plan, lambda _id, _name: None, lambda: 0.0) for _ in range(2))
    running: dict[str, dict[str, Any]] = {}
    steps(before, running, seed, start=0, stop=cut, parallel=parallel)
    for trial_id in running:
        before.on_trial_complete(trial_id, error=True)
    with TemporaryDirectory() as folder:
        before.save(f"{folder}/race.json")
        other.restore(f"{folder}/race.json")

    rest = [
        steps(searcher, {}, seed, start=cut, stop=cut + 80, parallel=parallel)
        for searcher in (before, other)
    ]

    assert rest[0] == rest[1]
    assert other.boots == before.boots
    assert other.choice == before.choice
    assert other.stop_reason == before.stop_reason


def cut_off(searcher: RaceSearcher) -> RaceSearcher:
    """Return the searcher of a new driver; boots under way ended with the old one."""
    after = make_searcher()
    after.set_out_from(json.loads(json.dumps(searcher.state())))
    return after


def test_boot_cut_off_is_done_again_under_a_new_number_and_is_no_failure_of_a_sound_arm() -> None:
    searcher, cluster, ids = make_searcher(), Cluster({}), count()
    issued: list[tuple[Arm, int]] = []
    num_cut = 0
    while (config := searcher.suggest(trial_id := f"t{next(ids)}")) != Searcher.FINISHED:
        assert isinstance(config, dict)
        issued.append((from_plain(Arm, config["arm"]), config["replicate"]))
        if len(searcher.boots) >= len(ARMS) and num_cut < 3:
            num_cut += 1  # the driver dies three times in a row, in boots of the leaders
            searcher = cut_off(searcher)
        else:
            searcher.on_trial_complete(trial_id, cluster.boot(trial_id, config))
    undisturbed, _ = race()

    assert len(set(issued)) == len(issued), "no number is used again"
    assert len(searcher.boots) == len(issued) - 3
    assert searcher.choice is not None
    assert undisturbed.choice is not None
    assert searcher.choice.arm == undisturbed.choice.arm
    fresh = [b for b in searcher.boots if b.trial_id not in searcher.choice.chosen_by]
    assert Counter(boot.arm for boot in fresh)[searcher.choice.arm] >= 2


def test_arm_that_never_came_up_is_not_booted_for_ever_by_new_drivers() -> None:
    """E02: an arm that takes the driver's machine down with it."""
    searcher, cluster, ids = make_searcher(), Cluster({}), count()
    killer = make_arm(7, "probabilistic", "block")
    killed = 0
    while (config := searcher.suggest(trial_id := f"t{next(ids)}")) != Searcher.FINISHED:
        assert isinstance(config, dict)
        if from_plain(Arm, config["arm"]) == killer:
            killed += 1
            searcher = cut_off(searcher)
        else:
            searcher.on_trial_complete(trial_id, cluster.boot(trial_id, config))

    assert killed == 2


def test_trial_id_that_was_used_before_is_not_used_again() -> None:
    searcher, cluster = make_searcher(), Cluster({})
    config = searcher.suggest("t0")
    assert isinstance(config, dict)
    searcher.on_trial_complete("t0", cluster.boot("t0", config))
    assert isinstance(searcher.suggest("t1"), dict)
    after = cut_off(searcher)

    assert after.suggest("t0") is None
    assert after.suggest("t1") is None
    assert isinstance(after.suggest("t2"), dict)


def test_hours_are_counted_from_the_first_question_and_over_a_restore(tmp_path: Path) -> None:
    now = [0.0]
    plan = make_plan(race=replace(RACE, max_hours=1.0))
    before = RaceSearcher(plan, lambda _id, _name: None, lambda: now[0])
    assert isinstance(before.suggest("t0"), dict)
    now[0] += 3000.0
    before.save(str(tmp_path / "race.json"))

    now[0] += 10**6
    after = RaceSearcher(plan, lambda _id, _name: None, lambda: now[0])
    after.restore(str(tmp_path / "race.json"))
    assert isinstance(after.suggest("t1"), dict)
    now[0] += 560.0

    assert after.suggest("t2") is None, "a boot would end after the hour"


@pytest.mark.parametrize("parallel", [1, 3])
def test_choice_and_control_get_proof_boots_when_the_race_is_over(parallel: int) -> None:
    plan = replace(make_plan(), demands=ProofDemands())

    searcher, issued = race(plan=plan, parallel=parallel)
    without, fewer = race(parallel=parallel)

    assert searcher.choice is not None
    assert issued[:-2] == fewer, "the race itself is the same"
    assert [arm for arm, _ in issued[-2:]] == [BASELINE, searcher.choice.arm]
    assert [boot.arm for boot in searcher.proofs] == [BASELINE, searcher.choice.arm]
    assert all(boot.proof is not None for boot in searcher.proofs)
    assert searcher.boots == without.boots, "a proof boot enters no estimate"
    assert searcher.stop_reason == without.stop_reason


def text_finding(kind: str, *, floor: float | None) -> Mapping[ProofPart, Finding]:
    """Return what a proof boot finds when it looks at the text alone."""
    found = replace(judge({}, num_tokens=1), kind=kind)
    record = to_plain(TextFinding(result=found, floor=floor))
    return {ProofPart.TEXT: Finding(record=record, sentence=found.sentence)}


def test_choice_that_is_shown_lossy_is_set_aside_and_the_race_goes_on(tmp_path: Path) -> None:
    plan = replace(make_plan(), demands=ProofDemands())
    fastest, _ = race(plan=plan)
    assert fastest.choice is not None
    lossy = fastest.choice.arm
    findings = {
        BASELINE: text_finding("passed", floor=0.02),
        lossy: text_finding("rejected", floor=None),
    }
    searcher, cluster, ids = make_searcher(plan), Cluster({}, findings), count()

    asked: list[Mapping[str, Any]] = []
    while (config := searcher.suggest(trial_id := f"t{next(ids)}")) != Searcher.FINISHED:
        assert isinstance(config, dict)
        asked.append(config)
        searcher.on_trial_complete(trial_id, cluster.boot(trial_id, config))
        searcher.save(str(tmp_path / "race.json"))
        searcher = make_searcher(plan)
        searcher.restore(str(tmp_path / "race.json"))

    proved = [from_plain(Arm, item["arm"]) for item in asked if item["is_proof"]]
    second = searcher.choice
    assert second is not None
    assert proved == [BASELINE, lossy, second.arm], "the control is looked at once"
    rules = ("draft_sample_method", "rejection_sample_method")
    assert any(getattr(second.arm, key) != getattr(lossy, key) for key in rules)
    assert [item["floor"] for item in asked if item["is_proof"]] == [None, 0.02, 0.02]
    end = max(index for index, item in enumerate(asked) if item["arm"] == to_plain(lossy))
    fresh = [item for item in asked[end:] if item["arm"] == to_plain(second.arm)]
    assert len(fresh) >= plan.race.fresh_boots + 1, "it gets fresh boots, and then its proof"


def test_every_choice_shown_lossy_ends_the_race_all_the_same() -> None:
    plan = replace(make_plan(), demands=ProofDemands())
    findings = {
        arm: text_finding("passed" if arm.is_baseline else "rejected", floor=None) for arm in ARMS
    }
    searcher, cluster = make_searcher(plan), Cluster({}, findings)

    issued = list(drive(searcher, cluster, count()))

    proved = [boot.arm for boot in searcher.proofs if not boot.arm.is_baseline]
    assert len(proved) == len(set(proved)) <= MAX_CHOICES, "a fault of all is not paid for by each"
    assert searcher.choice is not None
    assert searcher.choice.arm not in proved
    assert len(issued) <= plan.race.max_boots + MAX_CHOICES + 1


def test_proof_boot_that_is_lost_is_made_good_once_over_a_restore(tmp_path: Path) -> None:
    plan = replace(make_plan((BASELINE, make_arm())), demands=ProofDemands())
    before, cluster, ids = make_searcher(plan), Cluster({}), count()
    config = None
    while not (isinstance(config, dict) and config["is_proof"]):
        trial_id = f"t{next(ids)}"
        config = before.suggest(trial_id)
        if isinstance(config, dict) and not config["is_proof"]:
            before.on_trial_complete(trial_id, cluster.boot(trial_id, config))
    before.save(str(tmp_path / "race.json"))
    after = make_searcher(plan)
    after.restore(str(tmp_path / "race.json"))

    again = after.suggest("p0")
    assert isinstance(again, dict)
    assert (again["arm"], again["replicate"]) == (to_plain(BASELINE), 1)
    assert after.suggest("p1") is None, "the control's floor is waited for"
    after.on_trial_complete("p0", error=True)
    third = after.suggest("p00")
    assert isinstance(third, dict), "what ended with its driver was no try"
    assert (third["arm"], third["replicate"]) == (to_plain(BASELINE), 2)
    after.on_trial_complete("p00", error=True)
    assert after.suggest("p1") == Searcher.FINISHED, "the control had its two tries"
    assert after.proofs == ()
    assert after.lost_proofs == (BASELINE, BASELINE)


def test_incumbent_outside_the_space_is_measured_beside_it() -> None:
    foreign = make_arm(5)

    assert with_incumbent(ARMS, foreign) == (*ARMS, foreign)
    assert with_incumbent(ARMS, ARMS[1]) == ARMS
    assert with_incumbent(ARMS, None) == ARMS


def test_race_with_an_incumbent_measures_it_to_the_end() -> None:
    foreign = make_arm(3, "greedy", "standard")

    _, issued = race(plan=make_plan((*ARMS, foreign), incumbent=foreign))

    assert Counter(arm for arm, _ in issued)[foreign] == 2


@dataclass
class Screen:
    """A progress display that writes into memory."""

    def __post_init__(self) -> None:
        self.clock, self.sink = FakeClock(), io.StringIO()
        self.printer = Printer(sink=self.sink, clock=self.clock, started_s=0.0)
        self.pace = Pace(num_expected=2, num_parallel=1, guess_boot_s=60.0, fixed_s=30.0)
        self.progress = Progress(
            printer=self.printer,
            pace=self.pace,
            table=lambda boots: [f"table of {len(boots)}"],
        )

    def lines(self) -> list[str]:
        return self.sink.getvalue().splitlines()


def trial_named(trial_id: str) -> SimpleNamespace:
    return SimpleNamespace(trial_id=trial_id)


def test_progress_tells_a_boot_from_its_issue_to_its_table() -> None:
    screen, arm = Screen(), make_arm()
    progress, trial = screen.progress, trial_named("t0")
    boot = make_boot(arm, [make_block(arm)], facts=make_facts(arm, kv_cache_tokens=12_345))

    progress.on_issue("t0", f"{arm.label} (boot 1)")
    screen.clock.sleep(61)
    progress.on_trial_start(1, [trial], trial)
    progress.on_trial_result(2, [trial], trial, {"text": "c1_t0.7: 30.0 tok/s"})
    progress.on_trial_result(3, [trial], trial, {"text": ""})
    progress.on_trial_result(4, [trial], trial, result_of(boot))
    progress.on_trial_complete(5, [trial], trial)

    assert screen.lines() == [
        "[0:00] probabilistic+block-7 (boot 1): booting",
        "[1:01] probabilistic+block-7 (boot 1): up after 0 s",
        "[1:01] probabilistic+block-7 (boot 1): c1_t0.7: 30.0 tok/s",
        "[1:01] probabilistic+block-7 (boot 1): done on node node, booted in 40 s, "
        "KV 12,345 tokens",
        "table of 1",
    ]
    assert progress.boots == [boot]
    assert len(screen.pace.durations_s) == 1
    assert progress.started == {}


def test_progress_tells_of_a_process_that_died_and_forgets_it() -> None:
    screen = Screen()
    trial = trial_named("t0")
    screen.progress.on_issue("t0", "no-speculation (boot 2)")

    screen.progress.on_trial_error(1, [trial], trial)
    screen.progress.last_s = -1e9
    screen.progress.on_step_end(2, [trial])

    assert screen.lines()[-1] == "[0:00] no-speculation (boot 2): the trial's process died"
    assert len(screen.lines()) == 2


def test_progress_speaks_up_in_a_long_silence_only() -> None:
    """F12, F15: a boot of minutes without a word."""
    screen = Screen()
    trial = trial_named("t0")
    screen.progress.on_issue("t0", "no-speculation (boot 1)")
    screen.progress.on_step_end(1, [trial])
    assert len(screen.lines()) == 1

    screen.progress.last_s -= 21.0
    screen.progress.on_step_end(2, [trial])
    screen.progress.on_step_end(3, [trial])

    assert screen.lines()[1:] == ["[0:00] under way: no-speculation (boot 1) for 0 s"]


def test_progress_estimates_the_time_left_with_what_runs() -> None:
    screen = Screen()
    assert screen.progress.left_s() == pytest.approx(2 * 60 + 30)

    screen.progress.on_issue("t0", "no-speculation (boot 1)")
    screen.progress.started["t0"] -= 40.0

    assert screen.progress.left_s() == pytest.approx(2 * 60 + 30 - 40, abs=5.0)


@pytest.mark.parametrize(
    ("boot", "text"),
    [
        (
            make_boot(BASELINE, [], status=BootStatus.INFEASIBLE, reason="CUDA out of memory"),
            "infeasible: CUDA out of memory",
        ),
        (
            make_boot(BASELINE, [], status=BootStatus.NOT_IN_FORCE, reason="block is ignored"),
            "not_in_force: block is ignored",
        ),
        (
            make_boot(BASELINE, [], reason="c1_t1: lost"),
            "done on node node, booted in 40 s, KV 300,000 tokens; c1_t1: lost",
        ),
        (
            make_boot(BASELINE, [], facts=make_facts(BASELINE, kv_cache_tokens=None)),
            "done on node node, booted in 40 s, KV capacity unknown",
        ),
    ],
)
def test_describe_end_is_one_sentence(boot: Boot, text: str) -> None:
    assert describe_end(boot) == text
