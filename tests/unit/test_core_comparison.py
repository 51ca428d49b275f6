from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from core_samples import (
    BASELINE,
    BOARD,
    CELL,
    make_arm,
    make_block,
    make_boot,
    make_boots,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.comparison import (
    BY_BOOT,
    MODELLED,
    POOLED,
    Comparison,
    compare_scores,
    measured,
)
from orchestrator.core.estimate import Contrast
from orchestrator.core.types import Arm, BoardModel, Boot, BootStatus, Cell

ARM = make_arm(7)
OTHER = make_arm(5)
THIRD = make_arm(4)
CELLS = tuple(Cell(streams=streams, temperature=0.7) for streams in (1, 2, 8))
WEIGHTS = dict.fromkeys(CELLS, 1 / 3)


def study(
    seed: int,
    *,
    counts: Mapping[Arm, int],
    boot_cv: float = 0.02,
    prompt_sd: float = 0.3,
    luck_sd: float = 0.1,
    first_replicate: Mapping[Arm, int] | None = None,
) -> list[Boot]:
    """Return boots whose prompts follow from the replicate, and whose luck is their own."""
    boots: list[Boot] = []
    for arm, count in counts.items():
        begin = (first_replicate or {}).get(arm, 0)
        for replicate in range(begin, begin + count):
            prompts = np.random.default_rng([seed, replicate])
            own = np.random.default_rng([seed, replicate, arm.num_speculative_tokens])
            step_s = 0.1 * (1 + arm.num_speculative_tokens / 50) * own.lognormal(0, boot_cv)
            blocks = []
            for index, cell in enumerate(CELLS):
                scale = cell.streams**-0.5
                length = 3.0 + scale * (prompts.normal(0, prompt_sd) + own.normal(0, luck_sd))
                length = max(1.2, length)
                blocks.append(
                    make_block(
                        arm,
                        cell=cell,
                        seconds_per_token=step_s / length,
                        length=length,
                        tokens=round(500 * length) * cell.streams,
                        index=index,
                    )
                )
            boots.append(make_boot(arm, blocks, replicate=replicate))
    return boots


def compared(
    boots: Sequence[Boot],
    weights: Mapping[Cell, float] = WEIGHTS,
    *,
    board: BoardModel | None = None,
) -> Comparison:
    return measured(boots, cells=tuple(weights), board=board).compare(weights)


def contrast_of(
    boots: Sequence[Boot],
    a: Arm = ARM,
    b: Arm = OTHER,
    *,
    weights: Mapping[Cell, float] = WEIGHTS,
    board: BoardModel | None = None,
) -> Contrast:
    return compared(boots, weights, board=board).contrast(a, b, confidence=0.95)


def width(contrast: Contrast) -> float:
    assert contrast.low is not None, contrast.reason
    assert contrast.high is not None
    return contrast.high - contrast.low


def test_contrast_tells_counts_method_and_what_the_interval_is_made_of() -> None:
    contrast = contrast_of(study(1, counts={ARM: 3, OTHER: 3, THIRD: 2}))
    assert contrast.method == POOLED
    assert (contrast.num_boots, contrast.num_blocks) == ((3, 3), (9, 9))
    assert contrast.degrees_of_freedom == 5
    assert contrast.boot_share is not None
    assert 0 < contrast.boot_share < 1
    assert contrast.reason is None
    assert "3 and 3 boots with 9 and 9 blocks" in contrast.in_words


def test_contrast_half_widths_of_boots_and_acceptance_add_as_squares() -> None:
    boots = study(2, counts={ARM: 3, OTHER: 3})
    comparison = compared(boots)
    contrast = comparison.contrast(ARM, OTHER, confidence=0.95)
    parts = comparison.pooled.parts_of({ARM: 1.0, OTHER: -1.0})
    assert parts is not None
    (between,) = (part.value for part in parts)
    assert contrast.boot_share is not None
    acceptance = between * (1 / contrast.boot_share - 1)
    # 4 degrees of freedom between boots, 8 of the nine pairs of blocks.
    half = math.sqrt(2.776445**2 * between + 2.306004**2 * acceptance)
    assert width(contrast) == pytest.approx(2 * half, rel=1e-5)


def test_contrast_few_streams_borrow_the_acceptance_of_many() -> None:
    boots = study(3, counts={ARM: 3, OTHER: 3})
    taken = measured(boots, cells=CELLS, board=None)
    one_stream = taken.compare({CELLS[0]: 1.0})
    pooled = one_stream.contrast(ARM, OTHER, confidence=0.95)
    whole = compare_scores(one_stream.whole, a=ARM, b=OTHER, confidence=0.95)
    assert width(pooled) < 0.6 * width(whole)


def test_contrast_pairing_narrows_where_prompts_dominate() -> None:
    counts = {ARM: 4, OTHER: 4}
    same = study(4, counts=counts, boot_cv=0.001, luck_sd=0.01)
    apart = study(4, counts=counts, boot_cv=0.001, luck_sd=0.01, first_replicate={OTHER: 20})
    assert width(contrast_of(same)) < width(contrast_of(apart)) / 3


def test_contrast_three_blocks_of_one_boot_are_no_three_boots() -> None:
    speeds = (92, 101, 111)
    one_boot = make_boot(
        ARM, [make_block(ARM, seconds_per_token=1 / v, index=i) for i, v in enumerate(speeds)]
    )
    rivals = [
        *make_boots(THIRD, [1 / 92, 1 / 101, 1 / 111]),
        *make_boots(OTHER, [1 / 90, 1 / 99, 1 / 109]),
    ]
    weights = {CELL: 1.0}
    single = contrast_of([one_boot, *rivals], weights=weights)
    three = contrast_of([*make_boots(ARM, [1 / v for v in speeds]), *rivals], weights=weights)
    assert (single.num_boots, three.num_boots) == ((1, 3), (3, 3))
    assert width(single) > width(three)


def test_contrast_without_replicated_arm_has_no_interval_and_says_why() -> None:
    contrast = contrast_of(study(5, counts={ARM: 1, OTHER: 1}))
    assert contrast.log_ratio is not None
    assert (contrast.low, contrast.high, contrast.excludes_zero) == (None, None, None)
    assert contrast.speedup_bounds is None
    assert "no arm has two scored boots" in (contrast.reason or "")
    assert "no interval" in contrast.in_words


def test_contrast_without_replicated_arm_whose_acceptance_is_known_says_the_same() -> None:
    boots = [
        make_boot(arm, [make_block(arm, length=3 + i / 10, index=i) for i in range(2)])
        for arm in (ARM, OTHER)
    ]
    contrast = contrast_of(boots, weights={CELL: 1.0})
    assert (contrast.low, contrast.method) == (None, POOLED)
    assert "no arm has two scored boots" in (contrast.reason or "")


def test_contrast_arm_of_one_block_is_compared_by_whole_boots() -> None:
    boots = [*make_boots(ARM, [0.030, 0.031, 0.032]), *make_boots(OTHER, [0.040])]
    contrast = contrast_of(boots, weights={CELL: 1.0})
    assert contrast.method == BY_BOOT
    assert contrast.boot_share is None
    assert contrast.speedup == pytest.approx(0.04 / (0.030 * 0.031 * 0.032) ** (1 / 3))


def test_contrast_boots_of_one_observation_made_thrice_have_no_interval() -> None:
    blocks = [make_block(ARM, seconds_per_token=0.03)]
    plain = [make_block(BASELINE, seconds_per_token=0.08)]
    boots = [
        *(make_boot(ARM, blocks, replicate=i) for i in range(3)),
        *(make_boot(BASELINE, plain, replicate=i) for i in range(3)),
    ]
    taken = measured(boots, cells=(CELL,), board=None)
    assert taken.copies[ARM] == 2
    contrast = taken.compare({CELL: 1.0}).contrast(ARM, BASELINE, confidence=0.95)
    assert contrast.low is None
    assert "copies" in (contrast.reason or "")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda block: replace(block, counters=replace(block.counters, num_drafts=0.0)),
        lambda block: replace(block, counters=replace(block.counters, num_accepted_tokens=None)),
        lambda block: replace(block, invalid=make_block(ARM, invalid_reason="x").invalid),
        lambda block: replace(block, duration_s=0.0),
    ],
    ids=["zero drafts", "no counter", "invalid", "no window"],
)
def test_contrast_arm_without_a_usable_block_is_not_comparable(spoil: object) -> None:
    assert callable(spoil)
    boots = study(6, counts={ARM: 2, OTHER: 2})
    spoilt = [replace(b, blocks=tuple(map(spoil, b.blocks))) if b.arm == ARM else b for b in boots]
    comparison = compared(spoilt)
    contrast = comparison.contrast(ARM, OTHER, confidence=0.95)
    assert (contrast.log_ratio, contrast.low) == (None, None)
    assert contrast.num_boots == (0, 2)
    assert f"{ARM.label}: no scored boot" in (contrast.reason or "")
    assert "not comparable" in contrast.in_words
    assert comparison.seconds(ARM) is None
    assert comparison.num_blocks(ARM) == 0


def test_contrast_of_an_arm_that_never_accepts_stands_on_its_boots() -> None:
    boots = [*make_boots(ARM, [0.03, 0.031, 0.032]), *make_boots(OTHER, [0.04, 0.041])]
    deaf = [
        replace(
            boot,
            blocks=tuple(
                replace(b, counters=replace(b.counters, num_accepted_tokens=0.0))
                for b in boot.blocks
            ),
        )
        for boot in boots
    ]
    contrast = contrast_of(deaf, weights={CELL: 1.0})
    assert contrast.boot_share == 1.0
    assert width(contrast) > 0


def test_compare_without_boots_or_cells_has_no_arm() -> None:
    for comparison in (compared([]), compared(study(7, counts={ARM: 2}), {CELLS[0]: 0.0})):
        assert comparison.boots == {}
        assert comparison.contrast(ARM, OTHER, confidence=0.95).log_ratio is None
        assert comparison.outliers() == ()


def test_compare_boot_without_a_weighted_cell_takes_no_part() -> None:
    boots = study(8, counts={ARM: 3, OTHER: 3})
    cut = [replace(boots[0], blocks=boots[0].blocks[1:]), *boots[1:]]
    taken = measured(cut, cells=CELLS, board=None)
    assert len(taken.compare(WEIGHTS).boots[ARM]) == 2
    assert len(taken.compare({CELLS[1]: 1.0}).boots[ARM]) == 3
    assert len(taken.compare({CELLS[0]: 0.0, CELLS[1]: 1.0}).boots[ARM]) == 3


@pytest.mark.parametrize(
    "status", [BootStatus.FAILED, BootStatus.INFEASIBLE, BootStatus.NOT_IN_FORCE]
)
def test_measured_leaves_out_boots_that_did_not_end_well(status: BootStatus) -> None:
    boots = study(9, counts={ARM: 2})
    taken = measured([replace(boots[0], status=status), boots[1]], cells=CELLS, board=None)
    assert [boot.replicate for boot in taken.boots] == [1]


def test_contrast_arms_on_nodes_of_their_own_still_have_an_interval() -> None:
    boots = study(10, counts={ARM: 3, OTHER: 3})
    apart = [replace(b, node_id="a" if b.arm == ARM else "b") for b in boots]
    assert contrast_of(apart) == contrast_of(boots)


def test_contrast_modelled_holds_acceptance_alone_and_needs_no_second_boot() -> None:
    boots = [
        make_boot(arm, [make_block(arm, length=3 + i / 10 + d, index=i) for i in range(3)])
        for arm, d in ((ARM, 0.2), (OTHER, 0.0))
    ]
    contrast = contrast_of(boots, weights={CELL: 1.0}, board=BOARD)
    assert contrast.method == MODELLED
    assert contrast.boot_share == 0.0
    assert (contrast.num_boots, contrast.num_blocks) == ((1, 1), (3, 3))
    assert width(contrast) > 0
    ratio = BOARD.step_time_s(7, 1) / BOARD.step_time_s(5, 1) * 3.1 / 3.3
    assert contrast.log_ratio == pytest.approx(math.log(ratio), abs=1e-3)


def test_contrast_known_score_adds_neither_variance_nor_degrees_of_freedom() -> None:
    boots = study(11, counts={ARM: 3})
    plain = [
        make_boot(BASELINE, [make_block(BASELINE, cell=cell) for cell in CELLS], replicate=i)
        for i in range(3)
    ]
    alone = contrast_of([*boots, plain[0]], ARM, BASELINE, board=BOARD)
    thrice = contrast_of([*boots, *plain], ARM, BASELINE, board=BOARD)
    assert width(alone) == pytest.approx(width(thrice))
    # Nine blocks show the spread of acceptance, whatever the baseline does.
    assert alone.degrees_of_freedom == 8


def test_contrast_modelled_of_single_blocks_needs_a_second_boot() -> None:
    single = contrast_of(
        [*make_boots(ARM, [1.0]), *make_boots(OTHER, [1.0])], weights={CELL: 1.0}, board=BOARD
    )
    assert (single.low, single.method) == (None, BY_BOOT)


def test_contrast_modelled_identical_acceptance_has_no_interval() -> None:
    boots = [make_boot(arm, [make_block(arm, index=i) for i in range(3)]) for arm in (ARM, OTHER)]
    contrast = contrast_of(boots, weights={CELL: 1.0}, board=BOARD)
    assert contrast.low is None
    assert "copies" in (contrast.reason or "")


def test_contrast_arms_pooled_differently_add_their_variances() -> None:
    steady = study(12, counts={OTHER: 3}, prompt_sd=0.05)
    # Acceptance of this arm falls with the streams, so its cells are not pooled.
    steep = [
        replace(
            boot,
            blocks=tuple(
                make_block(
                    ARM,
                    cell=cell,
                    length=5.0 - 0.3 * cell.streams + 0.01 * boot.replicate,
                    seconds_per_token=0.03 + 0.001 * boot.replicate,
                    index=index,
                )
                for index, cell in enumerate(CELLS)
            ),
            arm=ARM,
        )
        for boot in steady
    ]
    taken = measured([*steady, *steep], cells=CELLS, board=None)
    own = taken.acceptance[ARM]
    assert own is not None
    assert len(own.groups) == 3
    contrast = taken.compare(WEIGHTS).contrast(ARM, OTHER, confidence=0.95)
    assert contrast.method == POOLED
    assert width(contrast) > 0


def test_outliers_of_a_study_are_boots_and_none_is_dropped() -> None:
    boots = study(13, counts={ARM: 4, OTHER: 4, THIRD: 4}, boot_cv=0.005)
    slow = replace(
        boots[1],
        blocks=tuple(replace(b, duration_s=1.2 * b.duration_s) for b in boots[1].blocks),
    )
    comparison = compared([boots[0], slow, *boots[2:]])
    (flagged,) = comparison.outliers()
    assert (flagged.arm, flagged.boot) == (ARM, slow.trial_id)
    assert flagged.score / flagged.others == pytest.approx(1.2, rel=0.02)
    assert len(comparison.boots[ARM]) == 4
    assert compared(boots).outliers() == ()


def test_outliers_modelled_are_looked_for_in_acceptance() -> None:
    boots = study(14, counts={ARM: 4, OTHER: 4}, prompt_sd=0.01, luck_sd=0.01)
    odd = replace(
        boots[0],
        blocks=tuple(
            replace(
                b,
                counters=replace(
                    b.counters, num_accepted_tokens=0.5 * (b.counters.num_accepted_tokens or 0)
                ),
            )
            for b in boots[0].blocks
        ),
    )
    (flagged,) = compared([odd, *boots[1:]], board=BOARD).outliers()
    assert flagged.boot == odd.trial_id


def test_compare_ttft_ignores_boots_without_times() -> None:
    boots = [*make_boots(ARM, [0.03] * 2, ttft_s=0.4), *make_boots(OTHER, [0.03] * 2, ttft_s=0.2)]
    silent = make_boot(ARM, [make_block(ARM, ttft_s=(), length=4.0)], replicate=9)
    taken = measured([*boots, silent], cells=(CELL,), board=None)
    contrast = taken.compare_ttft(CELL, a=ARM, b=OTHER, confidence=0.95)
    assert contrast.log_ratio == pytest.approx(math.log(2))
    assert contrast.num_boots == (2, 2)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    counts=st.lists(st.integers(1, 4), min_size=3, max_size=3),
)
def test_contrast_is_antisymmetric(seed: int, counts: list[int]) -> None:
    comparison = compared(study(seed, counts=dict(zip((ARM, OTHER, THIRD), counts, strict=True))))
    forth = comparison.contrast(ARM, OTHER, confidence=0.95)
    back = comparison.contrast(OTHER, ARM, confidence=0.95)
    assert forth.log_ratio is not None
    assert back.log_ratio == pytest.approx(-forth.log_ratio)
    assert forth.reason == back.reason
    assert forth.boot_share == (None if back.boot_share is None else pytest.approx(back.boot_share))
    if forth.low is not None and forth.high is not None:
        assert forth.low < forth.log_ratio < forth.high
        assert back.low == pytest.approx(-forth.high)


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), factor=st.floats(0.5, 50.0), unit=st.floats(0.01, 100.0))
def test_contrast_depends_on_neither_the_counts_nor_the_unit_of_time(
    seed: int, factor: float, unit: float
) -> None:
    boots = study(seed, counts={ARM: 3, OTHER: 3})
    changed = [
        replace(
            boot,
            blocks=tuple(
                replace(
                    b,
                    duration_s=b.duration_s * factor * unit,
                    counters=replace(
                        b.counters,
                        num_drafts=(b.counters.num_drafts or 0) * factor,
                        num_accepted_tokens=(b.counters.num_accepted_tokens or 0) * factor,
                    ),
                )
                for b in boot.blocks
            ),
        )
        for boot in boots
    ]
    one, other = contrast_of(boots), contrast_of(changed)
    assert other.log_ratio == pytest.approx(one.log_ratio, abs=1e-9)
    assert width(other) == pytest.approx(width(one), rel=1e-6)


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), index=st.integers(0, 4))
def test_contrast_a_copy_of_a_boot_changes_nothing(seed: int, index: int) -> None:
    boots = study(seed, counts={ARM: 3, OTHER: 2})
    copy = replace(boots[index], replicate=9, trial_id="copy")
    assert contrast_of([*boots, copy]) == contrast_of(boots)


@pytest.mark.parametrize("boot_cv", [0.005, 0.06])
def test_contrast_covers_the_truth_as_often_as_it_says(boot_cv: float) -> None:
    truth = math.log((1 + 7 / 50) / (1 + 5 / 50))
    num_studies, held = 400, 0
    for seed in range(num_studies):
        boots = study(seed, counts={ARM: 3, OTHER: 3}, boot_cv=boot_cv)
        contrast = contrast_of(boots)
        assert contrast.low is not None
        assert contrast.high is not None
        held += contrast.low <= truth <= contrast.high
    assert 0.93 <= held / num_studies <= 0.985


def test_contrast_across_builds_adds_the_spread_of_each_and_pairs_the_blocks() -> None:
    """A02: two builds are two arms; neither lends the other its boots' spread."""
    boots = study(5, counts={ARM: 3, OTHER: 3})
    elsewhere = [
        replace(b, arm=replace(b.arm, engine_build="0.28.0"), trial_id=f"{b.trial_id}-there")
        for b in study(6, counts={ARM: 4})
    ]
    there = elsewhere[0].arm
    comparison = compared([*boots, *elsewhere])

    alone = compared(boots).contrast(ARM, OTHER, confidence=0.95)
    assert comparison.contrast(ARM, OTHER, confidence=0.95) == alone
    across = comparison.contrast(there, ARM, confidence=0.95)
    assert across.num_boots == (4, 3)
    assert across.degrees_of_freedom == 3
    spread = comparison.pooled.spread
    assert spread["0.28.0"] == compared(elsewhere).pooled.spread["0.28.0"]
    assert spread["0.28.0"].value != spread["0.32.0"].value
    missing = comparison.contrast(there, make_arm(2), confidence=0.95)
    assert missing.reason == f"0.32.0/{make_arm(2).label}: no scored boot"
