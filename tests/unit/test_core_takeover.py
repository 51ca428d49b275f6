from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core.codec import from_plain, to_plain
from orchestrator.core.takeover import (
    PromotionStep,
    Share,
    TakeOver,
    canary_fault,
    recovery,
)

RECORD = TakeOver(
    version=2,
    champion=1,
    champion_served=True,
    previous=None,
    challenger=2,
    kind="promote",
    mode="beside",
    began_utc_s=5.0,
)


def names(record: TakeOver) -> list[str]:
    return [step.value for step in record.steps]


def test_steps_beside_a_champion_measure_before_a_client_comes() -> None:
    assert names(RECORD) == [
        *("challenger", "booted", "verified", "measured", "soaked", "canary", "shifted", "drained"),
        *("aliased", "retired"),
    ]


def test_steps_of_a_swap_end_the_old_version_first() -> None:
    assert names(replace(RECORD, mode="swap")) == [
        *(
            "challenger",
            "stopped",
            "booted",
            "verified",
            "measured",
            "soaked",
            "shifted",
            "aliased",
        ),
        "retired",
    ]


def test_steps_of_a_rollback_neither_measure_nor_share() -> None:
    assert names(replace(RECORD, kind="rollback")) == [
        *("challenger", "booted", "verified", "shifted", "drained", "aliased", "retired"),
    ]


@pytest.mark.parametrize("mode", ["beside", "swap"])
def test_steps_of_a_first_promotion_have_nothing_to_share_or_to_end(mode: str) -> None:
    first = replace(RECORD, champion=None, mode=mode)  # type: ignore[arg-type]
    assert names(first) == [
        *(
            "challenger",
            "booted",
            "verified",
            "measured",
            "soaked",
            "shifted",
            "aliased",
            "retired",
        ),
    ]


def test_steps_after_one_are_those_that_are_left() -> None:
    assert RECORD.steps_after(None) == RECORD.steps
    assert [s.value for s in RECORD.steps_after(PromotionStep.SHIFTED)] == [
        "drained",
        "aliased",
        "retired",
    ]


@pytest.mark.parametrize(
    ("step", "champion", "expected"),
    [
        (PromotionStep.CHALLENGER, 1, "back"),
        (PromotionStep.SHIFTED, 1, "back"),
        (PromotionStep.DRAINED, 2, "finish"),
        (PromotionStep.ALIASED, 2, "finish"),
        (PromotionStep.BOOTED, 3, "forget"),
        (PromotionStep.BOOTED, None, "forget"),
        (PromotionStep.RETIRED, 2, "none"),
        (PromotionStep.FAILED, 1, "none"),
    ],
)
def test_recovery_turns_at_the_champion(
    step: PromotionStep, champion: int | None, expected: str
) -> None:
    assert recovery(RECORD, step, champion) == expected


def test_record_is_named_by_its_kind() -> None:
    assert (RECORD.noun, replace(RECORD, kind="rollback").noun) == ("promotion", "rollback")


def test_record_is_read_back_as_it_was_written() -> None:
    assert from_plain(TakeOver, to_plain(RECORD)) == RECORD


@pytest.mark.parametrize(
    ("old", "new", "fails"),
    [
        ((90, 0), (10, 0), False),
        ((0, 0), (0, 0), False),
        ((90, 0), (9, 1), True),
        ((90, 10), (18, 2), False),
        ((90, 10), (17, 3), True),
        ((0, 0), (0, 1), True),
    ],
)
def test_canary_fault_is_a_larger_share_of_failures(
    old: tuple[int, int], new: tuple[int, int], fails: bool
) -> None:
    fault = canary_fault(
        Share(answered=old[0], failed=old[1]), Share(answered=new[0], failed=new[1])
    )
    assert (fault is not None) == fails
    if fault is not None:
        assert f"{new[1]} of {sum(new)}" in fault
