"""Kinds of failures, their classes, and whether a fault is the study's or an arm's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_samples import BASELINE, make_arm, make_boot
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.failures import (
    CLASSES,
    REMEDIES,
    FailedBoot,
    Failure,
    FailureClass,
    FailureKind,
    InfeasibleBoot,
    boot_error,
    failure_of,
)
from orchestrator.core.refusals import study_fault, wants_baseline
from orchestrator.core.types import Arm, Boot, BootStatus
from orchestrator.errors import InfeasibleArm, TransientError
from orchestrator.trial_endings import status_of
from serve_apps.engine.errors import BootFailure

MEMORY_KINDS = (
    FailureKind.STARTUP_CHECK,
    FailureKind.KV_CACHE,
    FailureKind.OUT_OF_MEMORY,
    FailureKind.OOM_FIRST_REQUEST,
    FailureKind.OOM_UNDER_LOAD,
    FailureKind.OOM_KILLED,
    FailureKind.RAY_OOM,
)
SPACE = (
    BASELINE,
    *(
        make_arm(depth, draft, rule)
        for depth in (5, 7)
        for draft in ("greedy", "probabilistic")
        for rule in ("standard", "block")
    ),
)
CAUSE = "vllm: error: unrecognized arguments: --nonsense"


def refused(arm: Arm, cause: str = CAUSE) -> Boot:
    boot = make_boot(arm, [], status=BootStatus.INFEASIBLE, reason=cause, without_facts=True)
    return replace(boot, failure=FailureKind.BAD_ARGUMENTS, cause=cause)


def test_every_kind_has_a_class_and_every_class_a_kind() -> None:
    assert set(CLASSES) == set(FailureKind)
    assert set(CLASSES.values()) == set(FailureClass)


@pytest.mark.parametrize("kind", BootFailure)
def test_whatever_a_supervisor_says_is_a_kind(kind: BootFailure) -> None:
    assert FailureKind(kind.value).name == kind.name


def test_each_way_to_run_out_of_memory_has_its_own_sentence_with_what_to_change() -> None:
    sentences = {kind: REMEDIES[kind] for kind in MEMORY_KINDS}

    assert len(set(sentences.values())) == len(MEMORY_KINDS)
    for sentence in sentences.values():
        assert any(key in sentence for key in ("engine.args.", "RAY_memory_monitor_refresh_ms"))


@pytest.mark.parametrize("kind", FailureKind)
def test_error_of_a_boot_is_of_its_class_and_gives_its_failure_back(kind: FailureKind) -> None:
    failure = Failure(kind, "it ended", "for a reason")

    error = boot_error(failure)

    assert failure_of(error) == failure
    is_infeasible = CLASSES[kind] is FailureClass.INFEASIBLE
    assert type(error) is (InfeasibleBoot if is_infeasible else FailedBoot)
    assert str(error).startswith("it ended: for a reason")


@pytest.mark.parametrize(
    ("error", "of_class"),
    [
        (InfeasibleArm("no"), FailureClass.INFEASIBLE),
        (TransientError("gone"), FailureClass.TRANSIENT),
    ],
)
def test_plain_error_keeps_its_class_and_names_no_cause(
    error: InfeasibleArm | TransientError, of_class: FailureClass
) -> None:
    failure = failure_of(error)

    assert CLASSES[failure.kind] is of_class
    assert (failure.reason, failure.cause) == (str(error), "")


def test_advice_that_knows_more_stands_in_the_place_of_the_kinds() -> None:
    failure = Failure(FailureKind.STARTUP_CHECK, "it ended", advice="drop the caches")

    assert failure.sentence == "it ended; drop the caches"


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (FailureKind.KV_CACHE, BootStatus.INFEASIBLE),
        (FailureKind.BAD_ARGUMENTS, BootStatus.INFEASIBLE),
        (FailureKind.NOT_IN_FORCE, BootStatus.NOT_IN_FORCE),
        (FailureKind.WRONG_BUILD, BootStatus.NOT_IN_FORCE),
        (FailureKind.STARTUP_CHECK, BootStatus.FAILED),
        (FailureKind.OOM_UNDER_LOAD, BootStatus.FAILED),
        (FailureKind.NO_VALID_BLOCK, BootStatus.FAILED),
    ],
)
def test_status_of_a_boot_follows_its_kind(kind: FailureKind, status: BootStatus) -> None:
    assert status_of(kind) is status


@given(other=st.sampled_from(SPACE[1:]))
def test_refusal_of_the_baseline_and_any_other_arm_is_the_studys(other: Arm) -> None:
    fault = study_fault([refused(other), refused(BASELINE)], SPACE)

    assert fault is not None
    assert fault.where == "engine.args"
    assert CAUSE in fault.problem
    assert len(fault.trial_ids) == 2


@given(arms=st.sets(st.sampled_from(SPACE[1:])))
def test_refusals_without_the_baseline_are_the_arms_where_there_is_one(arms: set[Arm]) -> None:
    """What speculation as such may have caused is not what all arms share."""
    assert study_fault([refused(arm) for arm in arms], SPACE) is None


@given(arms=st.sets(st.sampled_from(SPACE[1:]), min_size=1))
def test_refusals_in_a_space_without_a_baseline_are_the_studys_when_no_setting_is_common(
    arms: set[Arm],
) -> None:
    fault = study_fault([refused(arm) for arm in arms], SPACE[1:])

    differing = [
        len({arm.num_speculative_tokens for arm in arms}),
        len({arm.draft_sample_method for arm in arms}),
        len({arm.rejection_sample_method for arm in arms}),
    ]
    assert (fault is not None) == all(number > 1 for number in differing)


def test_refusal_of_the_only_arm_is_the_studys() -> None:
    assert study_fault([refused(BASELINE)], [BASELINE]) is not None


@pytest.mark.parametrize(
    "boots",
    [
        [refused(BASELINE), refused(SPACE[1], "another cause")],
        [refused(BASELINE, ""), refused(SPACE[1], "")],
        [refused(BASELINE)],
        [refused(BASELINE), refused(SPACE[1]), make_boot(SPACE[2], [])],
        [
            refused(BASELINE),
            replace(refused(SPACE[1]), failure=FailureKind.OUT_OF_MEMORY),
        ],
        [refused(BASELINE), refused(replace(SPACE[1], engine_build="0.28.0"))],
    ],
    ids=["two causes", "no cause", "one arm", "one came up", "other kind", "other build"],
)
def test_refusals_that_an_arm_may_have_caused_are_no_fault_of_the_study(boots: list[Boot]) -> None:
    arms = (*SPACE, *(replace(arm, engine_build="0.28.0") for arm in SPACE))

    assert study_fault(boots, arms) is None


def test_long_words_of_an_engine_are_cited_on_one_line() -> None:
    cause = "ValidationError: 1 validation error for ModelConfig: " + "no such model\n" * 90

    fault = study_fault([refused(SPACE[1], cause), refused(BASELINE, cause)], SPACE)

    assert fault is not None
    assert len(str(fault.error())) < 600
    assert "\n" not in str(fault.error())


def test_other_build_than_the_studys_is_its_fault_after_one_boot() -> None:
    reason = "engine.build: 0.32.0 was asked for and vLLM 0.28.0 answers"
    boot = make_boot(BASELINE, [], status=BootStatus.NOT_IN_FORCE, reason=reason)

    fault = study_fault([replace(boot, failure=FailureKind.WRONG_BUILD)], SPACE)

    assert fault is not None
    assert str(fault.error()) == (
        f"{reason}; name the build that is installed, or give engine.python its environment"
    )


def test_baseline_is_wanted_after_a_refusal_until_an_arm_has_come_up() -> None:
    assert not wants_baseline([])
    assert wants_baseline([refused(SPACE[1])])
    assert not wants_baseline([refused(SPACE[1]), make_boot(SPACE[2], [])])
    assert not wants_baseline([replace(refused(SPACE[1]), failure=FailureKind.EXITED)])
