from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from orchestrator.core.checks import Expectations, find_invalid
from orchestrator.core.codec import from_plain, to_plain
from orchestrator.core.estimate import boot_objective, cell_score, independent_boots
from orchestrator.core.formulas import acceptance_length, step_time_s
from orchestrator.core.scaling import check_scaling
from orchestrator.core.space import not_in_force
from orchestrator.core.types import Arm, Boot, BootStatus, Cell, Invalid
from orchestrator.fakes.simulate.board import Spread, rng_of
from orchestrator.fakes.simulate.window import difficulties, prompt_difficulties
from orchestrator.fakes.simulate.world import Failures, TimedBoot, World, shown_objective
from orchestrator.fakes.simulate.worlds import (
    BASELINE,
    DEPTHS,
    article_world,
    cliff_world,
    interaction_world,
    null_world,
    speculating,
    tie_world,
    uniform_weights,
    with_objectives,
)

STILL = Spread(boot_cv=0.0, block_cv=0.0, node_cv=0.0, drift=0.0)
BEST = speculating("probabilistic", "block", 7)
GREEDY = speculating("greedy", "standard", 5)


def boot(
    world: World, arm: Arm, *, replicate: int = 0, seed: int = 1, node_id: str = "node-0"
) -> TimedBoot:
    return world.boot(arm, replicate=replicate, node_id=node_id, start_s=0.0, seed=seed)


def with_cells(world: World, *cells: Cell, window_s: float) -> World:
    shares = dict.fromkeys(cells, 1.0 / len(cells))
    return replace(world, weights=shares, load=replace(world.load, window_s=window_s))


@pytest.mark.parametrize("arm", article_world().arms, ids=lambda arm: arm.label)
@pytest.mark.parametrize("window_s", [20.0, 60.0])
def test_block_of_a_healthy_node_passes_the_checks(arm: Arm, window_s: float) -> None:
    world = article_world(0.06)
    world = replace(world, load=replace(world.load, window_s=window_s))
    for seed in range(4):
        blocks = boot(world, arm, seed=seed).boot.blocks

        assert {block.cell for block in blocks} == set(world.cells)
        for block in blocks:
            assert find_invalid(block, Expectations(arm=arm)) == ()
        assert all(block.is_valid for block in check_scaling(blocks))


@pytest.mark.parametrize("arm", article_world().arms, ids=lambda arm: arm.label)
def test_counters_of_a_block_add_up(arm: Arm) -> None:
    for block in boot(article_world(), arm, seed=3).boot.blocks:
        counters = block.counters
        assert block.audit.engine_window == counters.generation_tokens == block.output_tokens
        if arm.is_baseline:
            assert counters.num_drafts is None
            assert counters.num_accepted_tokens_per_pos is None
            continue
        assert counters.num_drafts is not None
        assert counters.num_accepted_tokens is not None
        per_position = counters.num_accepted_tokens_per_pos
        assert per_position is not None
        assert len(per_position) == arm.num_speculative_tokens
        assert sum(per_position) == counters.num_accepted_tokens
        assert list(per_position) == sorted(per_position, reverse=True)
        assert per_position[0] <= counters.num_drafts
        assert counters.num_draft_tokens == counters.num_drafts * arm.num_speculative_tokens
        first_tokens = block.output_tokens - counters.num_drafts - counters.num_accepted_tokens
        assert 0 <= first_tokens <= block.num_requests
        assert block.audit.client_total >= block.output_tokens + block.cell.streams


def test_boot_is_a_record_like_a_real_one() -> None:
    made = boot(article_world(), BEST).boot
    assert made.facts is not None

    plain = json.loads(json.dumps(to_plain(made)))

    assert from_plain(Boot, plain) == made
    assert not_in_force(BEST, made.facts) is None
    assert len({block.block_id for block in made.blocks}) == len(made.blocks)
    assert [block.index for block in made.blocks] == list(range(len(made.blocks)))


@pytest.mark.parametrize("arm", [BEST, GREEDY, BASELINE], ids=lambda arm: arm.label)
@pytest.mark.parametrize("streams", [1, 8])
def test_endless_block_shows_the_true_values(arm: Arm, streams: int) -> None:
    cell = Cell(streams=streams, temperature=0.7)
    world = with_cells(replace(article_world(), spread=STILL), cell, window_s=60_000.0)

    made = boot(world, arm).boot

    (block,) = made.blocks
    assert cell_score(made, cell, None) == pytest.approx(world.true_seconds(arm, cell), rel=0.005)
    assert boot_objective(made, world.weights, None) == pytest.approx(
        world.true_objective(arm), rel=0.005
    )
    if not arm.is_baseline:
        length = acceptance_length(block.counters)
        assert length == pytest.approx(world.true_length(arm, 0.7), rel=0.005)


def test_windows_that_open_after_the_first_answers_show_the_truth() -> None:
    """Opened while all streams are in first answers they would show 1 % less of the best arm."""
    world = article_world(0.06)

    shown = {arm: shown_objective(world, arm, num_boots=200) for arm in (BEST, BASELINE)}

    assert shown[BASELINE] == pytest.approx(world.true_objective(BASELINE), rel=0.001)
    assert shown[BEST] == pytest.approx(world.true_objective(BEST), rel=0.004)


def test_step_time_of_a_short_block_is_tight_where_throughput_is_not() -> None:
    cell = Cell(streams=1, temperature=0.7)
    world = with_cells(
        replace(article_world(0.0), spread=replace(STILL, block_cv=0.002)), cell, window_s=30.0
    )
    steps, tokens = [], []
    for replicate in range(150):
        (block,) = boot(world, BEST, replicate=replicate).boot.blocks
        step_s = step_time_s(
            block.counters, busy_s=30.0, output_tokens=block.output_tokens, speculates=True
        )
        assert step_s is not None
        steps.append(step_s)
        tokens.append(block.output_tokens)

    assert np.std(steps) / np.mean(steps) < 0.01
    assert 0.05 < np.std(tokens) / np.mean(tokens) < 0.20


@pytest.mark.parametrize("boot_cv", [0.02, 0.06])
def test_boots_of_one_arm_spread_as_the_world_says(boot_cv: float) -> None:
    cell = Cell(streams=16, temperature=0.7)
    spread = replace(STILL, boot_cv=boot_cv)
    world = with_cells(replace(article_world(), spread=spread), cell, window_s=60.0)
    steps = []
    for replicate in range(300):
        (block,) = boot(world, GREEDY, replicate=replicate).boot.blocks
        assert block.counters.num_drafts is not None
        steps.append(16 * 60.0 / block.counters.num_drafts)

    assert np.std(steps) / np.mean(steps) == pytest.approx(boot_cv, rel=0.2)


def test_prompts_follow_from_seed_replicate_cell_and_repeat_alone() -> None:
    world = article_world()
    shape = replace(world.load, prompt_share=1.0)
    cell = Cell(streams=4, temperature=0.7)

    def hard(*prompts: object, turns: int = 6, luck: int = 0) -> list[list[float]]:
        rng = rng_of("luck", luck)
        hard = difficulties(cell, prompts=prompts, num_turns=turns, shape=shape, rng=rng)
        return [[float(value) for value in row] for row in hard]

    assert hard(1, 0, 0) == hard(1, 0, 0, luck=1)
    assert hard(1, 0, 0) == [row[:6] for row in hard(1, 0, 0, turns=40)]
    assert hard(1, 0, 0) != hard(1, 1, 0)
    assert hard(1, 0, 0) != hard(1, 0, 1)
    lap = sorted(value for row in hard(1, 0, 0, turns=16) for value in row)
    assert lap == pytest.approx(prompt_difficulties(64).tolist())


def test_arms_pair_by_replicate() -> None:
    cell = Cell(streams=1, temperature=0.7)
    world = with_cells(replace(article_world(), spread=STILL), cell, window_s=60.0)
    other = speculating("probabilistic", "standard", 6)

    def log_scores(arm: Arm, *, first: int) -> list[float]:
        scores = [
            cell_score(boot(world, arm, replicate=first + index).boot, cell, None)
            for index in range(120)
        ]
        return [float(np.log(score)) for score in scores if score is not None]

    same = np.corrcoef(log_scores(BEST, first=0), log_scores(other, first=0))[0, 1]
    different = np.corrcoef(log_scores(BEST, first=0), log_scores(other, first=500))[0, 1]

    assert same > 0.4
    assert abs(different) < 0.3


def test_cells_come_in_one_order_for_all_arms_of_a_replicate() -> None:
    world = article_world()

    def order(arm: Arm, replicate: int) -> list[Cell]:
        return [block.cell for block in boot(world, arm, replicate=replicate).boot.blocks]

    assert order(BEST, 0) == order(BASELINE, 0)
    assert order(BEST, 0) != order(BEST, 1)


def test_boot_is_the_same_for_the_same_seed_only() -> None:
    world = article_world()

    assert boot(world, BEST, seed=5) == boot(world, BEST, seed=5)
    assert boot(world, BEST, seed=5) != boot(world, BEST, seed=6)
    boots = [boot(world, BEST, replicate=number, seed=5).boot for number in range(4)]
    assert len(independent_boots(boots)) == 4


def test_boot_takes_its_boot_time_and_its_blocks() -> None:
    world = article_world()

    made = world.boot(BEST, replicate=0, node_id="node-0", start_s=1000.0, seed=1)

    assert made.start_s == 1000.0
    assert made.boot.facts is not None
    assert 300 < made.boot.facts.boot_time_s < 560
    blocks_s = made.end_s - made.start_s - made.boot.facts.boot_time_s
    assert 10 * 60 < blocks_s < 10 * 100


def test_blocks_on_a_stuck_node_are_invalid_by_the_real_check() -> None:
    world = replace(article_world(), stuck_from_s={"node-1": 0.0})

    stuck = boot(world, BEST, node_id="node-1").boot
    sound = boot(world, BEST, node_id="node-0").boot

    assert stuck.status is BootStatus.FAILED
    assert "stuck at 799" in stuck.reason
    assert all([item.kind for item in block.invalid] == [Invalid.NODE] for block in stuck.blocks)
    assert boot_objective(stuck, world.weights, None) is None
    assert sound.status is BootStatus.OK


def test_clock_that_sticks_in_a_boot_voids_the_later_blocks_only() -> None:
    world = replace(article_world(), stuck_from_s={"node-1": 800.0})

    made = boot(world, BEST, node_id="node-1").boot

    validity = [block.is_valid for block in made.blocks]
    assert validity == sorted(validity, reverse=True)
    assert {True, False} == set(validity)
    assert made.status is BootStatus.OK
    assert made.reason


def test_infeasible_arm_ends_without_facts_or_blocks() -> None:
    world = replace(article_world(), failures=Failures(infeasible=frozenset({BEST})))

    made = boot(world, BEST)

    assert made.boot.status is BootStatus.INFEASIBLE
    assert made.boot.facts is None
    assert made.boot.blocks == ()
    assert made.end_s > made.start_s


def test_transient_failures_come_at_their_rate_and_change_no_other_boot() -> None:
    cell = Cell(streams=1, temperature=0.7)
    sound = with_cells(article_world(), cell, window_s=20.0)
    frail = replace(sound, failures=Failures(transient=0.2))

    pairs = [
        (boot(sound, BEST, replicate=number), boot(frail, BEST, replicate=number))
        for number in range(300)
    ]

    failed = [b for _, b in pairs if b.boot.status is BootStatus.FAILED]
    assert len(failed) == pytest.approx(60, abs=25)
    assert all(b.boot.facts is None for b in failed)
    assert all(a == b for a, b in pairs if b.boot.status is BootStatus.OK)


def test_engine_that_dies_in_a_block_leaves_the_finished_ones() -> None:
    world = replace(article_world(), failures=Failures(death_by_block=0.3))

    boots = [boot(world, BEST, replicate=number).boot for number in range(20)]

    lost = [b for b in boots if b.status is BootStatus.FAILED]
    assert lost
    assert any(0 < len(b.blocks) < 10 for b in lost)
    assert all("engine lost in cell" in b.reason for b in lost)


def test_truth_of_the_article_ranks_the_published_pair_first() -> None:
    world = article_world()

    assert world.best_arm().label.startswith("probabilistic+block")
    assert world.regret(world.best_arm()) == 0.0
    assert max(world.arms, key=world.true_objective) == BASELINE
    busy = uniform_weights(streams=(16,))
    quiet = uniform_weights(streams=(1,))
    assert world.best_arm(quiet).num_speculative_tokens == 7
    assert (
        world.best_arm(busy).num_speculative_tokens < world.best_arm(quiet).num_speculative_tokens
    )


def test_null_world_has_equal_arms_in_truth_and_in_noise() -> None:
    world = null_world()
    cell = Cell(streams=4, temperature=0.7)

    truths = {world.true_objective(arm) for arm in world.arms}
    times = {world.step_time_s(arm, streams) for arm in world.arms for streams in (4,)}
    lengths = {id(world.table(arm, cell.temperature)) for arm in world.arms}

    assert len(world.arms) == 16
    assert len(truths) == len(times) == len(lengths) == 1
    for arm in (world.arms[0], world.arms[-1]):
        for block in boot(world, arm).boot.blocks:
            assert find_invalid(block, Expectations(arm=arm)) == ()


def test_tie_world_has_two_equal_best_arms() -> None:
    world = tie_world()

    ranked = sorted(world.arms, key=world.true_objective)

    assert world.regret(ranked[1]) == pytest.approx(0.0, abs=1e-12)
    assert world.regret(ranked[2]) > 0.001
    assert abs(ranked[0].num_speculative_tokens - ranked[1].num_speculative_tokens) == 1


def test_cliff_world_has_the_published_depth_scores() -> None:
    world = cliff_world()

    speeds = [1.0 / world.true_objective(arm) for arm in world.arms]

    assert [arm.num_speculative_tokens for arm in world.arms] == [4, 5, 6, 7, 8]
    assert speeds == pytest.approx([24.0, 25.0, 26.0, 30.0, 12.0])


def test_interaction_world_loses_with_either_key_and_wins_with_both() -> None:
    world = interaction_world()

    def best(draft: str, rejection: str) -> Arm:
        arms = [speculating(draft, rejection, depth) for depth in DEPTHS]
        return min(arms, key=world.true_objective)

    base = best("greedy", "standard")
    both = best("probabilistic", "block")
    assert world.true_objective(best("greedy", "block")) > world.true_objective(base)
    assert world.true_objective(best("probabilistic", "standard")) > world.true_objective(base)
    assert world.true_objective(both) < world.true_objective(base)
    assert (base.num_speculative_tokens, both.num_speculative_tokens) == (5, 7)
    assert world.best_arm() == both


def test_objectives_that_are_asked_for_hold_exactly() -> None:
    world = with_objectives(article_world(), {BEST: 0.05, BASELINE: 0.06})

    assert world.true_objective(BEST) == pytest.approx(0.05, abs=1e-12)
    assert world.true_objective(BASELINE) == pytest.approx(0.06, abs=1e-12)
