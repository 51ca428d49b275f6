"""Rank buckets divide every distribution, ties included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.lossless.observations import RANK_BUCKETS, Floats, Observations
from orchestrator.core.lossless.ranks import (
    bucket_masses,
    rank_observations,
    ranked_probabilities,
    sampled_ranks,
    text_observations,
)


@st.composite
def distributions(draw: st.DrawFn) -> Floats:
    """Distributions over 1 to 200 tokens; few distinct weights, so that there are ties."""
    weights = draw(st.lists(st.sampled_from([0.0, 1.0, 2.0, 5.0, 100.0]), min_size=1, max_size=200))
    found = np.array([weights]) + (1.0 if not any(weights) else 0.0)
    return np.asarray(found / found.sum())


@given(distributions())
def test_mass_of_a_bucket_is_the_chance_that_a_sampled_token_is_in_it(p: Floats) -> None:
    vocabulary = p.shape[1]
    every = np.arange(vocabulary)
    ranks = sampled_ranks(np.repeat(p, vocabulary, axis=0), every)
    masses = bucket_masses(ranked_probabilities(p), is_whole=True)

    assert sorted(ranks) == list(range(1, vocabulary + 1))
    found = rank_observations(ranks, np.repeat(masses, vocabulary, axis=0))
    assert list(found) == [f"rank_{bucket}" for bucket in RANK_BUCKETS]
    for index, kind in enumerate(found):
        assert float(p[0] @ found[kind].x) == pytest.approx(masses[0, index], abs=1e-12)
    assert sum(kind.x for kind in found.values()) == pytest.approx(np.ones(vocabulary))


@given(distributions(), st.integers(1, 200))
def test_masses_from_top_probabilities_are_those_of_the_whole(p: Floats, num_top: int) -> None:
    ranked = ranked_probabilities(p)
    whole = bucket_masses(ranked, is_whole=True)

    top = bucket_masses(ranked[:, :num_top])

    assert top[0] == pytest.approx(whole[0, : top.shape[1]], abs=1e-12)
    if num_top >= 64 and ranked.shape[1] >= 64:
        assert top.shape[1] == len(RANK_BUCKETS)


@pytest.mark.parametrize(
    ("num_top", "num_buckets"), [(1, 1), (3, 1), (4, 2), (20, 3), (63, 3), (64, 5), (100, 5)]
)
def test_buckets_that_top_probabilities_do_not_tell_are_left_out(
    num_top: int, num_buckets: int
) -> None:
    ranked = np.full((2, 128), 1 / 128)[:, :num_top]

    found = text_observations(ranked, np.array([1, 100]))

    assert list(found) == [
        *(f"rank_{bucket}" for bucket in RANK_BUCKETS[:num_buckets]),
        "log_probability",
    ]


def test_rounding_above_one_leaves_no_negative_tail() -> None:
    ranked = np.full((1, 64), (1 + 1e-9) / 64)

    assert bucket_masses(ranked)[0, -1] == 0


@given(distributions(), st.integers(1, 200))
def test_log_probability_of_a_sampled_token_has_its_exact_mean(p: Floats, num_top: int) -> None:
    vocabulary = p.shape[1]
    every = np.arange(vocabulary)
    ranks = sampled_ranks(np.repeat(p, vocabulary, axis=0), every)
    ranked = np.repeat(ranked_probabilities(p)[:, :num_top], vocabulary, axis=0)

    found = text_observations(ranked, ranks)["log_probability"]

    assert float(p[0] @ found.x) == pytest.approx(float(found.m[0]), abs=1e-12)


def test_log_probability_is_counted_in_twelve_nats() -> None:
    ranked = np.exp(np.array([[-0.1, -3.0, -6.0, -13.0]]).repeat(5, axis=0))

    found = text_observations(ranked, np.array([1, 2, 3, 4, 9]))["log_probability"]

    assert found.x == pytest.approx([1 - 0.1 / 12, 0.75, 0.5, 0.0, 0.0])


@pytest.mark.parametrize(
    ("x", "m", "problem"),
    [
        ([0.0, 1.0], [0.5], "2 observations have 1 means"),
        ([2.0], [0.5], r"x\[0\] is 2.0"),
        ([0.0, 1.0], [0.5, -0.1], r"m\[1\] is -0.1"),
        ([float("nan")], [0.5], r"x\[0\] is nan"),
        ([[1.0]], [[0.5]], "not one dimension"),
    ],
)
def test_impossible_observations_are_refused(x: list[float], m: list[float], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Observations(x=np.array(x), m=np.array(m))


def test_rounding_beyond_the_ends_is_cut_off() -> None:
    found = Observations(x=np.array([1 + 1e-7], dtype=np.float32), m=np.array([-1e-9]))

    assert (found.x[0], found.m[0]) == (1.0, 0.0)
