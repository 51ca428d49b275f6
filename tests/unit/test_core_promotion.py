from __future__ import annotations

import math
from dataclasses import replace

import pytest
from core_samples import BASELINE, CELL, WIDE_CELL, make_arm, make_block, make_boot, make_boots

from orchestrator.core.estimate import Contrast
from orchestrator.core.promotion import (
    Gate,
    GateSettings,
    better_gate,
    cells_gate,
    in_force_gate,
    kv_gate,
    soak_gate,
    synthetic_gate,
    ttft_gate,
    valid_gate,
)
from orchestrator.core.types import BootStatus, Invalid, Invalidity

ARM = make_arm()
SETTINGS = GateSettings(cell_tolerance=0.05, ttft_tolerance=0.1)


def make_contrast(
    slowdown: float, low: float | None, high: float | None, boots: tuple[int, int] = (2, 3)
) -> Contrast:
    """Return a contrast by the ratio of times, above 1 when the challenger is slower."""
    return Contrast(
        log_ratio=math.log(slowdown),
        low=None if low is None else math.log(low),
        high=None if high is None else math.log(high),
        confidence=0.95,
        num_boots=boots,
        degrees_of_freedom=4,
        method="t",
        reason=None if low is not None else "no replicate",
    )


SOAKED = {
    *(Invalid.REQUESTS, Invalid.TOKENS, Invalid.RESTARTED, Invalid.TRUNCATED, Invalid.GARBAGE)
}
"""What may not happen at full concurrency."""


def test_gate_blocks_on_failure_and_on_a_required_unknown() -> None:
    answers = {(True, True): False, (False, False): True, (None, False): False, (None, True): True}
    for (passed, required), blocks in answers.items():
        assert Gate(name="g", passed=passed, reason="", required=required).blocks is blocks


@pytest.mark.parametrize(
    ("contrast", "fixed", "passed"),
    [
        (make_contrast(0.5, 0.4, 0.6), (False, False), True),
        (make_contrast(0.9, 0.7, 1.1), (False, False), False),
        (make_contrast(0.5, 0.4, 0.6, (1, 3)), (False, False), None),
        (make_contrast(0.5, 0.4, 0.6, (2, 1)), (False, False), None),
        (make_contrast(0.5, 0.4, 0.6, (2, 1)), (False, True), True),
        (make_contrast(0.5, None, None), (False, False), None),
    ],
)
def test_better_gate_needs_an_interval_of_fresh_boots_below_zero(
    contrast: Contrast, fixed: tuple[bool, bool], passed: bool | None
) -> None:
    gate = better_gate(contrast, fixed=fixed, settings=SETTINGS)
    assert gate.passed is passed
    assert gate.blocks is (passed is not True)


@pytest.mark.parametrize(
    ("contrast", "passed"),
    [
        (make_contrast(1.0, 0.97, 1.04), True),
        (make_contrast(1.11, 1.08, 1.15), False),
        (make_contrast(1.04, 1.02, 1.06), None),
        (make_contrast(1.10, 0.9, 1.3), None),
        (make_contrast(1.0, None, None), None),
        (
            Contrast(
                log_ratio=None,
                low=None,
                high=None,
                confidence=0.95,
                num_boots=(0, 0),
                degrees_of_freedom=0,
                method="t",
                reason="no boots",
            ),
            None,
        ),
    ],
)
def test_cells_gate_is_non_inferiority_by_interval(contrast: Contrast, passed: bool | None) -> None:
    good = make_contrast(0.8, 0.78, 0.82)
    gate = cells_gate({CELL: good, WIDE_CELL: contrast}, SETTINGS)
    assert gate.passed is passed
    assert gate.blocks is (passed is False)
    assert passed or WIDE_CELL.key in gate.reason
    assert CELL.key not in gate.reason
    strict = cells_gate({WIDE_CELL: contrast}, replace(SETTINGS, strict=True))
    assert strict.blocks is (passed is not True)


def test_cells_gate_gain_in_one_cell_does_not_pay_for_a_loss_in_another() -> None:
    contrasts = {
        CELL: make_contrast(1 / 1.24, 0.78, 0.84),
        WIDE_CELL: make_contrast(1.11, 1.08, 1.14),
    }
    gate = cells_gate(contrasts, SETTINGS)
    assert gate.passed is False
    assert f"{WIDE_CELL.key}: 0.90 times as fast" in gate.reason
    generous = GateSettings(cell_tolerance=0.15)
    assert cells_gate(contrasts, generous).passed is True
    assert cells_gate(contrasts, GateSettings(cell_tolerance=1.0)).passed is True


def test_cells_gate_loss_within_the_tolerance_passes_at_its_edge() -> None:
    edge = make_contrast(1.0, 0.9, 1 / 0.95)
    assert cells_gate({CELL: edge}, SETTINGS).passed is True


def test_ttft_gate_judges_the_rise_by_interval() -> None:
    slow = ttft_gate({CELL: make_contrast(1.4, 1.2, 1.6)}, SETTINGS, modelled=False)
    assert slow.passed is False
    assert "1.40 times as long" in slow.reason
    fine = ttft_gate({CELL: make_contrast(1.0, 0.95, 1.05)}, SETTINGS, modelled=False)
    assert fine.passed is True
    unknown = ttft_gate({CELL: make_contrast(1.0, None, None)}, SETTINGS, modelled=False)
    assert (unknown.passed, unknown.blocks) == (None, False)
    assert "no replicate" in unknown.reason


def test_ttft_gate_without_tolerance_or_under_a_model_is_not_tested() -> None:
    contrasts = {CELL: make_contrast(1.4, 1.2, 1.6)}
    assert ttft_gate(contrasts, GateSettings(), modelled=False).passed is None
    modelled = ttft_gate(contrasts, SETTINGS, modelled=True)
    assert modelled.passed is None
    assert "modelled board" in modelled.reason


def test_kv_gate_holds_the_smallest_boot_against_the_floor() -> None:
    boots = [
        *make_boots(ARM, [0.03], kv_cache_tokens=319_232),
        *make_boots(ARM, [0.03], kv_cache_tokens=280_000),
    ]
    assert kv_gate(boots, GateSettings(min_kv_cache_tokens=280_000)).passed is True
    gate = kv_gate(boots, GateSettings(min_kv_cache_tokens=300_000))
    assert gate.passed is False
    assert "280000 at least over 2 boots" in gate.reason
    both = GateSettings(min_kv_cache_tokens=1, min_kv_max_concurrency=2.5)
    assert kv_gate(boots, both).passed is False
    assert kv_gate(boots, replace(both, min_kv_max_concurrency=1.5)).passed is True


def test_kv_gate_unknown_capacity_blocks_only_with_a_floor() -> None:
    boots = [make_boot(ARM, [make_block(ARM)], without_facts=True)]
    assert not kv_gate(boots, GateSettings()).blocks
    for known in (boots, [*boots, *make_boots(ARM, [0.03])], []):
        gate = kv_gate(known, GateSettings(min_kv_cache_tokens=1))
        assert gate.passed is None
        assert gate.blocks


def test_in_force_gate_checks_every_boot_that_ended_well() -> None:
    boots = make_boots(ARM, [0.03, 0.03])
    assert in_force_gate(ARM, boots).passed is True
    assert in_force_gate(make_arm(5), boots).passed is False
    flagged = make_boot(ARM, [], status=BootStatus.NOT_IN_FORCE, reason="block is ignored")
    assert in_force_gate(ARM, [*boots, flagged]).reason == "block is ignored"
    silent = make_boot(ARM, [], without_facts=True)
    assert in_force_gate(ARM, [*boots, silent]).blocks
    failed = make_boot(ARM, [], status=BootStatus.FAILED, without_facts=True)
    assert in_force_gate(ARM, [*boots, failed]).passed is True


def test_valid_gate_demands_every_cell_of_every_boot() -> None:
    boots = make_boots(ARM, [0.03, 0.03], cells=(CELL, WIDE_CELL))
    failed = make_boot(ARM, [], status=BootStatus.FAILED, reason="died in c4", replicate=4)
    gate = valid_gate([*boots, failed], (CELL, WIDE_CELL))
    assert gate.passed is True
    assert "4 of 4 blocks are valid" in gate.reason
    assert "died in c4" in gate.reason
    spoilt = make_boot(ARM, [make_block(ARM, invalid_reason="other traffic")])
    gate = valid_gate([*boots, spoilt], (CELL, WIDE_CELL))
    assert gate.passed is False
    assert "other traffic" in gate.reason
    infeasible = make_boot(ARM, [], status=BootStatus.INFEASIBLE, reason="out of memory")
    assert valid_gate([*boots, infeasible], (CELL,)).passed is False


def test_valid_gate_with_a_spare_block_passes_and_shows_the_spoilt_one() -> None:
    spoilt = make_block(ARM, index=1, invalid_reason="other traffic")
    gate = valid_gate([make_boot(ARM, [make_block(ARM), spoilt])], (CELL,))
    assert gate.passed is True
    assert (
        "1 of 2 blocks are valid; for example c1_t0.7: contaminated: other traffic" in gate.reason
    )


def test_synthetic_gate_never_lets_synthetic_serve() -> None:
    assert synthetic_gate(make_arm(rejection="synthetic")).passed is False
    assert synthetic_gate(ARM).passed is True
    assert synthetic_gate(BASELINE).passed is True


@pytest.mark.parametrize("kind", ["requests", "tokens", "restarted", "truncated", "garbage"])
def test_soak_gate_fails_on_answers_that_are_wrong_or_do_not_come(kind: str) -> None:
    fault = Invalidity(kind=Invalid(kind), detail="so it was")

    gate = soak_gate(replace(make_block(BASELINE), invalid=(fault,)))

    assert (gate.passed, gate.blocks) == (False, True)
    assert f"{kind}: so it was" in gate.reason


def test_soak_gate_names_the_first_failure_and_how_many_ran() -> None:
    block = replace(make_block(BASELINE), num_failed=3, errors={"HTTP 500: out of memory": 3})

    gate = soak_gate(block)

    assert gate.passed is False
    reason = f"at {CELL.streams} requests at a time, 3 failed: HTTP 500: out of memory"
    assert gate.reason == reason


@pytest.mark.parametrize("kind", sorted({*Invalid} - SOAKED, key=str))
def test_soak_gate_asks_for_no_speed_and_no_score(kind: Invalid) -> None:
    block = replace(make_block(BASELINE), invalid=(Invalidity(kind=kind, detail="x"),))

    assert soak_gate(block).passed is True


def test_soak_gate_without_a_request_shows_nothing_and_blocks() -> None:
    gate = soak_gate(replace(make_block(BASELINE), num_requests=0))

    assert (gate.passed, gate.blocks) == (None, True)


def test_soak_gate_tells_refusals_that_were_asked_again() -> None:
    gate = soak_gate(replace(make_block(BASELINE), num_refused=4))

    assert gate.passed is True
    assert gate.reason.endswith("all 30 were answered, 4 after a refusal")


def test_ttft_bounds_that_no_float_holds_are_infinite_in_words() -> None:
    wide = replace(make_contrast(1.0, 0.9, 1.1), low=-1500.0, high=1500.0)
    gate = ttft_gate({CELL: wide}, SETTINGS, modelled=False)
    assert gate.passed is None
    assert "interval 0.00 to inf" in gate.reason
    assert wide.speedup_bounds == (0.0, math.inf)
