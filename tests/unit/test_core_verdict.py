from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

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
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.estimate import Contrast
from orchestrator.core.premises import Premises
from orchestrator.core.promotion import GateSettings
from orchestrator.core.types import Arm, BoardModel, Boot, BootStatus, Cell
from orchestrator.core.verdict import Verdict, decide, promotable

BLOCK7 = make_arm(7)
BLOCK5 = make_arm(5)
STANDARD7 = make_arm(7, rejection="standard")
GREEDY5 = make_arm(5, draft="greedy", rejection="standard")
ARMS = (BASELINE, GREEDY5, BLOCK5, STANDARD7, BLOCK7)
WEIGHTS = {CELL: 1.0}
PLAIN = make_boots(BASELINE, [0.081, 0.082, 0.083])


def verdict_of(
    boots: Sequence[Boot],
    *,
    arms: Sequence[Arm] = ARMS,
    incumbent: Arm | None = BASELINE,
    board: BoardModel | None = None,
    weights: dict[Cell, float] = WEIGHTS,
    **policy: Any,
) -> Verdict:
    return decide(
        arms,
        boots=boots,
        weights=weights,
        board=board,
        incumbent=incumbent,
        settings=GateSettings(**policy),
        confidence=0.95,
    )


def contrast_of(verdict: Verdict, arm: Arm) -> Contrast:
    contrast = next(item.contrast for item in verdict.ranking if item.summary.arm == arm)
    assert contrast is not None
    return contrast


def gates_of(verdict: Verdict) -> dict[str, bool | None]:
    return {gate.name: gate.passed for gate in verdict.gates}


def test_decide_clear_winner_is_promoted_with_its_figures_in_words() -> None:
    verdict = verdict_of([*PLAIN, *make_boots(BLOCK7, [0.0325, 0.0331, 0.0337])])
    assert (verdict.kind, verdict.winner) == ("promote", BLOCK7)
    assert promotable(verdict)
    assert verdict.sentences[0].startswith(
        "probabilistic+block-7 emits a token in 33.1 ms per stream against 82.0 ms without "
        "speculation, which serves now: 2.48 times as fast (95 % interval 2.38 to 2.58"
    )
    assert verdict.sentences[0].endswith("3 and 3 boots with 3 and 3 blocks).")
    assert gates_of(verdict) == {
        "better": True,
        "cells": True,
        "kv": None,
        "ttft": None,
        "in_force": True,
        "valid": True,
        "not_synthetic": True,
        "lossless": None,
        "canaries": None,
    }
    assert "Not shown: kv, ttft, lossless, canaries." in verdict.sentences
    assert any("Without a score: greedy+standard-5 (waiting)" in s for s in verdict.sentences)
    assert [item.summary.arm for item in verdict.ranking[:2]] == [BLOCK7, BASELINE]
    assert verdict.ranking[0].finalist
    assert not verdict.ranking[-1].finalist
    assert [item.contrast is not None for item in verdict.ranking[:2]] == [True, False]


def test_decide_lucky_first_boot_does_not_count_for_the_gate() -> None:
    speeds = {BLOCK7: (178.5, 161.8, 167.8, 160.9), GREEDY5: (161.0, 166.0, 162.0)}
    boots = [b for arm, v in speeds.items() for b in make_boots(arm, [1 / x for x in v])]
    verdict = verdict_of(boots, incumbent=GREEDY5)
    assert verdict.kind == "no_difference"
    better = next(gate for gate in verdict.gates if gate.name == "better")
    assert "1.00 times as fast" in better.reason
    assert "3 and 3 boots" in better.reason


def test_decide_difference_that_fresh_boots_do_not_show_is_no_difference() -> None:
    boots = [
        *make_boots(BLOCK7, [0.026, 0.0315, 0.0316]),
        *make_boots(GREEDY5, [0.0330, 0.0331, 0.0329]),
        *make_boots(BASELINE, [0.08] * 2),
        *(
            make_boot(BASELINE, [make_block(BASELINE, seconds_per_token=0.08)], replicate=i)
            for i in range(2, 40)
        ),
    ]
    verdict = verdict_of(boots, incumbent=GREEDY5)
    fresh_fails = verdict_of(
        [
            *make_boots(BLOCK7, [0.020, 0.0325, 0.0335]),
            *make_boots(GREEDY5, [0.0330] * 3),
            *boots[6:],
        ],
        incumbent=GREEDY5,
    )
    assert verdict.kind == "promote"
    assert fresh_fails.kind == "no_difference"
    assert fresh_fails.winner is None
    assert gates_of(fresh_fails)["better"] is False
    assert not promotable(fresh_fails)


def test_decide_indistinct_best_is_no_difference_and_nothing_changes() -> None:
    verdict = verdict_of(
        [*make_boots(GREEDY5, [0.034, 0.036, 0.035]), *make_boots(BLOCK7, [0.033, 0.037, 0.034])],
        incumbent=GREEDY5,
    )
    assert (verdict.kind, verdict.winner) == ("no_difference", None)
    assert not promotable(verdict)
    assert (
        "No difference is shown between probabilistic+block-7 and serving with "
        "greedy+standard-5, which serves now." in verdict.sentences
    )


def test_decide_incumbent_that_is_the_fastest_is_kept() -> None:
    boots = [
        *PLAIN,
        *make_boots(BLOCK7, [0.033, 0.034, 0.035]),
        *make_boots(BLOCK5, [0.0335, 0.0345, 0.0355]),
    ]
    verdict = verdict_of(boots, incumbent=BLOCK7)
    assert (verdict.kind, verdict.winner, verdict.gates) == ("keep", BLOCK7, ())
    assert (
        verdict.sentences[0] == "probabilistic+block-7, which serves now, is the fastest of 3 arms."
    )
    assert "probabilistic+block-5 cannot be told apart from it" in verdict.sentences[1]
    assert not promotable(verdict)


def test_decide_baseline_reference_that_wins_without_an_incumbent_is_kept() -> None:
    verdict = verdict_of([*PLAIN, *make_boots(BLOCK7, [0.1, 0.11, 0.12])], incumbent=None)
    assert (verdict.kind, verdict.winner, verdict.incumbent) == ("keep", BASELINE, None)
    assert verdict.sentences[0].startswith("no-speculation is the fastest of 2 arms")


def test_decide_tie_takes_the_smaller_depth() -> None:
    boots = [
        *PLAIN,
        *make_boots(BLOCK7, [0.0330, 0.0334, 0.0331]),
        *make_boots(BLOCK5, [0.0331, 0.0335, 0.0332]),
    ]
    verdict = verdict_of(boots)
    assert verdict.winner == BLOCK5
    assert any(
        "probabilistic+block-7 cannot be told apart from probabilistic+block-5" in sentence
        and "taken because it drafts 5 tokens and not 7" in sentence
        for sentence in verdict.sentences
    )


def test_decide_tie_of_equal_depth_takes_more_kv_then_the_faster() -> None:
    fast = make_boots(BLOCK7, [0.0330, 0.0334, 0.0331], kv_cache_tokens=300)
    roomy = make_boots(STANDARD7, [0.0331, 0.0335, 0.0332], kv_cache_tokens=400)
    verdict = verdict_of([*PLAIN, *fast, *roomy])
    assert verdict.winner == STANDARD7
    assert any("it holds 400 KV tokens and the other 300" in s for s in verdict.sentences)
    same = make_boots(STANDARD7, [0.0331, 0.0335, 0.0332], kv_cache_tokens=300)
    verdict = verdict_of([*PLAIN, *fast, *same])
    assert verdict.winner == BLOCK7
    assert any("its boots were the faster ones" in s for s in verdict.sentences)


def test_decide_tie_rule_never_picks_an_arm_that_is_not_better_than_the_incumbent() -> None:
    boots = [
        *make_boots(GREEDY5, [0.0340, 0.0342, 0.0341]),
        *make_boots(BLOCK7, [0.0330, 0.0332, 0.0331]),
        *make_boots(make_arm(4), [0.03355, 0.03375, 0.03365]),
    ]
    arms = (GREEDY5, BLOCK7, make_arm(4))
    verdict = verdict_of(boots, arms=arms, incumbent=GREEDY5)
    assert verdict.winner is not None
    contrast = contrast_of(verdict, verdict.winner)
    assert contrast.high is not None
    assert contrast.high < 0


def test_decide_failed_gate_keeps_the_incumbent_and_says_why() -> None:
    boots = [*PLAIN, *make_boots(BLOCK7, [0.0325, 0.0331, 0.0337], kv_cache_tokens=100)]
    verdict = verdict_of(boots, min_kv_cache_tokens=200)
    assert (verdict.kind, verdict.winner) == ("keep", BLOCK7)
    assert not promotable(verdict)
    assert any(s.startswith("Production stays as it is: kv (") for s in verdict.sentences)


def test_decide_too_few_fresh_boots_keep_the_incumbent() -> None:
    verdict = verdict_of([*PLAIN, *make_boots(BLOCK7, [0.0325, 0.0331])])
    assert verdict.kind == "keep"
    assert gates_of(verdict)["better"] is None
    assert any("1 and 3 fresh boots, 2 are needed" in s for s in verdict.sentences)


def test_decide_regression_in_one_cell_keeps_the_incumbent() -> None:
    def boots(arm: Arm, narrow: float, wide: float) -> list[Boot]:
        return [
            make_boot(
                arm,
                [
                    make_block(arm, seconds_per_token=narrow * f, length=3 + i / 10),
                    make_block(arm, cell=WIDE_CELL, seconds_per_token=wide * f, index=1),
                ],
                replicate=i,
            )
            for i, f in enumerate((1.0, 1.002, 0.998))
        ]

    verdict = verdict_of(
        [*boots(GREEDY5, 0.040, 0.040), *boots(BLOCK7, 0.032, 0.0444)],
        incumbent=GREEDY5,
        weights={CELL: 0.9, WIDE_CELL: 0.1},
    )
    assert verdict.kind == "keep"
    assert gates_of(verdict) | {"better": True, "cells": False} == gates_of(verdict)
    assert any(f"{WIDE_CELL.key}: 0.90 times as fast" in s for s in verdict.sentences)


def test_decide_other_incumbent_is_also_compared_with_no_speculation() -> None:
    boots = [
        *PLAIN,
        *make_boots(GREEDY5, [0.05, 0.051, 0.052]),
        *make_boots(BLOCK7, [0.0325, 0.0331, 0.0337]),
    ]
    verdict = verdict_of(boots, incumbent=GREEDY5)
    assert verdict.kind == "promote"
    assert "with greedy+standard-5, which serves now" in verdict.sentences[0]
    assert verdict.sentences[1].startswith("Against no speculation it is 2.48 times as fast")


def test_decide_modelled_says_so_and_needs_no_second_baseline_boot() -> None:
    boots = [*make_boots(BASELINE, [5.0]), *make_boots(BLOCK7, [3.0, 3.1, 3.2], length=3.2)]
    verdict = verdict_of(boots, incumbent=None, board=BOARD, ttft_tolerance=0.1)
    assert (verdict.kind, verdict.winner, verdict.reference) == ("promote", BLOCK7, BASELINE)
    assert any(
        s.startswith("Step times are MODELLED (gb10_model: a sample)") for s in verdict.sentences
    )
    assert "The model was derived for depth 0 to 5; depth 7 is extrapolated." in verdict.sentences
    assert gates_of(verdict)["ttft"] is None
    wide = {Cell(streams=32, temperature=0.7): 1.0}
    far = [replace(b, blocks=(replace(b.blocks[0], cell=next(iter(wide))),)) for b in boots]
    verdict = verdict_of(far, incumbent=None, board=BOARD, weights=wide)
    assert any("streams 1 to 16; streams 32 is extrapolated" in s for s in verdict.sentences)


@pytest.mark.parametrize(
    ("boots", "incumbent", "arms", "words"),
    [
        ([], BASELINE, ARMS, "no boot of any arm has a score"),
        (make_boots(BLOCK7, [0.03, 0.031]), None, (BLOCK7,), "no baseline to compare with"),
        (make_boots(BLOCK7, [0.03, 0.031]), GREEDY5, ARMS, "greedy+standard-5, to be compared"),
        ([*PLAIN[:1], *make_boots(BLOCK7, [0.03])], BASELINE, ARMS, "no interval: no arm has two"),
    ],
)
def test_decide_without_a_comparison_is_no_result(
    boots: list[Boot], incumbent: Arm | None, arms: tuple[Arm, ...], words: str
) -> None:
    verdict = verdict_of(boots, incumbent=incumbent, arms=arms)
    assert (verdict.kind, verdict.winner) == ("no_result", None)
    assert words in verdict.sentences[0]
    assert not promotable(verdict)


def test_decide_names_dead_arms_and_copies() -> None:
    boots = make_boots(BLOCK7, [0.0325, 0.0331, 0.0337])
    copy = replace(boots[0], replicate=3)
    dead = make_boot(GREEDY5, [], status=BootStatus.NOT_IN_FORCE, reason="greedy is ignored")
    verdict = verdict_of([*PLAIN, *boots, copy, dead])
    assert any(
        "greedy+standard-5 (not_in_force: greedy is ignored)" in s for s in verdict.sentences
    )
    assert (
        "1 of the boots of probabilistic+block-7 repeats another's counters: it does not count."
        in verdict.sentences
    )


def test_decide_doubts_a_draft_that_is_hardly_ever_right() -> None:
    boots = [
        make_boot(
            BLOCK7, [make_block(BLOCK7, seconds_per_token=s, length=1.1 + i / 100)], replicate=i
        )
        for i, s in enumerate((0.0325, 0.0331, 0.0337))
    ]
    verdict = verdict_of([*PLAIN, *boots])
    assert any("draft broken?" in sentence for sentence in verdict.sentences)


def test_verdict_to_dict_is_plain_json() -> None:
    premises = Premises(
        engine_build="0.32.0",
        engine_args_digest="a",
        target_digest="b",
        draft_digest=None,
        node_kind="cpu",
        workload_digest="c",
        sampling={"top_p": 1.0},
        step_time="measured",
        board_model=None,
        specpilot_version="0.1.0",
    )
    verdict = verdict_of([*PLAIN, *make_boots(BLOCK7, [0.0325, 0.0331, 0.0337])])
    plain = json.loads(json.dumps(replace(verdict, premises=premises).to_dict(), allow_nan=False))
    assert plain["winner"] == "0.32.0/probabilistic+block-7"
    assert plain["ranking"][0]["speedup"] == pytest.approx(2.48, abs=0.01)
    assert [cell["num_boots"] for cell in plain["ranking"][0]["cells"]] == [3]
    assert plain["ranking"][0]["compared_boots"] == [3, 3]
    assert plain["ranking"][0]["compared_blocks"] == [3, 3]
    assert 0 < plain["ranking"][0]["boot_share_of_variance"] <= 1
    assert plain["ranking"][0]["method"].startswith("step times by boot, acceptance lengths pooled")
    assert plain["ranking"][0]["no_interval"] is None
    assert plain["outliers"] == []
    assert plain["premises"]["engine_build"] == "0.32.0"
    assert plain["gates"][-1] == {
        "name": "canaries",
        "passed": None,
        "blocks": False,
        "reason": "not tested: no answer was checked for content",
    }
    empty = verdict_of([]).to_dict()
    assert (empty["winner"], empty["premises"]) == (None, None)


def test_promotable_refuses_a_record_that_contradicts_itself() -> None:
    verdict = verdict_of([*PLAIN, *make_boots(BLOCK7, [0.0325, 0.0331, 0.0337])])
    failed = replace(verdict.gates[0], passed=False)
    assert not promotable(replace(verdict, gates=(failed, *verdict.gates[1:])))
    assert not promotable(replace(verdict, winner=None))
    assert not promotable(replace(verdict, incumbent=verdict.winner))


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    counts=st.lists(st.integers(0, 4), min_size=5, max_size=5),
    incumbent=st.one_of(st.none(), st.integers(0, 4)),
    statuses=st.lists(st.sampled_from(BootStatus), min_size=4, max_size=4),
)
def test_decide_never_promotes_a_worse_or_infeasible_challenger(
    seed: int, counts: list[int], incumbent: int | None, statuses: list[BootStatus]
) -> None:
    rng = random.Random(seed)
    boots = []
    for arm, count in zip(ARMS, counts, strict=True):
        centre = rng.choice([0.03, 0.034, 0.05])
        scores = [centre * rng.lognormvariate(0, 0.03) for _ in range(count)]
        for boot in make_boots(arm, scores):
            status = statuses[boot.replicate] if rng.random() < 0.2 else BootStatus.OK
            boots.append(replace(boot, status=status))
    verdict = verdict_of(boots, incumbent=None if incumbent is None else ARMS[incumbent])
    assert len(verdict.ranking) == len(ARMS)
    assert all(sentence.isascii() for sentence in verdict.sentences)
    if not promotable(verdict):
        return
    assert verdict.winner is not None
    assert verdict.reference is not None
    contrast = contrast_of(verdict, verdict.winner)
    assert contrast.high is not None
    assert contrast.high < 0
    ends = {boot.status for boot in boots if boot.arm == verdict.winner}
    assert not ends & {BootStatus.INFEASIBLE, BootStatus.NOT_IN_FORCE}


def test_decide_choice_of_the_race_stands_whatever_the_confirming_boots_would_choose() -> None:
    """Its fresh boots are of no other arm: a tie broken anew would leave nothing to promote."""
    deep, shallow = make_arm(7), make_arm(3)
    boots = [
        *make_boots(BASELINE, (0.080, 0.081, 0.0805)),
        *make_boots(deep, (0.0300, 0.0302, 0.0304)),
        *make_boots(shallow, (0.0300, 0.0303)),
    ]
    by = [boot.trial_id for boot in boots if boot.replicate == 0]
    common = {
        "boots": boots,
        "weights": {CELL: 1.0},
        "board": None,
        "incumbent": None,
        "settings": GateSettings(),
        "confidence": 0.95,
    }

    anew = decide((BASELINE, deep, shallow), **common)
    verdict = decide((BASELINE, deep, shallow), **common, chosen=deep, chosen_by=by)

    assert anew.winner == shallow
    assert (verdict.kind, verdict.winner) == ("promote", deep)
    assert any("the race chose it" in sentence for sentence in verdict.sentences)
