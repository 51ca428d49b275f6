"""Two shares of hits compared by Newcombe's interval."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.proportions import (
    ProportionContrast,
    compare_proportions,
    wilson_interval,
)


@st.composite
def contrasts(draw: st.DrawFn) -> ProportionContrast:
    a_total = draw(st.integers(1, 2000))
    b_total = draw(st.integers(1, 2000))
    return compare_proportions(
        draw(st.integers(0, a_total)),
        a_total,
        draw(st.integers(0, b_total)),
        b_total,
        draw(st.sampled_from([0.8, 0.95, 0.999])),
    )


@pytest.mark.parametrize(
    ("counts", "low", "high"),
    [
        # Newcombe 1998, table II, method 10, rows (a) to (h).
        ((56, 70, 48, 80), 0.0524, 0.3339),
        ((9, 10, 3, 10), 0.1705, 0.8090),
        ((6, 7, 2, 7), 0.0582, 0.8062),
        ((5, 56, 0, 29), -0.0381, 0.1926),
        ((0, 10, 0, 20), -0.1611, 0.2775),
        ((0, 10, 0, 10), -0.2775, 0.2775),
        ((10, 10, 0, 20), 0.6791, 1.0),
        ((10, 10, 0, 10), 0.6075, 1.0),
    ],
)
def test_interval_of_published_counts_is_the_published_one(
    counts: tuple[int, int, int, int], low: float, high: float
) -> None:
    contrast = compare_proportions(*counts)

    assert contrast.low == pytest.approx(low, abs=6e-5)
    assert contrast.high == pytest.approx(high, abs=6e-5)


def test_sixty_against_sixty_five_of_a_hundred_is_no_difference() -> None:
    contrast = compare_proportions(60, 100, 65, 100)

    assert not contrast.differs
    assert contrast.answer(0.05) == "cannot_tell"
    assert "no difference is shown" in contrast.sentence(0.05)
    needed = contrast.items_needed(0.05)
    assert needed is not None
    assert needed > 100


@pytest.mark.parametrize(
    ("hits", "margin", "answer"),
    [
        ((600, 1000, 700, 1000), 0.05, "worse"),
        ((700, 1000, 600, 1000), 0.05, "not_worse"),
        ((8000, 10000, 8000, 10000), 0.02, "not_worse"),
        # Certainly worse, and certainly by less than the margin.
        ((80_000, 100_000, 80_800, 100_000), 0.02, "not_worse"),
        ((80_000, 100_000, 80_800, 100_000), 0.005, "worse"),
        ((0, 0, 5, 10), 0.05, "cannot_tell"),
        ((5, 10, 0, 0), 0.05, "cannot_tell"),
    ],
)
def test_answer_follows_the_interval(
    hits: tuple[int, int, int, int], margin: float, answer: str
) -> None:
    assert compare_proportions(*hits).answer(margin) == answer


def test_side_without_items_has_no_figure() -> None:
    contrast = compare_proportions(0, 0, 0, 0)

    assert (contrast.difference, contrast.low, contrast.high) == (None, None, None)
    assert contrast.items_needed(0.05) is None
    assert not contrast.differs
    assert contrast.sentence(0.05) == "Cannot tell: a side has no items."


@pytest.mark.parametrize(
    "arguments", [(3, 2, 0, 1), (-1, 2, 0, 1), (0, 1, 2, 1), (0, 1, 0, 1, 1.0), (0, 1, 0, 1, 0.0)]
)
def test_impossible_counts_are_refused(arguments: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"hits of|confidence"):
        compare_proportions(*arguments)


@given(contrasts())
def test_interval_holds_its_difference_and_stays_within_one(contrast: ProportionContrast) -> None:
    assert contrast.difference is not None
    assert contrast.low is not None
    assert contrast.high is not None
    assert -1 - 1e-9 <= contrast.low <= contrast.difference <= contrast.high <= 1 + 1e-9


@given(contrasts())
def test_interval_of_the_sides_exchanged_is_the_opposite(contrast: ProportionContrast) -> None:
    other = compare_proportions(
        contrast.b_hits, contrast.b_total, contrast.a_hits, contrast.a_total, contrast.confidence
    )

    assert contrast.low is not None
    assert other.high is not None
    assert other.high == pytest.approx(-contrast.low, abs=1e-12)


@given(contrasts(), st.floats(0.0, 0.5), st.floats(0.0, 0.5))
def test_wider_margin_never_turns_not_worse_round(
    contrast: ProportionContrast, one: float, other: float
) -> None:
    if contrast.answer(min(one, other)) == "not_worse":
        assert contrast.answer(max(one, other)) == "not_worse"


@pytest.mark.parametrize(("a", "b"), [(0.6, 0.65), (0.02, 0.05), (0.95, 0.9)])
def test_interval_holds_the_true_difference_as_often_as_it_says(a: float, b: float) -> None:
    rng = np.random.default_rng(5)
    held = 0
    for hits, others in zip(rng.binomial(150, a, 2000), rng.binomial(200, b, 2000), strict=True):
        contrast = compare_proportions(int(hits), 150, int(others), 200)
        assert contrast.low is not None
        assert contrast.high is not None
        held += contrast.low <= a - b <= contrast.high
    assert 0.935 <= held / 2000 <= 0.975


def test_items_needed_are_enough_as_often_as_asked() -> None:
    needed = compare_proportions(60, 100, 65, 100).items_needed(0.05)
    assert needed is not None
    rng = np.random.default_rng(6)
    share = 0.625
    found = [
        compare_proportions(int(a), needed, int(b), needed).answer(0.05) == "not_worse"
        for a, b in rng.binomial(needed, share, (2000, 2))
    ]
    assert np.mean(found) == pytest.approx(0.8, abs=4 * math.sqrt(0.16 / 2000))


def test_wilson_interval_of_no_items_is_none() -> None:
    assert wilson_interval(0, 0, confidence=0.95) is None
