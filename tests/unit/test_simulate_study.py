from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from core_samples import BOARD
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.race_state import RaceSettings
from orchestrator.core.types import BootStatus, Cell
from orchestrator.fakes.simulate.study import (
    DEFAULT_SETTINGS,
    SimulatedRace,
    StudySettings,
    simulate_race,
    simulate_study,
)
from orchestrator.fakes.simulate.world import Failures, World
from orchestrator.fakes.simulate.worlds import BASELINE, article_world, speculating

BEST = speculating("probabilistic", "block", 7)
RACE = RaceSettings(max_boots=40, seed=0)
SMALL = replace(
    article_world(),
    arms=(BASELINE, speculating("greedy", "standard", 5), BEST),
    weights={Cell(streams=8, temperature=0.7): 1.0},
)


def check_time_adds_up(study: SimulatedRace) -> None:
    """No node does two things at once, and no time passes in which nothing could be done."""
    by_node: dict[str, list[tuple[float, float]]] = {}
    for item in study.timed:
        assert item.end_s > item.start_s
        by_node.setdefault(item.boot.node_id, []).append((item.start_s, item.end_s))
    assert len(by_node) <= study.num_nodes
    for spans in by_node.values():
        spans.sort()
        for (_, end_s), (start_s, _) in pairwise(spans):
            assert start_s >= end_s
    busy_s = sum(item.end_s - item.start_s for item in study.timed)
    assert busy_s <= study.hours * 3600 * study.num_nodes * (1 + 1e-9)
    starts = {item.start_s for item in study.timed}
    assert starts <= {0.0, *(item.end_s for item in study.timed)}


def test_study_of_the_article_finds_an_arm_near_the_best() -> None:
    world = article_world()

    study = simulate_study(world, seed=1)

    race = study.race
    assert race.chosen is not None
    assert world.regret(race.chosen) < 0.01
    assert study.winner is not None
    assert world.regret(study.winner) < 0.06
    assert {boot.arm for boot in race.boots} == set(world.arms)
    assert len(world.arms) < race.num_boots < 40
    check_time_adds_up(race)


def test_study_is_the_same_for_the_same_seed_only() -> None:
    one, again, other = (simulate_study(SMALL, seed=seed) for seed in (3, 3, 4))

    assert one.race == again.race
    assert one.verdict == again.verdict
    assert one.race.timed != other.race.timed


def test_more_nodes_take_fewer_hours_and_not_many_more_boots() -> None:
    world = article_world()
    means = []
    for nodes in (1, 2, 8):
        races = [simulate_race(world, RACE, nodes=nodes, seed=seed) for seed in range(3)]
        means.append(
            (sum(race.hours for race in races) / 3, sum(race.num_boots for race in races) / 3)
        )

    hours, boots = zip(*means, strict=True)
    assert list(hours) == sorted(hours, reverse=True)
    assert hours[0] > 3 * hours[2]
    assert max(boots) <= min(boots) + 10


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    nodes=st.integers(1, 5),
    transient=st.sampled_from([0.0, 0.3, 0.9]),
    death=st.sampled_from([0.0, 0.3]),
    max_boots=st.integers(1, 12),
    is_infeasible=st.booleans(),
    stuck=st.booleans(),
)
def test_study_ends_and_loses_no_boot_whatever_fails(
    seed: int,
    nodes: int,
    transient: float,
    death: float,
    max_boots: int,
    is_infeasible: bool,
    stuck: bool,
) -> None:
    world = replace(
        SMALL,
        failures=Failures(
            transient=transient,
            death_by_block=death,
            infeasible=frozenset({BEST}) if is_infeasible else frozenset(),
        ),
        stuck_from_s={"node-0": 500.0} if stuck else {},
    )
    race = replace(RACE, max_boots=max_boots)

    study = simulate_race(world, race, nodes=nodes, seed=seed)

    assert 1 <= study.num_boots <= max_boots
    assert study.stop_reason
    per_arm: dict[object, list[int]] = {}
    for boot in study.boots:
        per_arm.setdefault(boot.arm, []).append(boot.replicate)
    assert all(sorted(numbers) == list(range(len(numbers))) for numbers in per_arm.values())
    ends = [item.end_s for item in study.timed]
    assert ends == sorted(ends)
    check_time_adds_up(study)
    if is_infeasible:
        statuses = {boot.status for boot in study.boots if boot.arm == BEST}
        assert statuses <= {BootStatus.INFEASIBLE}


def test_arm_that_cannot_run_gets_one_boot_and_no_win() -> None:
    world = replace(SMALL, failures=Failures(infeasible=frozenset({BEST})))

    study = simulate_study(world, nodes=2, seed=1)

    assert Counter(boot.arm for boot in study.race.boots)[BEST] == 1
    assert BEST not in (study.winner, study.race.chosen)


def test_budget_of_boots_is_kept_and_named() -> None:
    settings = StudySettings(race=replace(RACE, max_boots=4), gates=DEFAULT_SETTINGS.gates)

    study = simulate_study(article_world(), settings, seed=1)

    assert study.race.num_boots == 4
    assert "max_boots=4" in study.race.stop_reason


def test_budget_of_hours_is_kept() -> None:
    race = simulate_race(article_world(), replace(RACE, max_hours=1.5), nodes=8, seed=1)

    assert race.hours < 1.6
    assert race.choice is not None


def test_race_on_a_board_model_takes_step_times_from_it() -> None:
    known = simulate_race(SMALL, RACE, nodes=1, seed=1, board=BOARD)

    assert Counter(boot.arm for boot in known.boots)[BASELINE] == 1
    assert known.chosen == BEST


@pytest.mark.parametrize("world", [SMALL, article_world(0.06)], ids=lambda world: world.name)
def test_boots_of_a_healthy_world_all_end_well(world: World) -> None:
    study = simulate_race(world, RACE, seed=9)

    assert {boot.status for boot in study.boots} == {BootStatus.OK}
    assert all(block.is_valid for boot in study.boots for block in boot.blocks)
