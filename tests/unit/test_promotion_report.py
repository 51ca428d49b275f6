from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from core_samples import CELL, make_arm

from orchestrator.core.promise import Expected, Promise
from orchestrator.core.promotion import Gate
from orchestrator.core.takeover import PromotionStep, TakeOver
from orchestrator.errors import ConfigError
from orchestrator.ports import ProductionState, Version
from orchestrator.promotion_course import Course, Outset
from orchestrator.promotion_record import (
    CANARY_TAG,
    OUTAGE_TAG,
    PROMISE_TAG,
    REASON_TAG,
    SINCE_TAG,
    SOAK_TAG,
    STEP_TAG,
    THROUGHPUT_TAG,
    Found,
)
from orchestrator.promotion_report import format_decision, format_status, promise_line

PROMISE = Promise(
    arm=make_arm(),
    cell=CELL,
    confidence=0.95,
    is_modelled=False,
    step_time=Expected(mean=0.08, variance=1e-6, weight=3, degrees_of_freedom=5),
    acceptance=Expected(mean=3.0, variance=1e-4, weight=900, degrees_of_freedom=8),
)
GATES = {
    "specpilot.gate.better": "passed",
    "specpilot.gate_reason.better": "from fresh boots 1.93 times as fast",
    "specpilot.gate.kv": "not shown",
    PROMISE_TAG: "failed",
    f"{PROMISE_TAG}_reason": "slow",
}


def version(number: int, tags: Mapping[str, str] | None = None) -> Version:
    return Version(model_name="demo", version=number, config={}, tags=tags or {}, run_id=None)


HELD = Gate(name="premises", passed=True, reason="as they were")
UNKNOWN = Gate(name="premises", passed=None, reason="registered without")


def course(**changes: object) -> Course:
    given: dict[str, object] = {
        "version": version(2, GATES),
        "kind": "promote",
        "champion": version(1),
        "found": None,
        "then": "begin",
        "outset": Outset(mode="beside", is_served=True),
    }
    return Course(**(given | changes))  # type: ignore[arg-type]  # of the right types


def decision(
    *,
    promise: Promise | None = PROMISE,
    premises: Gate = HELD,
    outage: str | None = None,
    **changes: object,
) -> list[str]:
    return format_decision(
        course(**changes),
        promise=promise_line(promise),
        premises=premises,
        outage=outage,
        settings={"policy.approval": "auto", "policy.canary_share": 0.1, "policy.canary_s": None},
    )


def test_decision_shows_every_gate_with_its_reason_and_the_steps() -> None:
    lines = decision()

    assert lines[0].startswith("would promote version 2 of demo")
    assert lines[1].startswith("serves now: version 1 of demo")
    assert "  better  passed     from fresh boots 1.93 times as fast" in lines
    assert "  kv      not shown  no reason recorded" in lines
    assert not any("slow" in line for line in lines), "the last promotion's answer is no gate now"
    assert "  promise in c1_t0.7: at most 80.4 ms a step" in "\n".join(lines)
    assert "  premises hold: as they were" in lines
    assert {"  policy.approval=auto", "  policy.canary_share=0.1"} < set(lines)
    assert "  policy.canary_s=null" in lines, "as it is typed"
    assert "give it a share of the traffic; shift all traffic to it" in lines[-2]
    assert lines[-1] == "nothing was done"


def test_decision_that_cannot_begin_says_why_and_no_steps() -> None:
    refusal = ConfigError("node.engine_token", "no board is free", "free one")
    lines = decision(then="refuse", outset=None, refusal=refusal)

    assert lines[-2:] == [
        "decision: it cannot begin: node.engine_token: no board is free; free one",
        "nothing was done",
    ]


def test_decision_on_one_board_says_the_outage() -> None:
    lines = decision(outset=Outset(mode="swap", is_served=True), outage="expected outage: 85 s")

    assert "expected outage: 85 s" in lines
    assert "answer clients 503, drain and end what serves; boot it" in lines[-2]


def test_decision_of_the_first_version_has_nothing_to_share() -> None:
    lines = decision(champion=None)

    assert lines[1] == "serves now: nothing"
    assert "share" not in lines[-2]


RECORD = TakeOver(
    version=3,
    champion=1,
    champion_served=True,
    previous=None,
    challenger=None,
    kind="promote",
    mode="beside",
    began_utc_s=0.0,
)
FOUND = Found(version=version(3), record=RECORD, step=PromotionStep.SHIFTED)


@pytest.mark.parametrize(
    ("first", "says"),
    [("back", "would be undone"), ("finish", "would be ended"), ("forget", "would be forgotten")],
)
def test_decision_says_what_becomes_of_a_promotion_that_was_cut_off(first: str, says: str) -> None:
    lines = decision(found=FOUND, first=first, ends=("specpilot-v9",))

    assert f"the promotion of version 3 was cut off after 'shifted' and {says}" in lines[-4]
    assert lines[-3].startswith("first: specpilot-v9, which an earlier promotion left")
    assert "boot it beside" not in lines[-2]
    assert "boot it" in lines[-2]


def test_decision_that_goes_on_shows_the_steps_that_are_left() -> None:
    lines = decision(found=FOUND, then="go on", outset=None)

    assert lines[-2] == (
        "decision: go on with what was cut off after 'shifted': "
        "wait for the last answers of what served; move the aliases; end what served before"
    )


def test_decision_on_the_champion_says_that_it_stands_or_comes_back() -> None:
    assert decision(then="stand", outset=None)[-2] == (
        "decision: nothing: version 2 is the champion and serves"
    )
    assert "bring version 2 back" in decision(then="reapply", outset=None)[-2]


def test_decision_says_what_the_version_is_held_to() -> None:
    unknown = "\n".join(decision(promise=None))
    assert "  promise: none is recorded" in unknown
    lost = replace(PROMISE, step_time=None)
    assert "show no spread of step times" in "\n".join(decision(promise=lost))
    plain = replace(PROMISE, arm=make_arm(0), step_time=None, acceptance=None, is_modelled=True)
    assert "nothing: times are modelled and nothing is drafted" in "\n".join(
        decision(promise=plain)
    )


def test_decision_on_a_version_without_gates_says_so() -> None:
    lines = decision(version=version(2), champion=None, premises=UNKNOWN)

    assert "  no gate is recorded: it was not registered by a study" in lines
    assert "  premises not shown: registered without" in lines


def test_status_says_what_serves_since_when_and_on_which_evidence() -> None:
    champion = version(
        2,
        {
            "specpilot.claim": "1.95 times as fast",
            "specpilot.study_id": "study-1",
            SINCE_TAG: "2026-01-01 00:00:38 UTC",
            PROMISE_TAG: "passed",
            f"{PROMISE_TAG}_reason": "79.0 ms a step",
            SOAK_TAG: "passed",
            f"{SOAK_TAG}_reason": "at 8 requests at a time, all 42 were answered",
            THROUGHPUT_TAG: "54.60",
            CANARY_TAG: "30 clients' requests answered, 0 failed",
            OUTAGE_TAG: "41.0",
            STEP_TAG: "retired",
            REASON_TAG: "it serves",
        },
    )
    before = version(1, {STEP_TAG: "retired", REASON_TAG: "replaced by version 2"})
    state = ProductionState(
        weights={"specpilot-v2": 1.0},
        engines={"specpilot-v2": "RUNNING"},
        router_status="RUNNING",
        messages={},
    )

    lines = format_status(
        {"champion": champion, "challenger": None, "previous": before}, state, "http://here/"
    )

    assert lines == [
        "champion: version 2 of demo: ? on vLLM ?, study study-1, step times ?: 1.95 times as fast",
        "  serves since 2026-01-01 00:00:38 UTC",
        "  promise passed: 79.0 ms a step",
        "  soak passed: at 8 requests at a time, all 42 were answered",
        "  54.60 output tokens/s through the production path",
        "  canary: 30 clients' requests answered, 0 failed",
        "  the outage of its promotion took 41.0 s",
        "challenger: none",
        "previous: version 1 of demo: ? on vLLM ?, study ?, step times ?: no claim recorded",
        "  last promotion: replaced by version 2",
        "production: http://here/ is RUNNING",
        "  specpilot-v2: RUNNING, weight 1",
    ]


def test_status_names_a_promotion_that_is_open() -> None:
    nothing = ProductionState(weights={}, engines={}, router_status=None, messages={})

    lines = format_status({"challenger": version(3, {STEP_TAG: "booted"})}, nothing, "")

    assert lines[1:] == [
        "  its promotion stands at 'booted': under way, or cut off",
        "production: nothing is declared",
    ]
