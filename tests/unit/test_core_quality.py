from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.quality import (
    CONTEXT,
    CanaryComparison,
    CanaryFault,
    CanaryResult,
    TaskAnswer,
    TaskScore,
    TaskSettings,
    canaries_gate,
    compare_canary,
    compare_task,
)

PASSED = CanaryResult(name="chat", passed=True, reason="3 of 3 answers are right")
WRONG = CanaryResult(
    name="chat", passed=False, reason="'17' is not in the answer", fault=CanaryFault.WRONG
)
GARBAGE = replace(WRONG, fault=CanaryFault.GARBAGE, reason="no text: repetition")
REFUSED = replace(WRONG, fault=CanaryFault.UNSUPPORTED, reason="HTTP 400: no parser")
ABSENT = CanaryResult(name="chat", passed=None, reason="the model takes no images")

results = st.sampled_from([PASSED, WRONG, GARBAGE, REFUSED, ABSENT])


@pytest.mark.parametrize("arm", [WRONG, GARBAGE, REFUSED, ABSENT])
def test_canary_that_the_control_passes_and_the_arm_does_not_fails(arm: CanaryResult) -> None:
    compared = compare_canary(arm, PASSED)

    assert compared.passed is False
    assert arm.reason in compared.reason


@pytest.mark.parametrize("arm", [WRONG, GARBAGE, REFUSED])
@pytest.mark.parametrize("control", [WRONG, GARBAGE, REFUSED, ABSENT])
def test_canary_that_both_fail_says_nothing(arm: CanaryResult, control: CanaryResult) -> None:
    compared = compare_canary(arm, control)

    assert compared.passed is None
    assert "control fails too: says nothing" in compared.reason


@given(results)
def test_canary_that_the_arm_passes_is_passed_whatever_the_control_does(
    control: CanaryResult,
) -> None:
    assert compare_canary(PASSED, control).passed is True


def test_canary_not_applicable_to_both_says_why() -> None:
    compared = compare_canary(ABSENT, ABSENT)

    assert (compared.passed, compared.reason) == (None, ABSENT.reason)


def test_canaries_of_two_names_are_not_compared() -> None:
    with pytest.raises(ValueError, match="chat"):
        compare_canary(replace(PASSED, name="json"), PASSED)


def score(hits: int, total: int = 100, **more: object) -> TaskScore:
    return replace(TaskScore(task="arithmetic", hits=hits, total=total), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arm", "control", "answer"),
    [
        (score(60), score(65), TaskAnswer.CANNOT_TELL),
        (score(82), score(82), TaskAnswer.CANNOT_TELL),
        (score(600, 1000), score(650, 1000), TaskAnswer.NOT_WORSE),
        (score(50), score(82), TaskAnswer.WORSE),
        (score(0), score(82), TaskAnswer.WORSE),
        (score(0, num_unparsed=100), score(82), TaskAnswer.WORSE),
        (score(98), score(97), TaskAnswer.NOT_WORSE),
        (score(5), score(5), TaskAnswer.PLUMBING),
        (score(82), score(5), TaskAnswer.PLUMBING),
        (score(0), score(0), TaskAnswer.PLUMBING),
        (score(30, num_unparsed=60), score(30, num_unparsed=60), TaskAnswer.PLUMBING),
        (score(25, chance=0.25), score(25, chance=0.25), TaskAnswer.PLUMBING),
        (score(60, chance=0.25), score(25, chance=0.25), TaskAnswer.PLUMBING),
        (score(0, 0), score(82), TaskAnswer.CANNOT_TELL),
        (score(82), score(0, 0), TaskAnswer.CANNOT_TELL),
        (score(0, 0, refused="no server"), score(82), TaskAnswer.CANNOT_TELL),
        (score(82, settings={"stop": 1}), score(82, settings={"stop": 2}), TaskAnswer.CANNOT_TELL),
    ],
)
def test_compare_task_answers(arm: TaskScore, control: TaskScore, answer: TaskAnswer) -> None:
    compared = compare_task(arm, control)

    assert compared.answer is answer
    assert compared.passed is {"worse": False, "not worse": True}.get(answer.value)


def test_compare_task_control_far_below_what_it_used_to_score_is_plumbing() -> None:
    arm, control = score(31), score(33)

    assert compare_task(arm, control, normal=0.82).answer is TaskAnswer.PLUMBING
    assert "0.820 is normal" in compare_task(arm, control, normal=0.82).reason
    assert compare_task(arm, control, normal=0.35).answer is TaskAnswer.CANNOT_TELL


def test_compare_task_published_score_of_0_055_where_0_82_is_normal_is_no_bad_arm() -> None:
    compared = compare_task(score(11, 200), score(11, 200), normal=0.82)

    assert compared.reason.startswith("eval plumbing?")
    assert compared.passed is None


def test_compare_task_says_which_items_turned() -> None:
    arm = score(2, 4, items=(True, False, True, False))
    control = score(3, 4, items=(True, True, True, False))

    assert "1 lost, 0 won" in compare_task(arm, control).reason


def test_compare_task_wider_margin_tells_more() -> None:
    arm, control = score(60), score(65)

    assert compare_task(arm, control, TaskSettings(margin=0.2)).answer is TaskAnswer.NOT_WORSE


def test_compare_task_of_two_tasks_is_an_error() -> None:
    with pytest.raises(ValueError, match="json"):
        compare_task(score(1, task="json"), score(1))


@given(st.integers(0, 200), st.integers(0, 200), st.integers(0, 200), st.floats(0, 1))
def test_compare_task_never_passes_an_arm_where_the_control_is_at_chance(
    arm_hits: int, control_hits: int, unparsed: int, chance: float
) -> None:
    control = score(control_hits, 200, num_unparsed=min(unparsed, 200 - control_hits))
    control = replace(control, chance=chance)
    compared = compare_task(score(arm_hits, 200, chance=chance), control)

    if control_hits / 200 <= max(0.1, chance) or control.num_unparsed > 100:
        assert compared.passed is None


def comparisons(*passed: bool | None) -> list[CanaryComparison]:
    return [
        CanaryComparison(name=f"c{i}", passed=p, reason=f"r{i}", arm=PASSED, control=PASSED)
        for i, p in enumerate(passed)
    ]


@pytest.mark.parametrize(
    ("canaries", "tasks", "passed"),
    [
        ([], [], None),
        ([None, None], [], None),
        ([True], [], True),
        ([True, None], [], True),
        ([True, False], [], False),
        ([None, False], [], False),
        ([True], [(98, 97)], True),
        ([True], [(60, 65)], None),
        ([True], [(5, 5)], None),
        ([True], [(50, 82)], False),
        ([True], [(98, 97), (50, 82)], False),
        ([False], [(98, 97)], False),
        ([None], [(98, 97)], None),
        ([], [(98, 97)], None),
    ],
)
def test_gate_of_canaries_and_tasks(
    canaries: list[bool | None], tasks: list[tuple[int, int]], passed: bool | None
) -> None:
    compared = [compare_task(score(arm), score(control)) for arm, control in tasks]

    gate = canaries_gate(comparisons(*canaries), compared)

    assert gate.passed is passed
    assert gate.reason
    assert gate.blocks is (passed is False)


def test_gate_that_is_required_blocks_what_it_cannot_tell() -> None:
    assert canaries_gate([], required=True).blocks
    assert canaries_gate(comparisons(None), required=True).blocks
    assert not canaries_gate(comparisons(True), required=True).blocks


def test_gate_context_that_is_kept_is_no_answer_and_one_that_is_lost_fails() -> None:
    kept = replace(comparisons(True)[0], name=CONTEXT)

    assert canaries_gate([kept, *comparisons(None)]).passed is None
    assert canaries_gate([replace(kept, passed=False), *comparisons(True)]).passed is False


def test_gate_names_what_says_nothing_and_that_no_task_was_run() -> None:
    reason = canaries_gate(comparisons(True, None)).reason

    assert "c1" in reason
    assert "no scored task was run" in reason
