"""What a study found beside its winner, on boots whose truth is known."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import pytest
from core_samples import BASELINE, BOARD, make_arm, make_block, make_boot
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.boot_model import BootScore, fit_boots
from orchestrator.core.effects import effects, linear_contrast, pair
from orchestrator.core.findings import Findings, find
from orchestrator.core.findings_text import findings_lines
from orchestrator.core.flips import margin_flips, next_boots, traffic_flips
from orchestrator.core.promotion import GateSettings
from orchestrator.core.types import Arm, Boot, Cell
from orchestrator.core.verdict import decide
from orchestrator.report import format_verdict

QUIET = Cell(streams=1, temperature=0.7)
BUSY = Cell(streams=16, temperature=0.7)
WARM = Cell(streams=1, temperature=1.0)
LUCK = (0.99, 1.0, 1.012)


def factorial() -> list[Arm]:
    return [
        make_arm(depth, draft, rejection)
        for depth in (5, 7)
        for draft in ("greedy", "probabilistic")
        for rejection in ("standard", "block")
    ]


def scores(truth: Mapping[Arm, float]) -> list[BootScore]:
    """Return three boots of each arm whose mean log score is the truth's logarithm exactly."""
    shift = sum(map(math.log, LUCK)) / len(LUCK)
    return [
        BootScore(arm=arm, boot=f"{arm.label}/{i}", log_score=math.log(value * luck) - shift)
        for arm, value in truth.items()
        for i, luck in enumerate(LUCK)
    ]


def boots_of(truth: Mapping[Arm, Mapping[Cell, float]], lengths: float = 3.0) -> list[Boot]:
    return [
        make_boot(
            arm,
            [
                make_block(
                    arm,
                    cell=cell,
                    seconds_per_token=value * luck,
                    length=lengths + 0.01 * replicate,
                    index=index,
                )
                for index, (cell, value) in enumerate(cells.items())
            ],
            replicate=replicate,
        )
        for arm, cells in truth.items()
        for replicate, luck in enumerate(LUCK)
    ]


def found(
    truth: Mapping[Arm, Mapping[Cell, float]], weights: Mapping[Cell, float], **changes: object
) -> Findings:
    settings: dict[str, object] = {"board": None, "incumbent": None, "confidence": 0.95}
    return find(list(truth), boots=boots_of(truth), weights=weights, **{**settings, **changes})  # type: ignore[arg-type]


def test_effects_of_a_factorial_are_what_made_it() -> None:
    truth = {
        arm: 0.03
        * (0.8 if arm.draft_sample_method == "probabilistic" else 1)
        * (1.1 if arm.rejection_sample_method == "block" else 1)
        * (0.9 if arm.num_speculative_tokens == 7 else 1)
        * (0.7 if arm == make_arm(7, "probabilistic", "block") else 1)
        for arm in factorial()
    }
    by_name = {effect.name: effect for effect in effects(fit_boots(scores(truth)), confidence=0.95)}

    draft = by_name["probabilistic against greedy"]
    assert draft.num_pairs == 4
    assert draft.contrast.log_ratio == pytest.approx(math.log(0.8) + math.log(0.7) / 4)
    assert draft.contrast.num_boots == (12, 12)
    both = by_name["probabilistic against greedy with block against standard"]
    assert both.kind == "interaction"
    assert both.num_pairs == 2
    assert both.contrast.log_ratio == pytest.approx(math.log(0.7) / 2)
    assert both.contrast.excludes_zero
    assert set(by_name) >= {
        "depth 7 against depth 5",
        "block against standard with depth 7 against depth 5",
    }


def test_arm_that_was_set_aside_is_named_as_the_best_nowhere() -> None:
    fast, second = make_arm(7, "greedy", "block"), make_arm(5, "greedy", "block")
    alone = make_arm(7, "probabilistic", "block")
    truth = {
        BASELINE: {QUIET: 0.08},
        fast: {QUIET: 0.02},
        second: {QUIET: 0.03},
        alone: {QUIET: 0.04},
    }
    whole = found(truth, {QUIET: 1.0})
    assert whole.leader == fast

    part = found(truth, {QUIET: 1.0}, set_aside={fast, alone})

    assert part.leader == second
    assert {curve.best for curve in part.curves} == {second}
    assert {curve.next_best for curve in part.curves} == {None}
    assert len(part.curves[0].points) == 2, "its times are shown"
    assert not {fast, alone} & {item for buy in part.next_boots for item in (buy.arm, buy.rival)}
    assert found(truth, {QUIET: 1.0}, set_aside=set(truth)).leader is None


def test_effects_leave_out_arms_without_a_partner() -> None:
    arms = [make_arm(5, "greedy", "standard"), make_arm(5, "probabilistic", "standard")]
    odd = make_arm(7, "probabilistic", "block")
    fit = fit_boots(scores({arms[0]: 0.04, arms[1]: 0.03, odd: 0.001, BASELINE: 0.08}))
    (effect,) = effects(fit, confidence=0.95)

    assert effect.name == "probabilistic against greedy"
    assert effect.contrast.log_ratio == pytest.approx(math.log(0.75))


@given(st.lists(st.floats(-1, 1), min_size=4, max_size=4))
def test_linear_contrast_of_two_arms_is_the_pair(values: list[float]) -> None:
    a, b = make_arm(5), make_arm(7)
    fit = fit_boots(
        [
            BootScore(arm=arm, boot=str(i), log_score=value)
            for i, (arm, value) in enumerate(zip((a, a, b, b), values, strict=True))
        ]
    )
    one = pair(fit, a, b, confidence=0.9)
    other = linear_contrast(fit, {b: 1.0, a: -1.0}, confidence=0.9)

    assert one.log_ratio == pytest.approx(-(other.log_ratio or 0))
    if one.low is not None:
        assert other.high is not None
        assert one.low == pytest.approx(-other.high)
        assert one.degrees_of_freedom == 2


def test_contrast_without_boots_or_spread_says_why() -> None:
    a, b = make_arm(5), make_arm(7)
    single = fit_boots(
        [BootScore(arm=a, boot="1", log_score=0.1), BootScore(arm=b, boot="2", log_score=0.2)]
    )
    assert "no arm has two scored boots" in (pair(single, a, b, confidence=0.95).reason or "")
    assert "no scored boot" in (pair(single, a, BASELINE, confidence=0.95).reason or "")
    copies = fit_boots(
        [BootScore(arm=arm, boot=str(i), log_score=0.5) for i in (1, 2) for arm in (a, b)]
    )
    assert "copies" in (pair(copies, a, b, confidence=0.95).reason or "")


def test_depth_curve_names_the_best_depth_of_each_rule_and_its_rival() -> None:
    truth = {
        make_arm(depth, draft, "block"): {QUIET: value}
        for draft, values in (("greedy", (40, 30, 35)), ("probabilistic", (30, 29.8, 20)))
        for depth, value in zip((5, 6, 7), (v / 1000 for v in values), strict=True)
    }
    curves = [c for c in found(truth, {QUIET: 1.0}).curves if c.cell is None]

    assert [(c.draft_sample_method, c.best.num_speculative_tokens) for c in curves] == [
        ("greedy", 6),
        ("probabilistic", 7),
    ]
    assert curves[0].next_best == make_arm(7, "greedy", "block")
    assert [p.num_speculative_tokens for p in curves[0].points] == [5, 6, 7]
    for point in curves[0].points:
        assert point.low is not None
        assert point.high is not None
        assert point.low < point.seconds < point.high


def test_margin_flip_is_the_fall_at_which_both_are_equally_fast() -> None:
    acceptance, step = margin_flips(make_arm(), BASELINE, seconds=(0.022, 0.025), length=3.2)

    assert acceptance.value == pytest.approx(0.12)
    assert 0.022 / (1 - acceptance.value) == pytest.approx(0.025)
    assert "fell by 12.0%, from 3.20 to 2.82 tokens a step, no-speculation would be" in (
        acceptance.words
    )
    assert step.value == pytest.approx(0.025 / 0.022 - 1)
    assert list(margin_flips(make_arm(), BASELINE, seconds=(0.03, 0.02), length=3.2)) == []


def test_margin_flip_below_one_token_a_step_is_said_to_be_none() -> None:
    flip, _ = margin_flips(make_arm(), BASELINE, seconds=(0.01, 0.1), length=3.0)
    assert "with nothing accepted" in flip.words


def test_traffic_flip_solves_for_the_share() -> None:
    deep, shallow = make_arm(7), make_arm(4)
    truth = {deep: {QUIET: 0.020, BUSY: 0.080}, shallow: {QUIET: 0.030, BUSY: 0.070}}
    flips = list(traffic_flips(deep, truth, {QUIET: 0.8, BUSY: 0.2}))

    assert len(flips) == 1, "one stream and sixteen are two names of one question"
    (flip,) = flips
    share = flip.value
    assert (1 - share) * 0.080 + share * 0.020 == pytest.approx((1 - share) * 0.070 + share * 0.030)
    assert flip.words == (
        "With below 50% of the traffic at 1 stream (now 80%), probabilistic+block-4 would be "
        "faster than probabilistic+block-7."
    )


def test_traffic_flip_of_an_arm_that_wins_everywhere_is_none() -> None:
    truth = {make_arm(7): {QUIET: 0.02, BUSY: 0.06}, make_arm(4): {QUIET: 0.03, BUSY: 0.07}}
    assert list(traffic_flips(make_arm(7), truth, {QUIET: 0.5, BUSY: 0.5})) == []


def test_next_boots_narrow_the_interval_and_count_up_to_a_decision() -> None:
    a, b = make_arm(5), make_arm(7)
    fit = fit_boots(scores({a: 0.0300, b: 0.0302}))
    buys = next_boots(fit, a, b, confidence=0.95)

    assert buys.half_width is not None
    assert buys.expected_half_width is not None
    assert buys.expected_half_width < buys.half_width
    assert buys.boots_to_tell is not None
    assert buys.boots_to_tell > 1
    contrast = pair(fit, a, b, confidence=0.95)
    assert contrast.high is not None
    assert contrast.low is not None
    assert buys.half_width == pytest.approx((contrast.high - contrast.low) / 2)
    far = fit_boots(scores({a: 0.03, b: 0.06}))
    assert next_boots(far, a, b, confidence=0.95).boots_to_tell == 0
    same = fit_boots(scores({a: 0.03, b: 0.03}))
    assert next_boots(same, a, b, confidence=0.95).boots_to_tell is None


def test_temperature_of_the_client_is_taken_within_boots() -> None:
    truth = {make_arm(): {QUIET: 0.03, WARM: 0.036}, BASELINE: {QUIET: 0.08, WARM: 0.08}}
    (effect,) = found(truth, {QUIET: 0.5, WARM: 0.5}).temperatures

    assert effect.arm == make_arm()
    assert (effect.from_temperature, effect.cell) == (0.7, WARM)
    assert effect.contrast.log_ratio == pytest.approx(math.log(1.2), abs=1e-3)
    assert effect.contrast.num_boots == (3, 3)


def test_findings_name_the_acceptance_at_which_the_baseline_would_win() -> None:
    truth = {make_arm(): {QUIET: 0.03}, BASELINE: {QUIET: 0.04}}
    findings = found(truth, {QUIET: 1.0})

    assert findings.leader == make_arm()
    flip = next(item for item in findings.flips if item.kind == "acceptance")
    assert flip.rival == BASELINE
    assert flip.value == pytest.approx(0.25)
    assert "from 3.01 to 2.26" in flip.words


def test_findings_of_modelled_steps_take_the_baseline_as_known() -> None:
    truth = {make_arm(5): {QUIET: 0.03}, make_arm(4): {QUIET: 0.03}, BASELINE: {QUIET: 0.04}}
    findings = found(truth, {QUIET: 1.0}, board=BOARD)

    assert findings.leader is not None
    assert findings.next_boots
    assert json.dumps(findings.to_dict())


def test_findings_without_a_scored_boot_are_empty() -> None:
    findings = find(
        [make_arm()],
        boots=[],
        weights={QUIET: 1.0},
        board=None,
        incumbent=None,
        confidence=0.95,
    )

    assert findings.leader is None
    for part in (findings.curves, findings.cells, findings.flips, findings.next_boots):
        assert part == ()
    assert findings_lines(findings)[-1] == "No boot has a score, so nothing was found."


def test_findings_lines_say_best_depths_flips_and_interactions() -> None:
    truth = {
        arm: {QUIET: 0.03 - 0.001 * index, BUSY: 0.06 + 0.004 * index, WARM: 0.04}
        for index, arm in enumerate(factorial())
    }
    text = "\n".join(findings_lines(found(truth, {QUIET: 0.5, BUSY: 0.25, WARM: 0.25})))

    for title in (
        "What would turn it round",
        "What the next boots would buy",
        "Best depth given each rule",
        "Temperature of the client",
        "Effects and interactions",
        "Depth curves",
    ):
        assert f"## {title}" in text
    assert "| probabilistic against greedy with block against standard |" in text
    assert text.isascii()
    assert "None" not in text


def test_findings_lines_of_single_boots_have_no_interval() -> None:
    truth = {arm: {QUIET: 0.03 - 0.001 * index} for index, arm in enumerate(factorial())}
    single = [boot for boot in boots_of(truth) if boot.replicate == 0]
    findings = find(
        factorial(),
        boots=single,
        weights={QUIET: 1.0},
        board=None,
        incumbent=None,
        confidence=0.95,
    )
    text = "\n".join(findings_lines(findings))

    assert "no interval" in text
    assert "a second boot of any arm shows it" in text


def test_study_with_intervals_that_no_float_holds_has_its_verdict_and_findings() -> None:
    times = {BASELINE: (0.06, 0.083), make_arm(7): (0.05,), make_arm(5): (0.055,)}
    boots = [
        make_boot(
            arm,
            blocks=[make_block(arm, cell=cell, seconds_per_token=time) for cell in (QUIET, WARM)],
            replicate=number,
        )
        for arm, own in times.items()
        for number, time in enumerate(own)
    ]
    weights = {QUIET: 1.0, WARM: 1.0}

    verdict = decide(
        tuple(times),
        boots=boots,
        weights=weights,
        board=None,
        incumbent=BASELINE,
        settings=GateSettings(),
        confidence=0.9999,
    )
    found = find(
        tuple(times),
        boots=boots,
        weights=weights,
        board=None,
        incumbent=BASELINE,
        confidence=0.9999,
    )

    assert any("to inf" in line for line in format_verdict(verdict))
    assert "(no interval)" in "\n".join(findings_lines(found))
    json.dumps([verdict.to_dict(), found.to_dict()], allow_nan=False)
