from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from core_samples import BASELINE, BOARD, CELL, WIDE_CELL, make_arm, make_block, make_boot
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.codec import from_plain, to_plain
from orchestrator.core.promise import Expected, Promise, make_promise, promise_gate
from orchestrator.core.types import Arm, Block, BoardModel, Boot, CounterSnapshot

ARM = make_arm()
TOLERANCE = 0.02


def boots_of(
    arm: Arm, speeds: Sequence[float] = (0.030, 0.0303, 0.0297), lengths: Sequence[float] = (3, 3.1)
) -> list[Boot]:
    """Return boots whose seconds a token spread as ``speeds``, each with blocks of ``lengths``."""
    return [
        make_boot(
            arm,
            replicate=number,
            blocks=[
                make_block(
                    arm,
                    seconds_per_token=speed * lengths[0] / length,
                    length=length + 0.001 * number,
                    index=index,
                )
                for index, length in enumerate(lengths)
            ],
        )
        for number, speed in enumerate(speeds)
    ]


def promised(
    arm: Arm = ARM, boots: Sequence[Boot] | None = None, board: BoardModel | None = None
) -> Promise:
    return make_promise(
        arm,
        boots_of(arm) if boots is None else boots,
        cells=(CELL,),
        cell=CELL,
        board=board,
        confidence=0.95,
    )


def block(step_s: float = 0.09, length: float = 3.05, arm: Arm = ARM) -> Block:
    return make_block(arm, seconds_per_token=step_s / length, length=length)


def test_promise_is_the_boots_mean_step_and_the_pooled_length() -> None:
    promise = promised()

    assert promise.step_time is not None
    assert promise.acceptance is not None
    assert promise.missing is None
    assert promise.step_time.mean == pytest.approx(0.09, rel=0.02)
    assert promise.step_time.weight == 3
    assert promise.acceptance.mean == pytest.approx(3.05, rel=0.01)
    assert promise.acceptance.weight == sum(
        b.counters.num_drafts or 0 for boot in boots_of(ARM) for b in boot.blocks
    )
    assert from_plain(Promise, to_plain(promise)) == promise


def test_block_as_promised_passes() -> None:
    gate = promise_gate(promised(), block(), promise_tolerance=TOLERANCE)

    assert gate.passed is True
    assert "ms a step" in gate.reason
    assert "tokens a step" in gate.reason


def test_slow_block_fails_and_says_the_figures() -> None:
    gate = promise_gate(promised(), block(step_s=0.12), promise_tolerance=TOLERANCE)

    assert gate.passed is False
    assert gate.blocks
    assert gate.reason.startswith("120.0 ms a step, ")


def test_block_that_accepts_less_fails() -> None:
    gate = promise_gate(promised(), block(length=1.5), promise_tolerance=TOLERANCE)

    assert gate.passed is False
    assert "1.50 tokens a step, 3.05 promised" in gate.reason


def test_better_block_than_promised_passes() -> None:
    assert promise_gate(
        promised(), block(step_s=0.05, length=6.0), promise_tolerance=TOLERANCE
    ).passed


def test_what_the_path_costs_is_allowed_for() -> None:
    promise = promised()
    assert promise.step_time is not None
    most = promise.step_time.mean * promise.step_time.factor(1.0, 0.95)

    assert promise_gate(promise, block(step_s=most * 1.01), promise_tolerance=TOLERANCE).passed
    assert not promise_gate(promise, block(step_s=most * 1.03), promise_tolerance=TOLERANCE).passed


def test_under_a_board_model_only_acceptance_is_promised() -> None:
    promise = promised(board=BOARD)

    assert promise.step_time is None
    assert promise.missing is None
    gate = promise_gate(promise, block(step_s=9.0), promise_tolerance=TOLERANCE)
    assert gate.passed is True
    assert gate.reason.startswith("step time not compared: it is modelled")
    assert promise_gate(promise, block(length=1.5), promise_tolerance=TOLERANCE).passed is False


def test_without_speculation_only_step_time_is_promised() -> None:
    promise = promised(BASELINE, boots_of(BASELINE, lengths=(1, 1)))

    assert promise.acceptance is None
    assert promise.missing is None
    found = block(step_s=0.03, length=1.0, arm=BASELINE)
    gate = promise_gate(promise, found, promise_tolerance=TOLERANCE)
    assert gate.passed is True
    assert gate.reason.endswith("acceptance not compared: nothing is drafted")


def test_one_boot_of_one_block_promises_nothing_and_keeps_out() -> None:
    boots = boots_of(ARM, speeds=(0.03,), lengths=(3,))
    promise = promised(boots=boots)

    gate = promise_gate(promise, block(), promise_tolerance=TOLERANCE)

    assert promise.missing == "the study's boots show no spread of step times"
    assert gate.passed is None
    assert gate.blocks
    modelled = promised(boots=boots, board=BOARD)
    assert modelled.missing == "the study's blocks show no spread of acceptance"


def test_arm_or_cell_that_was_not_measured_promises_nothing() -> None:
    assert promised(make_arm(3), boots_of(ARM)).missing is not None
    elsewhere = make_promise(
        ARM, boots_of(ARM), cells=(CELL,), cell=WIDE_CELL, board=None, confidence=0.95
    )
    assert (elsewhere.step_time, elsewhere.acceptance) == (None, None)


def test_boots_of_other_arms_tell_the_spread_of_a_single_boot() -> None:
    boots = [*boots_of(make_arm(3)), *boots_of(ARM, speeds=(0.03,))]

    promise = promised(boots=boots)

    assert promise.step_time is not None
    assert promise.step_time.weight == 1
    assert promise.step_time.degrees_of_freedom == 2


def test_block_that_counts_nothing_cannot_tell() -> None:
    empty = replace(block(), counters=CounterSnapshot(generation_tokens=None, prompt_tokens=None))

    gate = promise_gate(promised(), empty, promise_tolerance=TOLERANCE)

    assert gate.passed is None
    assert gate.blocks
    assert gate.reason == "no step was counted; no draft was counted"


def test_factor_is_that_of_a_prediction() -> None:
    """Three boots with a spread of 1 %: t(0.975, 2) = 4.303, times sqrt(1 + 1/3)."""
    expected = Expected(mean=0.09, variance=0.01**2 / 3, weight=3, degrees_of_freedom=2)

    assert math.log(expected.factor(1.0, 0.95)) == pytest.approx(
        4.3027 * 0.01 * math.sqrt(4 / 3), rel=1e-4
    )


@given(
    weight=st.floats(1, 1e6),
    more=st.floats(1.01, 100),
    confidence=st.floats(0.5, 0.99),
    degrees=st.integers(1, 50),
)
def test_factor_falls_with_what_was_seen_and_never_below_one(
    weight: float, more: float, confidence: float, degrees: int
) -> None:
    expected = Expected(mean=3.0, variance=1e-4, weight=1000.0, degrees_of_freedom=degrees)

    few, many = expected.factor(weight, confidence), expected.factor(weight * more, confidence)

    assert few >= many >= 1


def drawn(rng: np.random.Generator, rate: float, drafts: int) -> Block:
    """Return a block of independent drafts of seven tokens, each accepted at a rate."""
    runs = np.minimum(rng.geometric(1 - rate, size=drafts) - 1, 7)
    by_position = tuple(float((runs > index).sum()) for index in range(7))
    made = make_block(ARM, length=1 + runs.mean())
    counters = replace(
        made.counters,
        num_drafts=float(drafts),
        num_draft_tokens=7.0 * drafts,
        num_accepted_tokens=float(runs.sum()),
        num_accepted_tokens_per_pos=by_position,
    )
    return replace(made, counters=counters)


def kept_of(rate: float, *, num: int = 400) -> int:
    """Return how many of so many honest promises of four short blocks a new block keeps."""
    rng = np.random.default_rng(5)
    kept = 0
    for _ in range(num):
        boots = [
            make_boot(ARM, [replace(drawn(rng, 0.75, 130), index=0)], replicate=number)
            for number in range(4)
        ]
        promise = make_promise(ARM, boots, cells=(CELL,), cell=CELL, board=BOARD, confidence=0.99)
        kept += bool(promise_gate(promise, drawn(rng, rate, 2000), promise_tolerance=0.02).passed)
    return kept


def test_honest_block_keeps_the_promise_of_a_few_short_blocks() -> None:
    """Two-sided 99 %, of which the slow side counts: 2 of 400 fail on average."""
    assert kept_of(0.75) >= 396


def test_block_that_accepts_far_less_breaks_it_all_the_same() -> None:
    assert kept_of(0.2) <= 40


def test_few_blocks_that_agree_by_chance_are_no_narrow_promise() -> None:
    """Seen: 3.83 to 3.98 tokens in four blocks of 130 drafts, and 3.41 in an honest fifth."""
    first = make_block(ARM, length=3.85, tokens=500)
    boots = [
        make_boot(ARM, [make_block(ARM, length=3.85 + 0.01 * n, tokens=500)], replicate=n)
        for n in range(4)
    ]
    promise = make_promise(ARM, boots, cells=(CELL,), cell=CELL, board=BOARD, confidence=0.99)
    rates = [0.81**power for power in range(1, 8)]
    drafts = first.counters.num_drafts
    assert drafts
    low = replace(
        make_block(ARM, length=3.41, tokens=500).counters,
        num_accepted_tokens_per_pos=tuple(rate * drafts for rate in rates),
    )
    blind = replace(low, num_accepted_tokens_per_pos=None)

    def answer(counters: CounterSnapshot) -> bool | None:
        block = replace(first, counters=counters)
        return promise_gate(promise, block, promise_tolerance=0.02).passed

    assert answer(blind) is False, "the blocks alone promise too much"
    assert answer(low) is True
