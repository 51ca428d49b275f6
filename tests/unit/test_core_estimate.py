from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from core_samples import (
    BASELINE,
    BOARD,
    CELL,
    WIDE_CELL,
    make_arm,
    make_block,
    make_boot,
    make_boots,
)
from hypothesis import assume, given
from hypothesis import strategies as st

from orchestrator.core.estimate import (
    acceptance_lengths,
    boot_objective,
    cell_estimates,
    cell_score,
    compare,
    compare_cell,
    compare_ttft,
    geometric_mean,
    independent_boots,
    known_arms,
)
from orchestrator.core.summary import scores_by_arm, summarise
from orchestrator.core.types import Arm, BootStatus

ARM = make_arm(7)
OTHER = make_arm(5)
THIRD = make_arm(4)
WEIGHTS = {CELL: 0.75, WIDE_CELL: 0.25}


def test_boot_objective_measured_is_the_weighted_seconds_per_token() -> None:
    boot = make_boot(
        ARM,
        [
            make_block(ARM, seconds_per_token=0.02),
            make_block(ARM, seconds_per_token=0.04, index=1),
            make_block(ARM, cell=WIDE_CELL, seconds_per_token=0.05),
        ],
    )
    assert cell_score(boot, CELL, None) == pytest.approx(0.03)
    assert boot_objective(boot, WEIGHTS, None) == pytest.approx(0.75 * 0.03 + 0.25 * 0.05)


def test_boot_objective_modelled_divides_the_models_step_by_the_measured_length() -> None:
    boot = make_boot(ARM, [make_block(ARM, length=4.0, seconds_per_token=9.0)])
    assert boot_objective(boot, {CELL: 1.0}, BOARD) == pytest.approx(0.1 / 4)
    plain = make_boot(BASELINE, [make_block(BASELINE)])
    assert boot_objective(plain, {CELL: 1.0}, BOARD) == pytest.approx(0.081)


def test_boot_objective_baseline_measured_counts_one_token_a_step() -> None:
    plain = make_boot(BASELINE, [make_block(BASELINE, seconds_per_token=0.08, cell=WIDE_CELL)])
    assert boot_objective(plain, {WIDE_CELL: 1.0}, None) == pytest.approx(0.08)


def test_boot_objective_weighted_cell_without_valid_block_is_none() -> None:
    invalid = make_block(ARM, cell=WIDE_CELL, invalid_reason="contaminated")
    boot = make_boot(ARM, [make_block(ARM), invalid])
    assert boot_objective(boot, WEIGHTS, None) is None
    assert boot_objective(boot, {CELL: 1.0, WIDE_CELL: 0.0}, None) == pytest.approx(0.03)


@pytest.mark.parametrize(
    "status", [BootStatus.FAILED, BootStatus.INFEASIBLE, BootStatus.NOT_IN_FORCE]
)
def test_boot_objective_of_a_boot_that_did_not_end_well_is_none(status: BootStatus) -> None:
    boot = make_boot(ARM, [make_block(ARM)], status=status)
    assert boot_objective(boot, {CELL: 1.0}, None) is None


def test_boot_objective_without_draft_counters_is_none() -> None:
    block = make_block(ARM)
    lost = replace(block, counters=replace(block.counters, num_drafts=None))
    assert boot_objective(make_boot(ARM, [block, lost]), {CELL: 1.0}, None) is None
    assert boot_objective(make_boot(ARM, [lost]), {CELL: 1.0}, BOARD) is None


def test_cell_estimates_keep_the_finished_cells_of_a_failed_boot() -> None:
    boots = [
        make_boot(ARM, [make_block(ARM), make_block(ARM, cell=WIDE_CELL)]),
        make_boot(ARM, [make_block(ARM, length=5.0)], replicate=1, status=BootStatus.FAILED),
        make_boot(ARM, [make_block(ARM)], replicate=2, status=BootStatus.NOT_IN_FORCE),
        make_boot(OTHER, [make_block(OTHER)]),
    ]
    narrow, wide = cell_estimates(ARM, boots, None)
    assert (narrow.cell, narrow.num_boots, narrow.num_blocks) == (CELL, 2, 2)
    assert (wide.cell, wide.num_boots) == (WIDE_CELL, 1)
    assert narrow.acceptance_length == pytest.approx(6000 / (1000 + 600))
    assert narrow.step_time_s == pytest.approx(math.sqrt(0.09 * 0.15))
    assert narrow.output_throughput == pytest.approx(1 / 0.03)
    assert narrow.seconds_per_output_token == pytest.approx(0.03)
    assert narrow.step_time_source == "measured"
    assert narrow.ttft_p50_s == 0.3
    assert acceptance_lengths(ARM, boots) == {0.7: pytest.approx(3.75), 1.0: pytest.approx(3.0)}


def test_cell_estimates_baseline_accepts_one_token_and_has_no_positions() -> None:
    (estimate,) = cell_estimates(BASELINE, [make_boot(BASELINE, [make_block(BASELINE)])], BOARD)
    assert estimate.acceptance_length == 1.0
    assert estimate.acceptance_rate_per_position is None
    assert estimate.step_time_s == pytest.approx(0.081)
    assert estimate.step_time_source == "modelled"
    assert estimate.output_throughput == pytest.approx(1 / 0.03)


def test_cell_estimates_positions_that_differ_are_none() -> None:
    block = make_block(ARM)
    shorter = replace(block, counters=replace(block.counters, num_accepted_tokens_per_pos=(1.0,)))
    none = replace(block, counters=replace(block.counters, num_accepted_tokens_per_pos=None))
    for odd in (shorter, none):
        (estimate,) = cell_estimates(ARM, [make_boot(ARM, [block, odd])], None)
        assert estimate.acceptance_rate_per_position is None
    (estimate,) = cell_estimates(ARM, [make_boot(ARM, [block, block])], None)
    assert estimate.acceptance_rate_per_position == pytest.approx((1.0, 1.0))


def test_compare_published_three_runs_against_a_mean_are_not_separated() -> None:
    scores = {ARM: [1 / 39.7, 1 / 33.1, 1 / 31.5], OTHER: [1 / 29.3]}
    contrast = compare(scores, a=ARM, b=OTHER, confidence=0.95)
    assert contrast.excludes_zero is False
    assert contrast.speedup == pytest.approx(1.18, abs=0.01)
    assert contrast.degrees_of_freedom == 2
    assert contrast.num_boots == (3, 1)
    assert "1.18 times as fast (95 % interval 0.6" in contrast.in_words


def test_compare_three_blocks_of_one_boot_are_wider_than_three_boots() -> None:
    control = make_boots(THIRD, [1 / 92, 1 / 101, 1 / 111])
    speeds = (92, 101, 111)
    one_boot = make_boot(
        ARM, [make_block(ARM, seconds_per_token=1 / v, index=i) for i, v in enumerate(speeds)]
    )
    three_boots = make_boots(ARM, [1 / v for v in speeds])
    rivals = [*control, *make_boots(OTHER, [1 / 90, 1 / 99, 1 / 109])]
    widths = []
    for own in ([one_boot], three_boots):
        scores = scores_by_arm([*own, *rivals], weights={CELL: 1.0}, board=None)
        contrast = compare(scores, a=ARM, b=OTHER, confidence=0.95)
        assert contrast.low is not None
        assert contrast.high is not None
        widths.append(contrast.high - contrast.low)
    assert widths[0] > widths[1]
    alone = scores_by_arm([one_boot], weights={CELL: 1.0}, board=None)
    assert len(alone[ARM]) == 1


def test_compare_without_replicated_arm_has_no_interval_and_says_why() -> None:
    contrast = compare({ARM: [0.03], OTHER: [0.04]}, a=ARM, b=OTHER, confidence=0.95)
    assert contrast.log_ratio == pytest.approx(math.log(0.75))
    assert (contrast.low, contrast.high, contrast.excludes_zero) == (None, None, None)
    assert contrast.speedup_bounds is None
    assert "no arm has two scored boots" in (contrast.reason or "")
    assert "no interval" in contrast.in_words


def test_compare_identical_boots_are_copies_and_give_no_interval() -> None:
    contrast = compare({ARM: [0.03] * 3, OTHER: [0.04] * 3}, a=ARM, b=OTHER, confidence=0.95)
    assert contrast.low is None
    assert "copies" in (contrast.reason or "")


def test_compare_arm_without_scores_is_not_comparable() -> None:
    contrast = compare({ARM: [0.03, 0.031], OTHER: []}, a=ARM, b=OTHER, confidence=0.95)
    assert contrast.log_ratio is None
    assert contrast.speedup is None
    assert contrast.num_boots == (2, 0)
    assert "not comparable (probabilistic+block-5: no scored boot)" in contrast.in_words


def test_compare_known_score_adds_neither_variance_nor_degrees_of_freedom() -> None:
    scores = {ARM: [0.030, 0.033, 0.031], BASELINE: [0.081, 0.081, 0.081]}
    free = compare(scores, a=ARM, b=BASELINE, confidence=0.95)
    known = compare(scores, a=ARM, b=BASELINE, confidence=0.95, fixed={BASELINE})
    assert (free.degrees_of_freedom, known.degrees_of_freedom) == (4, 2)
    logs = np.log(scores[ARM])
    half = 4.302653 * logs.std(ddof=1) / math.sqrt(3)
    assert known.log_ratio is not None
    assert known.high == pytest.approx(known.log_ratio + half, rel=1e-5)


POSITIVE = st.floats(1e-3, 1e3)


@given(
    a=st.lists(POSITIVE, min_size=1, max_size=4),
    b=st.lists(POSITIVE, min_size=1, max_size=4),
    unit=st.floats(1e-2, 1e2),
    confidence=st.floats(0.6, 0.99),
)
def test_compare_is_antisymmetric_and_free_of_units(
    a: list[float], b: list[float], unit: float, confidence: float
) -> None:
    forth = compare({ARM: a, OTHER: b}, a=ARM, b=OTHER, confidence=confidence)
    back = compare({ARM: a, OTHER: b}, a=OTHER, b=ARM, confidence=confidence)
    assert forth.log_ratio is not None
    assert back.log_ratio == pytest.approx(-forth.log_ratio)
    assume(forth.low is not None and forth.high is not None)
    assert forth.low is not None
    assert forth.high is not None
    assert forth.low <= forth.log_ratio <= forth.high
    assert back.low == pytest.approx(-forth.high)
    assume(forth.high - forth.low > 1e-9)
    scaled = compare(
        {ARM: [v * unit for v in a], OTHER: [v * unit for v in b]},
        a=ARM,
        b=OTHER,
        confidence=confidence,
    )
    assert scaled.log_ratio == pytest.approx(forth.log_ratio, abs=1e-9)
    assert scaled.high == pytest.approx(forth.high, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("sigma", [0.02, 0.15])
def test_compare_covers_the_truth_as_often_as_it_says(sigma: float) -> None:
    rng = np.random.default_rng(7)
    truth = {ARM: math.log(0.030), OTHER: math.log(0.033), THIRD: math.log(0.04)}
    num_studies, hits = 2000, 0
    for _ in range(num_studies):
        scores = {arm: np.exp(rng.normal(mean, sigma, 3)) for arm, mean in truth.items()}
        contrast = compare(
            {arm: values.tolist() for arm, values in scores.items()},
            a=ARM,
            b=OTHER,
            confidence=0.95,
        )
        assert contrast.low is not None
        assert contrast.high is not None
        hits += contrast.low <= truth[ARM] - truth[OTHER] <= contrast.high
    assert 0.93 <= hits / num_studies <= 0.97


def test_compare_cell_uses_the_cells_own_blocks() -> None:
    boots = [
        *make_boots(ARM, [0.030, 0.031], cells=(CELL, WIDE_CELL)),
        *make_boots(OTHER, [0.040, 0.041], cells=(CELL,)),
    ]
    common: dict[str, Any] = {"a": ARM, "b": OTHER, "confidence": 0.95}
    near = compare_cell(boots, cell=CELL, board=None, **common)
    assert near.speedup == pytest.approx(math.sqrt(0.04 * 0.041 / (0.03 * 0.031)))
    assert compare_cell(boots, cell=WIDE_CELL, board=None, **common).log_ratio is None
    assert compare_cell(boots, cell=CELL, board=BOARD, **common).speedup == pytest.approx(
        (BOARD.step_time_s(5, 1)) / BOARD.step_time_s(7, 1)
    )


def test_compare_ttft_ignores_boots_without_times() -> None:
    boots = [*make_boots(ARM, [0.03] * 2, ttft_s=0.4), *make_boots(OTHER, [0.03] * 2, ttft_s=0.2)]
    silent = make_boot(ARM, [make_block(ARM, ttft_s=(), length=4.0)], replicate=9)
    contrast = compare_ttft([*boots, silent], cell=CELL, a=ARM, b=OTHER, confidence=0.95)
    assert contrast.log_ratio == pytest.approx(math.log(2))
    assert contrast.num_boots == (2, 2)


def test_known_arms_are_baselines_under_a_board_model() -> None:
    assert known_arms([BASELINE, ARM], BOARD) == {BASELINE}
    assert known_arms([BASELINE, ARM], None) == frozenset()


def test_independent_boots_equal_counters_are_one_observation() -> None:
    first, second, third = make_boots(ARM, [0.030, 0.031, 0.032])
    copy = replace(second, replicate=5)
    plain = make_boots(BASELINE, [0.08, 0.08])
    kept = independent_boots([first, second, third, copy, *plain])
    assert sorted((boot.arm.key, boot.replicate) for boot in kept) == [
        (BASELINE.key, 0),
        (BASELINE.key, 1),
        (ARM.key, 0),
        (ARM.key, 1),
        (ARM.key, 2),
    ]
    scores = scores_by_arm([copy, third, first, second], weights={CELL: 1.0}, board=None)
    assert scores[ARM] == pytest.approx((0.030, 0.031, 0.032))


def test_geometric_mean_skips_none() -> None:
    assert geometric_mean([None, 1.0, 4.0]) == pytest.approx(2.0)
    assert geometric_mean([None]) is None


def _labels(values: Sequence[Arm]) -> list[str]:
    return [arm.label for arm in values]


def test_summarise_counts_boots_blocks_and_the_worst_capacity() -> None:
    good = make_boots(ARM, [0.030, 0.034], kv_cache_tokens=300)
    lost = make_boot(
        ARM,
        [make_block(ARM, invalid_reason="x")],
        replicate=2,
        status=BootStatus.FAILED,
        reason="the node vanished",
        without_facts=True,
    )
    low = make_boots(OTHER, [0.05], kv_cache_tokens=200)
    rows = summarise(
        [BASELINE, ARM, OTHER], boots=[*good, lost, *low], weights={CELL: 1.0}, board=None
    )
    assert _labels([row.arm for row in rows]) == _labels([BASELINE, ARM, OTHER])
    waiting, ours, other = rows
    assert (waiting.status, waiting.num_boots, waiting.objective_s) == ("waiting", 0, None)
    assert (waiting.kv_cache_tokens, waiting.boot_time_s) == (None, None)
    assert (ours.num_boots, ours.num_scored, ours.num_blocks, ours.num_invalid_blocks) == (
        3,
        2,
        2,
        1,
    )
    assert ours.objective_s == pytest.approx(math.sqrt(0.030 * 0.034))
    assert (ours.status, ours.reason) == ("failed", "the node vanished")
    assert (ours.kv_cache_tokens, ours.boot_time_s) == (300, 40.0)
    assert (other.status, other.kv_cache_tokens) == ("ok", 200)
