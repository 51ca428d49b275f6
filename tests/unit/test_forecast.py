from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from core_samples import BOARD
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import forecast as module
from orchestrator.core.forecast import Forecast
from orchestrator.core.plausible import MAX_STREAMS
from orchestrator.core.race_state import RaceQuestion, RaceSettings
from orchestrator.core.types import Cell
from orchestrator.fakes.simulate.study import SimulatedRace
from orchestrator.fakes.simulate.world import World
from orchestrator.fakes.simulate.worlds import BASELINE, speculating
from orchestrator.forecast import MOST_REPEATS, MOST_STUDIES, MOST_TURNS, Times, forecast

ARMS = (BASELINE, speculating("greedy", "standard", 5), speculating("probabilistic", "block", 7))
QUESTION = RaceQuestion(
    arms=ARMS, incumbent=None, weights={Cell(streams=8, temperature=0.7): 1.0}, board=None
)
TIMES = Times(boot_s=420.0, block_s=30.0, blocks_per_cell=1, max_tokens=256)
RACE = RaceSettings(max_boots=20, seed=1)


def forecast_of(question: RaceQuestion, settings: RaceSettings, times: Times) -> Forecast:
    expected = forecast(question, settings, times)
    assert expected is not None
    return expected


def test_forecast_says_boots_hours_and_how_often_it_is_right() -> None:
    expected = forecast_of(QUESTION, RACE, TIMES)

    assert [row.num_nodes for row in expected.rows] == [1, 2, 4, 8]
    assert expected.num_studies == MOST_STUDIES
    assert all(len(ARMS) < row.boots <= 20 for row in expected.rows)
    hours = [row.hours for row in expected.rows]
    assert hours[0] > hours[1] > hours[2]
    assert hours[3] == pytest.approx(hours[2], rel=0.1), "three arms, and four boots at a time"
    assert all(row.hours <= row.hours_9_of_10 * 1.2 for row in expected.rows)
    assert 0.9 < expected.best <= expected.near <= 1
    assert expected.loss is not None
    assert 0 <= expected.loss < 0.01
    assert "spread by 2%" in expected.assumption


def test_forecast_is_the_same_every_time() -> None:
    small = replace(QUESTION, arms=ARMS[:2])
    assert forecast(small, RACE, TIMES) == forecast_of(small, RACE, TIMES)


def test_forecast_with_a_board_model_names_it() -> None:
    expected = forecast_of(replace(QUESTION, board=BOARD), RACE, TIMES)

    assert BOARD.name in expected.assumption
    assert expected.near > 0.9


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_forecast_takes_any_temperature_and_a_rule_of_tests(temperature: float) -> None:
    arms = (BASELINE, replace(ARMS[2], rejection_sample_method="synthetic"))
    cells = {Cell(streams=3, temperature=temperature): 1.0}

    expected = forecast_of(replace(QUESTION, arms=arms, weights=cells), RACE, TIMES)

    assert expected.num_studies == MOST_STUDIES


def test_race_without_a_choice_has_no_mean_loss() -> None:
    expected = forecast_of(QUESTION, replace(RACE, max_boots=1), TIMES)

    assert expected.near == 0
    assert expected.loss is None


def test_forecast_of_two_builds_adds_up_their_races() -> None:
    elsewhere = tuple(replace(arm, engine_build="0.28.0") for arm in ARMS[:2])
    alone = forecast_of(replace(QUESTION, arms=ARMS[:2]), replace(RACE, max_boots=20), TIMES)
    both = forecast_of(
        replace(QUESTION, arms=(*ARMS[:2], *elsewhere)), replace(RACE, max_boots=40), TIMES
    )

    assert both.num_studies == alone.num_studies
    for one, two in zip(alone.rows, both.rows, strict=True):
        assert two.boots == pytest.approx(2 * one.boots, rel=0.1)
        assert two.hours == pytest.approx(2 * one.hours, rel=0.1)
    assert both.near <= alone.near
    assert "every build alike" in both.assumption


def test_longer_blocks_take_longer_and_cost_no_more_to_simulate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worlds: list[World] = []
    simulate = module.simulate_race

    def recorded(world: World, *rest: Any, **options: Any) -> SimulatedRace:
        worlds.append(world)
        return simulate(world, *rest, **options)

    monkeypatch.setattr(module, "simulate_race", recorded)
    monkeypatch.setattr(module, "MOST_STUDIES", 8)
    race = replace(RACE, max_boots=10)
    usual = forecast_of(QUESTION, race, TIMES)
    day = forecast_of(QUESTION, race, replace(TIMES, block_s=86_400.0, blocks_per_cell=1000))

    assert day.rows[0].hours > 24 * 1000 * day.rows[0].boots > 24 * 1000 * len(ARMS)
    assert day.rows[0].hours < usual.rows[0].hours + 24.1 * 1000 * day.rows[0].boots
    shape = worlds[-1].load
    assert shape.blocks_per_cell == MOST_REPEATS
    assert shape.window_s < 30 * MOST_TURNS


def test_more_blocks_of_a_cell_take_their_own_time_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not simulated of a boot is about as long as if it were."""
    monkeypatch.setattr(module, "MOST_STUDIES", 8)
    few, most = (
        forecast_of(QUESTION, RACE, replace(TIMES, blocks_per_cell=number))
        for number in (MOST_REPEATS, 4 * MOST_REPEATS)
    )
    a_boot = [row.hours / row.boots for row in (few.rows[0], most.rows[0])]
    blocks = [hours - TIMES.boot_s / 3600 for hours in a_boot]
    assert blocks[1] == pytest.approx(4 * blocks[0], rel=0.2)


def simulated(
    question: RaceQuestion, race: RaceSettings, times: Times
) -> list[tuple[World, RaceSettings]]:
    """Return what is simulated for a forecast, without doing it."""
    made: list[tuple[World, RaceSettings]] = []

    def noted(world: World, settings: RaceSettings, **_options: Any) -> SimulatedRace:
        made.append((world, settings))
        return SimulatedRace(timed=(), choice=None, stop_reason="", num_nodes=1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "simulate_race", noted)
        patch.setattr(module, "_regret", lambda *_asked: 0.0)
        forecast(question, race, times)
    return made


def arms_and_cells(num_arms: int, streams: Sequence[int]) -> RaceQuestion:
    arms = tuple(speculating("greedy", "standard", depth) for depth in range(1, num_arms + 1))
    cells = {Cell(streams=number, temperature=0.7): 1 / len(streams) for number in streams}
    return replace(QUESTION, arms=arms, weights=cells)


@settings(max_examples=60, deadline=None)
@given(
    num_arms=st.integers(1, 400),
    streams=st.lists(st.integers(1, MAX_STREAMS), min_size=1, max_size=20, unique=True),
    max_boots=st.integers(1, 100_000),
    block_s=st.floats(0.01, 86_400),
    blocks_per_cell=st.integers(1, 1000),
    max_tokens=st.integers(2, 10**7),
    larger=st.sampled_from(["arms", "streams", "boots", "longer blocks", "more blocks"]),
)
def test_forecast_of_any_study_has_a_bound(
    num_arms: int,
    streams: list[int],
    max_boots: int,
    block_s: float,
    blocks_per_cell: int,
    max_tokens: int,
    larger: str,
) -> None:
    times = Times(
        boot_s=420.0, block_s=block_s, blocks_per_cell=blocks_per_cell, max_tokens=max_tokens
    )
    by_what = {what: 1 + (what == larger) for what in ("arms", "streams", "boots")}
    twice = replace(
        times,
        block_s=block_s * (1 + (larger == "longer blocks")),
        blocks_per_cell=blocks_per_cell * (1 + (larger == "more blocks")),
    )

    made = simulated(arms_and_cells(num_arms, streams), replace(RACE, max_boots=max_boots), times)
    of_larger = simulated(
        arms_and_cells(num_arms * by_what["arms"], [by_what["streams"] * each for each in streams]),
        replace(RACE, max_boots=max_boots * by_what["boots"]),
        twice,
    )

    assert len(of_larger) <= len(made) <= MOST_STUDIES
    # A stream draws a dozen answers in any window, which take 4.2 us; 45 s of a core are for all.
    assert windows_of_streams(made) <= 10_700_000
    assert windows_of_streams(of_larger) <= 10_700_000


def windows_of_streams(made: Sequence[tuple[World, RaceSettings]]) -> int:
    """Return how many windows of a stream are simulated at most."""
    return sum(
        race.max_boots * world.load.blocks_per_cell * sum(cell.streams for cell in world.cells)
        for world, race in made
    )


@pytest.mark.parametrize(
    ("num_arms", "num_cells", "studies"),
    [(17, 10, 96), (34, 10, 48), (17, 20, 48), (170, 10, 24), (2, 1, 96)],
)
def test_more_arms_and_cells_get_fewer_studies(num_arms: int, num_cells: int, studies: int) -> None:
    question = arms_and_cells(num_arms, range(1, num_cells + 1))

    assert len(simulated(question, RACE, TIMES)) == studies


def test_study_that_is_cut_is_told_and_one_that_is_too_large_is_not_simulated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_STUDIES", 4)
    with monkeypatch.context() as patch:
        patch.setattr(module, "FEW_BOOTS", 10)
        long = forecast_of(QUESTION, RACE, TIMES)
    assert long.cut_at_boots == 10
    assert max(row.boots for row in long.rows) <= 10
    assert forecast_of(QUESTION, RACE, TIMES).cut_at_boots is None

    arms = tuple(speculating("greedy", "standard", depth) for depth in range(1, 2001))
    assert forecast(replace(QUESTION, arms=arms), RACE, TIMES) is None
