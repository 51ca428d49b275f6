"""Which conclusion stands on which premise, and what a promotion makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from core_samples import BASELINE, make_arm
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.conclusions import compare_keys, depends, judge, premises_gate
from orchestrator.core.dependence import MEANING, OWN, TABLE, Conclusion
from orchestrator.core.premises import (
    SERVED,
    WORDS,
    Compared,
    Premises,
    World,
    compare,
    differences,
)

HELD = Premises(
    engine_build="0.32.0",
    engine_args_digest="aa",
    target_digest="bb",
    draft_digest="cc",
    node_kind="gb10",
    workload_digest="dd",
    sampling={"top_p": 1.0, "top_k": 0},
    step_time="measured",
    board_model=None,
    specpilot_version="0.1.0",
)
KEYS = ("num_speculative_tokens", "draft_sample_method", "rejection_sample_method")
NAMES = (*WORDS, *KEYS)
ARM = make_arm(7, "probabilistic", "block")
ALL = set(Conclusion)
SPEEDS = {
    *(Conclusion.SPEED, Conclusion.DRAFT_RULE, Conclusion.REJECTION_RULE, Conclusion.PROMISE),
}
CHANGES: dict[str, Any] = {
    "engine_build": "0.33.0",
    "engine_args_digest": "zz",
    "target_digest": "zz",
    "draft_digest": "zz",
    "remote_code": "on",
    "node_kind": "cpu",
    "workload_digest": "zz",
    "sampling": {"top_p": 0.9, "top_k": 0},
    "step_time": "modelled",
    "board_model": "gb10_model",
    "specpilot_version": "0.2.0",
}


def world(**changes: Any) -> World:
    return World(values={**HELD.to_dict(), **changes})


def states(compared: tuple[Compared, ...]) -> dict[Conclusion, str]:
    return {item.conclusion: item.state for item in judge(compared, ARM)}


def stale(compared: tuple[Compared, ...]) -> set[Conclusion]:
    return {conclusion for conclusion, state in states(compared).items() if state == "stale"}


def test_table_has_a_reason_in_every_place() -> None:
    assert set(TABLE) == set(MEANING) == ALL
    for row in TABLE.values():
        assert set(row) == set(NAMES)
        assert all(link.reason and link.reason[0].islower() for link in row.values())


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("engine_build", ALL),
        ("engine_args_digest", ALL),
        ("target_digest", ALL),
        ("draft_digest", ALL),
        ("remote_code", ALL),
        ("node_kind", ALL),
        ("workload_digest", SPEEDS),
        ("sampling", SPEEDS),
        ("step_time", SPEEDS),
        ("board_model", SPEEDS),
        ("specpilot_version", {*SPEEDS, Conclusion.LOSSLESS, Conclusion.ANSWERS}),
    ],
)
def test_changed_premise_marks_what_stands_on_it_and_nothing_else(
    changed: str, expected: set[Conclusion]
) -> None:
    compared = compare(HELD, world(**{changed: CHANGES[changed]}))

    assert [item.name for item in compared if item.state == "changed"] == [changed]
    assert stale(compared) == expected
    assert {item for item, state in states(compared).items() if state == "stands"} == ALL - expected


def test_changing_only_the_draft_rule_marks_the_depth_conclusions_and_not_the_kv_ones() -> None:
    compared = compare_keys(ARM, [BASELINE, make_arm(7, "greedy", "block")])

    assert stale(compared) == {
        *(Conclusion.SPEED, Conclusion.REJECTION_RULE, Conclusion.PROMISE),
        *(Conclusion.LOSSLESS, Conclusion.ANSWERS),
    }
    (why,) = (item for item in judge(compared, ARM) if item.conclusion is Conclusion.SPEED)
    assert [why.reason(premise) for premise in why.because] == [
        "the draft rule: the best depth moves with the draft rule"
    ]


def test_changing_only_the_rejection_rule_leaves_capacity_boots_and_its_own_effect() -> None:
    compared = compare_keys(ARM, [make_arm(7, "probabilistic", "standard")])

    assert ALL - stale(compared) == {
        *(Conclusion.REJECTION_RULE, Conclusion.KV, Conclusion.OUTAGE),
    }


def test_changing_only_the_depth_leaves_the_ranking_of_depths() -> None:
    compared = compare_keys(ARM, [make_arm(3, "probabilistic", "block")])

    assert ALL - stale(compared) == {Conclusion.SPEED}
    assert compared[0].sentence == "the depth was 7 and is 3"


def test_arm_that_is_still_in_the_space_changes_nothing() -> None:
    others = [make_arm(3, "greedy", "standard"), make_arm(7, "probabilistic", "block"), BASELINE]

    assert {item.state for item in compare_keys(ARM, others)} == {"holds"}
    assert "the draft rule is probabilistic" in [i.sentence for i in compare_keys(ARM, others)]


def test_space_with_other_values_names_all_of_them_and_one_without_any_none() -> None:
    depths = [make_arm(depth, "probabilistic", "block") for depth in (3, 5)]

    assert compare_keys(ARM, depths)[0].sentence == "the depth was 7 and is 3 or 5"
    assert compare_keys(ARM, [BASELINE])[1].sentence.endswith("was probabilistic and is none")


def test_arm_without_speculation_has_no_keys_and_no_draft_of_its_own() -> None:
    compared = compare(HELD, world(draft_digest="zz"))
    found = {item.conclusion: item.state for item in judge(compared, BASELINE)}

    assert compare_keys(BASELINE, [ARM]) == ()
    assert {item for item, state in found.items() if state == "stands"} == set(OWN)
    assert {item for item, state in found.items() if state == "stale"} == ALL - set(OWN)


@given(st.sets(st.sampled_from(NAMES)), st.sets(st.sampled_from(NAMES)))
def test_conclusion_is_stale_just_where_it_depends_on_a_change(
    changed: set[str], hidden: set[str]
) -> None:
    """And what cannot be looked at is never said to stand."""
    told: dict[str, Any] = dict.fromkeys(NAMES, "holds")
    told |= dict.fromkeys(hidden, "unknown") | dict.fromkeys(changed, "changed")
    compared = tuple(
        Compared(name=name, words=name, state=told[name], sentence=name) for name in NAMES
    )

    for item in judge(compared, ARM):
        needed = {name for name in NAMES if depends(item.conclusion, name, ARM)}
        assert (item.state == "stale") == bool(needed & changed)
        assert (item.state == "stands") == (not needed & (changed | hidden))
        assert {premise.name for premise in item.because} <= needed
        assert bool(item.because) == (item.state != "stands")


def test_premise_that_cannot_be_looked_at_says_why() -> None:
    values = {name: value for name, value in HELD.to_dict().items() if name != "target_digest"}
    found = compare(HELD, World(values=values, unknown={"target_digest": "'/m' is not here"}))

    assert [item.sentence for item in found if item.state == "unknown"] == [
        "the target model's digest: '/m' is not here"
    ]
    assert set(states(found).values()) == {"unknown"}


def test_changed_sampling_names_what_is_different_in_it() -> None:
    (item,) = (
        item for item in compare(HELD, world(sampling={"top_p": 0.9, "top_k": 0, "min_p": 0.1}))
        if item.state == "changed"
    )  # fmt: skip

    assert item.sentence == "the sampling was top_p=1.0 and is min_p=0.1, top_p=0.9"


def test_differences_of_some_names_leave_the_others_out() -> None:
    other = replace(HELD, engine_args_digest="zz", workload_digest="zz")

    assert differences(HELD, other, names=SERVED) == (
        "the digest of the engine arguments was aa and is zz",
    )


def test_gate_lets_through_what_stands_on_what_still_holds() -> None:
    gate = premises_gate(HELD, world(), ARM)

    assert gate.passed is True
    assert not gate.blocks


@pytest.mark.parametrize("name", CHANGES)
def test_gate_keeps_out_a_version_with_any_premise_changed_and_names_it(name: str) -> None:
    gate = premises_gate(HELD, world(**{name: CHANGES[name]}), ARM)

    assert gate.passed is False
    assert gate.blocks
    assert WORDS[name] in gate.reason
    assert "; stale: speed" in gate.reason


def test_gate_names_what_is_stale_and_not_what_no_promotion_stands_on() -> None:
    gate = premises_gate(HELD, world(sampling={}), ARM)

    assert gate.reason == (
        "the sampling was top_k=0, top_p=1.0 and is empty; stale: speed, promise"
    )


def test_gate_keeps_out_what_cannot_be_looked_at_or_says_nothing() -> None:
    values = {name: value for name, value in HELD.to_dict().items() if name != "draft_digest"}
    hidden = World(values=values, unknown={"draft_digest": "'/d' is not here"})

    for gate in (
        premises_gate(HELD, hidden, ARM),
        premises_gate(None, world(), ARM),
        premises_gate(HELD, world(), None),
    ):
        assert gate.passed is None
        assert gate.blocks
    assert "'/d' is not here" in premises_gate(HELD, hidden, ARM).reason
    assert "without premises" in premises_gate(None, world(), ARM).reason
