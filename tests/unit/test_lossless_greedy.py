"""Greedy tokens against the scorer's choice, up to near ties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.lossless.greedy import (
    Agreement,
    GreedySettings,
    agreement,
    judge_greedy,
)
from orchestrator.errors import ConfigError

GAPS = st.lists(
    st.lists(st.floats(0, 5), max_size=20).map(lambda gaps: np.array(gaps, dtype=float)),
    max_size=10,
)


def counted(tokens: int, disagreements: int) -> Agreement:
    return Agreement(num_tokens=tokens, num_disagreements=disagreements, num_near_ties=0)


def test_tokens_count_up_to_the_first_disagreement_of_an_answer() -> None:
    found = agreement(
        [np.array([0.0, 0.1, 3.0, 0.1, 3.0]), np.array([0.0, 0.0]), np.array([])], margin=0.25
    )

    assert found == Agreement(num_tokens=5, num_disagreements=1, num_near_ties=1)


def test_gap_of_the_margin_itself_is_a_near_tie() -> None:
    assert agreement([np.array([0.25])], margin=0.25).num_disagreements == 0
    assert agreement([np.array([0.25])], margin=0.2).num_disagreements == 1


def test_gap_below_zero_is_rounding() -> None:
    found = agreement([np.array([-1e-7, 0.0])], margin=0.0)

    assert found == Agreement(num_tokens=2, num_disagreements=0, num_near_ties=0)


def test_token_without_log_probability_is_refused() -> None:
    with pytest.raises(ValueError, match="no log probability"):
        agreement([np.array([0.0, np.nan])], margin=0.25)


@given(GAPS, st.floats(0, 2), st.floats(0, 2))
def test_wider_margin_never_finds_more_disagreements(
    gaps: list[np.ndarray], one: float, other: float
) -> None:
    narrow = agreement(gaps, margin=min(one, other))
    wide = agreement(gaps, margin=max(one, other))

    assert wide.num_disagreements <= narrow.num_disagreements <= len(gaps)
    assert narrow.num_tokens <= wide.num_tokens <= sum(map(len, gaps))


@pytest.mark.parametrize(
    ("arm", "control", "kind"),
    [
        (counted(50_000, 5), counted(50_000, 5), "passed"),
        (counted(50_000, 0), counted(50_000, 20), "passed"),
        (counted(5_000, 300), counted(50_000, 5), "rejected"),
        # As wrong as its control: numerics, not the arm.
        (counted(20_000, 200), counted(20_000, 200), "passed"),
        (counted(100, 1), counted(100, 0), "cannot_tell"),
        (counted(0, 0), counted(100, 0), "cannot_tell"),
        (counted(100, 0), counted(0, 0), "cannot_tell"),
        (counted(0, 0), counted(0, 0), "cannot_tell"),
    ],
)
def test_arm_is_judged_by_the_controls_own_disagreements(
    arm: Agreement, control: Agreement, kind: str
) -> None:
    result = judge_greedy(arm, control)

    assert result.kind == kind
    assert result.sentence.startswith(
        {"passed": "Passed: ", "rejected": "Rejected: ", "cannot_tell": "Cannot tell: "}[kind]
    )
    assert (result.more_tokens is None) == (
        kind != "cannot_tell" or not arm.num_tokens + control.num_tokens
    )


def test_missing_side_is_named() -> None:
    assert "of the arm was scored" in judge_greedy(counted(0, 0), counted(9, 0)).sentence
    assert "of the control was scored" in judge_greedy(counted(9, 0), counted(0, 0)).sentence


def test_tokens_that_were_asked_for_tell() -> None:
    first = judge_greedy(counted(500, 0), counted(500, 0))
    assert first.kind == "cannot_tell"
    assert first.more_tokens is not None

    total = 500 + first.more_tokens

    assert judge_greedy(counted(total, 0), counted(total, 0)).kind == "passed"


@pytest.mark.parametrize(
    ("key", "value"),
    [("margin", -1.0), ("margin", float("nan")), ("tolerance", 0.0), ("confidence", 1.0)],
)
def test_impossible_setting_is_named(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"greedy.{key}"):
        GreedySettings(**{key: value})
