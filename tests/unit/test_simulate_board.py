from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from orchestrator.fakes.simulate.board import (
    BoardPhysics,
    Spread,
    lognormal,
    node_traits,
    padded,
    rng_of,
)
from orchestrator.fakes.simulate.worlds import ARTICLE_BOARD, BASELINE, speculating

GREEDY = speculating("greedy", "standard", 5)


@pytest.mark.parametrize(
    ("tokens", "size"),
    [(1, 1), (2, 2), (3, 4), (5, 8), (6, 8), (9, 16), (96, 96), (257, 272), (513, 513)],
)
def test_step_is_padded_to_the_next_graph_size(tokens: int, size: int) -> None:
    assert padded(tokens) == size


def test_article_board_takes_82_ms_without_speculation() -> None:
    assert ARTICLE_BOARD.step_time_s(BASELINE, 1) == pytest.approx(0.082, abs=1e-5)


def test_depths_of_one_graph_size_take_the_same_time() -> None:
    times = {
        ARTICLE_BOARD.step_time_s(replace(GREEDY, num_speculative_tokens=depth), 1)
        for depth in (4, 5, 6, 7)
    }

    assert len(times) == 1


def test_step_time_rises_with_streams_and_with_the_drafts_positions() -> None:
    board = BoardPhysics(draft_s_per_position=0.001)
    deeper = replace(GREEDY, num_speculative_tokens=7)

    by_streams = [board.step_time_s(GREEDY, streams) for streams in (1, 2, 4, 8, 16)]

    assert by_streams == sorted(set(by_streams))
    assert board.step_time_s(deeper, 1) == pytest.approx(board.step_time_s(GREEDY, 1) + 0.002)


def test_depth_past_the_trained_block_falls_off_a_cliff() -> None:
    seven, eight = (
        ARTICLE_BOARD.step_time_s(replace(GREEDY, num_speculative_tokens=depth), 1)
        for depth in (7, 8)
    )

    assert eight > 1.35 * seven


def test_rules_cost_by_token() -> None:
    block = replace(GREEDY, rejection_sample_method="block")

    extra = ARTICLE_BOARD.step_time_s(block, 8) - ARTICLE_BOARD.step_time_s(GREEDY, 8)

    assert extra == pytest.approx(48 * 0.00029)


@pytest.mark.parametrize("cv", [0.02, 0.06])
def test_lognormal_factor_has_median_one_and_its_spread(cv: float) -> None:
    rng = rng_of("spread", cv)

    factors = np.array([lognormal(rng, cv) for _ in range(20_000)])

    assert np.median(factors) == pytest.approx(1.0, abs=0.002)
    assert factors.std() / factors.mean() == pytest.approx(cv, rel=0.03)


def test_node_keeps_its_offset_and_drifts_slowly() -> None:
    spread = Spread()
    traits = node_traits("node-3", seed=4, spread=spread)

    hours = [traits.factor(3600.0 * hour, spread) / traits.offset for hour in range(13)]

    assert traits == node_traits("node-3", seed=4, spread=spread)
    assert traits.offset != node_traits("node-4", seed=4, spread=spread).offset
    assert max(hours) - min(hours) == pytest.approx(2 * spread.drift, rel=0.1)
    assert max(abs(a - b) for a, b in pairwise(hours)) < spread.drift
    assert hours[12] == pytest.approx(hours[0])


def test_stuck_clock_slows_the_node_from_its_moment_on() -> None:
    spread = Spread(drift=0.0)
    traits = node_traits("node-0", seed=4, spread=spread, stuck_from_s=100.0)

    assert traits.factor(100.0, spread) == pytest.approx(3.0 * traits.factor(99.0, spread))
    assert not traits.is_stuck(99.0)
    assert traits.is_stuck(100.0)
