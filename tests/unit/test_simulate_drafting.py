from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from orchestrator.fakes.simulate.drafting import (
    LEVELS,
    DraftQuality,
    acceptance_table,
    level_of,
)
from orchestrator.fakes.simulate.verification import Floats
from orchestrator.fakes.simulate.worlds import speculating

QUALITY = DraftQuality(num_contexts=400)
RULES = [(d, r) for d in ("greedy", "probabilistic") for r in ("standard", "block")]
MIDDLE = len(LEVELS) // 2


def by_position(law: Floats) -> Floats:
    """Unconditional rates, [depth]."""
    return np.asarray(law[..., ::-1].cumsum(axis=-1)[..., ::-1][..., 1:])


@pytest.mark.parametrize(("draft", "rejection"), RULES)
@pytest.mark.parametrize("depth", [1, 4, 7, 9])
def test_table_holds_laws_whose_rates_fall_with_position(
    draft: str, rejection: str, depth: int
) -> None:
    table = acceptance_table(QUALITY, speculating(draft, rejection, depth), 0.7)

    assert table.laws.shape == (len(LEVELS), depth + 1)
    assert table.laws.sum(axis=1) == pytest.approx(1.0)
    assert table.laws.min() >= 0
    assert np.diff(by_position(table.laws), axis=1).max(initial=0.0) <= 1e-12
    assert table.lengths == pytest.approx(1.0 + by_position(table.laws).sum(axis=1))
    assert table.lengths.min() >= 1.0
    assert table.lengths.max() <= depth + 1


@pytest.mark.parametrize(("draft", "rejection"), RULES)
def test_harder_text_is_accepted_less(draft: str, rejection: str) -> None:
    table = acceptance_table(QUALITY, speculating(draft, rejection, 5), 0.7)

    assert table.lengths[0] > table.lengths[MIDDLE] > table.lengths[-1]


@pytest.mark.parametrize(("draft", "rejection"), RULES)
def test_warmer_sampling_is_accepted_less(draft: str, rejection: str) -> None:
    arm = speculating(draft, rejection, 5)

    cool, warm = (acceptance_table(QUALITY, arm, t).lengths[MIDDLE] for t in (0.7, 1.0))

    assert cool > warm


def test_later_positions_are_accepted_less_given_all_before() -> None:
    uniform = replace(QUALITY, sharpness_spread=0.0, error_growth=0.3)
    table = acceptance_table(uniform, speculating("probabilistic", "standard", 7), 0.7)

    rates = by_position(table.laws[MIDDLE])
    conditional = rates / np.concatenate([[1.0], rates[:-1]])

    assert np.diff(conditional).max() < 0


def test_probabilistic_drafts_are_accepted_more_than_greedy_ones() -> None:
    tables = [
        acceptance_table(QUALITY, speculating(draft, "standard", 5), 1.0)
        for draft in ("greedy", "probabilistic")
    ]

    assert tables[1].lengths[MIDDLE] > 1.1 * tables[0].lengths[MIDDLE]


def test_block_exceeds_token_wise_for_probabilistic_drafts_only() -> None:
    for draft, gains in (("greedy", False), ("probabilistic", True)):
        standard, block = (
            acceptance_table(QUALITY, speculating(draft, rejection, 7), 0.7)
            for rejection in ("standard", "block")
        )
        if gains:
            assert (by_position(block.laws) > by_position(standard.laws)).any()
            assert block.lengths[MIDDLE] > standard.lengths[MIDDLE]
        else:
            assert np.array_equal(block.laws, standard.laws)


def test_token_wise_law_of_a_smaller_depth_is_the_deeper_one_cut() -> None:
    shallow, deep = (
        acceptance_table(QUALITY, speculating("probabilistic", "standard", depth), 0.7)
        for depth in (4, 7)
    )

    assert by_position(shallow.laws) == pytest.approx(by_position(deep.laws)[:, :4])


@pytest.mark.parametrize(("draft", "rejection"), RULES)
def test_positions_past_the_trained_block_are_hardly_ever_accepted(
    draft: str, rejection: str
) -> None:
    trained, past = (
        acceptance_table(QUALITY, speculating(draft, rejection, depth), 0.7) for depth in (7, 9)
    )

    rates = by_position(past.laws)

    assert rates[:, :7] == pytest.approx(by_position(trained.laws))
    assert rates[:, 7] == pytest.approx(0.002 * rates[:, 6])
    assert rates[:, 8] == pytest.approx(0.002 * rates[:, 7])


def test_drawn_lengths_add_up_and_follow_the_law() -> None:
    table = acceptance_table(QUALITY, speculating("probabilistic", "block", 5), 0.7)
    steps = np.zeros(len(LEVELS), dtype=np.int64)
    steps[MIDDLE] = 50_000

    counts = table.draw_lengths(steps, np.random.default_rng(5))

    assert counts.sum() == 50_000
    assert counts / 50_000 == pytest.approx(table.laws[MIDDLE], abs=0.01)


def test_no_steps_draw_nothing() -> None:
    table = acceptance_table(QUALITY, speculating("greedy", "standard", 5), 0.7)

    counts = table.draw_lengths(np.zeros(len(LEVELS), dtype=np.int64), np.random.default_rng(5))

    assert counts.tolist() == [0] * 6


def test_difficulty_beyond_the_levels_counts_as_the_outermost() -> None:
    levels = level_of(np.array([-99.0, -2.5, 0.04, 2.5, 99.0]))

    assert levels.tolist() == [0, 0, MIDDLE, len(LEVELS) - 1, len(LEVELS) - 1]


def test_table_is_the_same_for_the_same_seed_only() -> None:
    arm = speculating("probabilistic", "block", 4)

    one, other = (
        acceptance_table(replace(QUALITY, seed=seed), arm, 0.7).lengths for seed in (1, 2)
    )

    assert not np.array_equal(one, other)
    assert np.array_equal(one, acceptance_table(replace(QUALITY, seed=1), arm, 0.7).lengths)
