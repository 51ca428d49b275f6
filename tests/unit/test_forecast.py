from __future__ import annotations

from dataclasses import replace

import pytest
from core_samples import BOARD

from orchestrator.core.race_state import RaceQuestion, RaceSettings
from orchestrator.core.types import Cell
from orchestrator.fakes.simulate.worlds import BASELINE, speculating
from orchestrator.forecast import MOST_STUDIES, Times, forecast

ARMS = (BASELINE, speculating("greedy", "standard", 5), speculating("probabilistic", "block", 7))
QUESTION = RaceQuestion(
    arms=ARMS, incumbent=None, weights={Cell(streams=8, temperature=0.7): 1.0}, board=None
)
TIMES = Times(boot_s=420.0, block_s=30.0, blocks_per_cell=1, max_tokens=256)
RACE = RaceSettings(max_boots=20, seed=1)


def test_forecast_says_boots_hours_and_how_often_it_is_right() -> None:
    expected = forecast(QUESTION, RACE, TIMES)

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
    assert forecast(small, RACE, TIMES) == forecast(small, RACE, TIMES)


def test_forecast_with_a_board_model_names_it() -> None:
    expected = forecast(replace(QUESTION, board=BOARD), RACE, TIMES)

    assert BOARD.name in expected.assumption
    assert expected.near > 0.9


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_forecast_takes_any_temperature_and_a_rule_of_tests(temperature: float) -> None:
    arms = (BASELINE, replace(ARMS[2], rejection_sample_method="synthetic"))
    cells = {Cell(streams=3, temperature=temperature): 1.0}

    expected = forecast(replace(QUESTION, arms=arms, weights=cells), RACE, TIMES)

    assert expected.num_studies == MOST_STUDIES


def test_race_without_a_choice_has_no_mean_loss() -> None:
    expected = forecast(QUESTION, replace(RACE, max_boots=1), TIMES)

    assert expected.near == 0
    assert expected.loss is None


def test_forecast_of_two_builds_adds_up_their_races() -> None:
    elsewhere = tuple(replace(arm, engine_build="0.28.0") for arm in ARMS[:2])
    alone = forecast(replace(QUESTION, arms=ARMS[:2]), replace(RACE, max_boots=20), TIMES)
    both = forecast(
        replace(QUESTION, arms=(*ARMS[:2], *elsewhere)), replace(RACE, max_boots=40), TIMES
    )

    assert both.num_studies == alone.num_studies
    for one, two in zip(alone.rows, both.rows, strict=True):
        assert two.boots == pytest.approx(2 * one.boots, rel=0.1)
        assert two.hours == pytest.approx(2 * one.hours, rel=0.1)
    assert both.near <= alone.near
    assert "every build alike" in both.assumption
