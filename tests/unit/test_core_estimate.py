from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

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

from orchestrator.core.estimate import (
    acceptance_lengths,
    boot_objective,
    cell_estimates,
    cell_score,
    cell_step_time,
    cell_ttft,
    geometric_mean,
    independent_boots,
    known_arms,
)
from orchestrator.core.summary import summarise
from orchestrator.core.types import Arm, BootStatus

ARM = make_arm(7)
OTHER = make_arm(5)
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


def test_cell_step_time_and_ttft_pool_the_cells_valid_blocks() -> None:
    boot = make_boot(
        ARM,
        [
            make_block(ARM, seconds_per_token=0.02, length=3.0, ttft_s=(0.1, 0.2)),
            make_block(ARM, seconds_per_token=0.04, length=3.0, index=1, ttft_s=(0.3,)),
            make_block(ARM, seconds_per_token=9.0, index=2, invalid_reason="x", ttft_s=(9.0,)),
        ],
    )
    assert cell_step_time(boot, CELL, None) == pytest.approx(0.09)
    assert cell_step_time(boot, CELL, BOARD) == pytest.approx(0.1)
    assert cell_ttft(boot, CELL) == 0.2
    assert cell_step_time(boot, WIDE_CELL, BOARD) is None
    assert cell_ttft(boot, WIDE_CELL) is None


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
    # The two boots accept a little differently, and the objective takes them together.
    assert ours.objective_s == pytest.approx(math.sqrt(0.030 * 0.034), rel=1e-5)
    assert (ours.status, ours.reason) == ("failed", "the node vanished")
    assert (ours.kv_cache_tokens, ours.boot_time_s) == (300, 40.0)
    assert (other.status, other.kv_cache_tokens) == ("ok", 200)
