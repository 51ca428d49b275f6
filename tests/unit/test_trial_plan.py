"""The order of a boot's blocks and their seeds."""

from __future__ import annotations

from core_samples import BASELINE, make_arm
from trial_stage import ARM, CELLS, RecordingLoad, Stage, make_spec

from orchestrator.trial import (
    block_seed,
    plan_blocks,
    trial_params,
)


def test_block_order_is_the_same_for_all_arms_and_another_in_each_boot() -> None:
    orders = {
        arm: [plan_blocks(make_spec(arm, replicate=replicate)) for replicate in range(4)]
        for arm in (BASELINE, ARM, make_arm(3))
    }

    assert orders[BASELINE] == orders[ARM] == orders[make_arm(3)]
    assert len(set(orders[ARM])) > 1
    assert all(sorted(order) == sorted(CELLS) for order in orders[ARM])


def test_block_order_visits_every_cell_once_a_round() -> None:
    order = plan_blocks(make_spec(blocks_per_cell=3))

    for start in (0, 6, 12):
        assert sorted(order[start : start + 6]) == sorted(CELLS)


def test_block_seeds_pair_over_arms_and_never_repeat_in_an_arm() -> None:
    asked = {}
    for arm in (BASELINE, ARM):
        stage = Stage(spec=make_spec(arm, blocks_per_cell=2))
        recorder = stage.load = RecordingLoad(stage.load)
        stage.run()
        asked[arm] = [(request.cell, request.seed) for request in recorder.requests]

    assert asked[BASELINE] == asked[ARM]
    assert len({seed for _, seed in asked[ARM]}) == 12


def test_block_seed_changes_with_boot_cell_and_repeat() -> None:
    one, other = make_spec(), make_spec(replicate=1)

    seeds = {
        block_seed(spec, cell, repeat)
        for spec in (one, other)
        for cell in CELLS
        for repeat in range(2)
    }
    assert len(seeds) == 2 * 6 * 2
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_trial_params_say_the_order_of_the_cells() -> None:
    spec = make_spec()
    params = trial_params(spec, "node-3")

    assert params["cell_order"] == " ".join(cell.key for cell in plan_blocks(spec))
    assert (params["node"], params["num_speculative_tokens"]) == ("node-3", 7)
    assert trial_params(make_spec(BASELINE), "n")["draft_sample_method"] == "none"
