"""The verdict of the lossless test: rejected, passed, or cannot tell."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.bench.lossless.worlds import (
    AuditPool,
    Sampler,
    TextScorer,
    at_temperature,
    contexts,
    run_audit,
)
from orchestrator.core.lossless.judge import LosslessSettings, LosslessTest, judge
from orchestrator.core.lossless.observations import (
    AUDIT_KINDS,
    TEXT_KINDS,
    Floats,
    Observations,
    kind_weights,
)
from orchestrator.errors import ConfigError


@pytest.fixture(scope="module")
def pool() -> Floats:
    return contexts(np.random.default_rng(0), num=512)


@pytest.fixture(scope="module")
def steps() -> AuditPool:
    return AuditPool(np.random.default_rng(1), num=512)


def text(pool: Floats, num: int, seed: int, *, temperature: float = 1.0) -> dict[str, Observations]:
    rng = np.random.default_rng(seed)
    where = rng.integers(0, len(pool), num)
    sampler = Sampler(at_temperature(pool, temperature))
    return TextScorer(pool).observations(where, sampler.ranks(where, rng))


def bernoulli(num: int, m: float, happened: float) -> Observations:
    """Observations of one mean in which a share happened, spread evenly."""
    steps = np.floor(np.arange(num + 1) * happened)
    return Observations(x=np.diff(steps), m=np.full(num, m))


def pieces(
    observations: Mapping[str, Observations], cuts: list[int]
) -> list[dict[str, Observations]]:
    num = max(map(len, observations.values()))
    ends = [0, *sorted(min(cut, num) for cut in cuts), num]
    return [
        {
            name: Observations(x=found.x[start:end], m=found.m[start:end])
            for name, found in observations.items()
        }
        for start, end in itertools.pairwise(ends)
    ]


@pytest.mark.parametrize("seed", range(10))
def test_wrong_temperature_is_rejected_within_2000_tokens(pool: Floats, seed: int) -> None:
    result = judge(text(pool, 2000, seed, temperature=0.9), num_tokens=2000)

    assert result.kind == "rejected"
    assert result.p_value <= 0.001
    assert result.more_tokens is None
    assert result.sentence.startswith("Rejected after 2,000 tokens")


def test_lossless_text_of_enough_tokens_passes(pool: Floats) -> None:
    few = judge(text(pool, 2000, 1), num_tokens=2000)
    assert few.kind == "cannot_tell"
    assert few.more_tokens is not None
    assert f"{few.more_tokens:,} tokens more" in few.sentence
    total = 2000 + few.more_tokens + 2000

    enough = judge(text(pool, total, 2), num_tokens=total)

    assert enough.kind == "passed"
    assert enough.seen is not None
    assert 0.008 < enough.seen <= 0.01
    assert enough.more_tokens is None
    assert enough.sentence.startswith("Passed after")


def test_displacement_of_a_rejected_audit_is_near_the_true_one(steps: AuditPool) -> None:
    audit = run_audit(steps, num_steps=8000, rng=np.random.default_rng(3), displacement=0.015)

    result = judge(audit.observations, num_tokens=audit.num_tokens)

    assert result.kind == "rejected"
    assert "recovered_in_candidates: fewer than expected" in result.where
    assert result.displacement == pytest.approx(0.015, abs=0.003)
    assert result.chance is not None
    assert result.chance < 0.003


@pytest.mark.parametrize("seed", range(5))
def test_lossless_audit_is_not_rejected(steps: AuditPool, seed: int) -> None:
    audit = run_audit(steps, num_steps=8000, rng=np.random.default_rng(seed))

    result = judge(audit.observations, num_tokens=audit.num_tokens)

    assert result.kind != "rejected"
    assert set(result.num_observations) == set(AUDIT_KINDS)
    assert result.displacement is not None
    assert result.chance is not None
    assert result.displacement < 4 * result.chance


def test_displacement_that_chance_shows_is_what_lossless_texts_show(pool: Floats) -> None:
    found = [judge(text(pool, 200, seed), num_tokens=200) for seed in range(80)]

    shown = np.mean([result.displacement for result in found])
    # One text's spreads by 0.4 of its mean: four standard errors.
    assert shown == pytest.approx(float(np.mean([result.chance for result in found])), rel=0.18)


@given(st.lists(st.integers(0, 10_000), max_size=6))
@settings(max_examples=8)
def test_looking_after_every_batch_ends_as_one_go(cuts: list[int]) -> None:
    observations = text(contexts(np.random.default_rng(9), num=64), 10_000, 4, temperature=0.97)
    test = LosslessTest()
    p_values = []
    for piece in pieces(observations, cuts):
        test.update(piece)
        p_values.append(test.p_value)

    at_once = judge(observations, num_tokens=10_000)
    in_pieces = test.result(10_000)

    assert in_pieces.p_value == pytest.approx(at_once.p_value)
    assert in_pieces.num_observations == at_once.num_observations
    assert in_pieces.displacement == pytest.approx(at_once.displacement)
    assert in_pieces.seen == pytest.approx(at_once.seen)
    assert in_pieces.where == at_once.where


def test_rejection_stays_however_lossless_the_rest_is() -> None:
    test = LosslessTest()
    test.update({"rank_1": bernoulli(1600, 0.5, 0.6)})
    assert test.p_value <= 0.001
    rejected = test.p_value

    test.update({"rank_1": bernoulli(160_000, 0.5, 0.5)})

    assert test.p_value == pytest.approx(rejected)
    assert test.result(161_600).kind == "rejected"


@pytest.mark.parametrize(
    ("observations", "num_tokens"),
    [
        ({}, 100),
        ({"rank_1": Observations(x=np.empty(0), m=np.empty(0))}, 100),
        ({"rank_1": bernoulli(10, 0.5, 0.5)}, 0),
    ],
)
def test_nothing_seen_is_no_figure(
    observations: Mapping[str, Observations], num_tokens: int
) -> None:
    result = judge(observations, num_tokens=num_tokens)

    assert result.kind == "cannot_tell"
    assert (result.displacement, result.chance, result.seen, result.more_tokens) == (None,) * 4
    assert result.p_value == 1.0
    assert result.sentence == "Cannot tell: there are no observations."


def test_log_probability_alone_never_passes_but_may_reject() -> None:
    quiet = judge({"log_probability": bernoulli(100_000, 0.3, 0.3)}, num_tokens=100_000)
    assert quiet.kind == "cannot_tell"
    assert (quiet.seen, quiet.displacement, quiet.more_tokens) == (None, None, None)
    assert "no kind of observation says how many tokens moved" in quiet.sentence

    loud = judge({"log_probability": bernoulli(100_000, 0.3, 0.35)}, num_tokens=100_000)
    assert loud.kind == "rejected"
    assert "higher mean log probability than expected, -7.8" in loud.where
    assert "against -8.400 over 100,000" in loud.where
    assert "displaced" not in loud.sentence


def test_floor_that_hides_the_displacement_is_said() -> None:
    hidden = LosslessSettings(floor=0.2)

    result = judge({"rank_1": bernoulli(50_000, 0.5, 0.5)}, num_tokens=50_000, settings=hidden)

    assert result.kind == "cannot_tell"
    assert result.more_tokens is None
    assert "no number of tokens would show 1.00% beside a numeric floor of 0.2" in result.sentence


def test_floor_lets_numerics_pass_that_would_be_rejected_without() -> None:
    drifted = {"rank_1": bernoulli(400_000, 0.5, 0.51)}

    assert judge(drifted, num_tokens=400_000).kind == "rejected"
    floored = judge(drifted, num_tokens=400_000, settings=LosslessSettings(floor=0.04))
    assert floored.kind != "rejected"


def test_events_that_no_bucket_counts_are_part_of_the_displacement() -> None:
    # The first bucket loses 5 %, the second gains 1 %: the rest has entered others.
    found = judge(
        {"rank_1": bernoulli(10_000, 0.5, 0.45), "rank_2-4": bernoulli(10_000, 0.2, 0.21)},
        num_tokens=10_000,
    )

    assert found.displacement == pytest.approx(0.05, abs=1e-3)


def test_displacement_counts_all_tokens_and_not_the_events_alone() -> None:
    bonus = {"bonus_rank_1": bernoulli(1000, 0.5, 0.3)}

    assert judge(bonus, num_tokens=10_000).displacement == pytest.approx(0.02, abs=1e-3)


def test_weights_are_fixed_by_the_test_and_not_by_what_it_saw() -> None:
    assert kind_weights([]) == {}
    assert kind_weights(["rank_1"]) == kind_weights(TEXT_KINDS)
    assert kind_weights(["bonus_rank_1"]) == kind_weights(AUDIT_KINDS)
    both = kind_weights(["rank_1", "first_accepted"])
    assert set(both) == {*TEXT_KINDS, *AUDIT_KINDS}
    for weights in (both, kind_weights(TEXT_KINDS), kind_weights(AUDIT_KINDS)):
        assert math.fsum(weights.values()) == pytest.approx(1.0)


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown kind of observation: 'rank_0'"):
        judge({"rank_0": bernoulli(10, 0.5, 0.5)}, num_tokens=10)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("alpha", 0.0),
        ("alpha", float("nan")),
        ("power", 1.0),
        ("displacement", -0.1),
        ("floor", -1e-9),
        ("floor", float("inf")),
        ("floor", float("nan")),
    ],
)
def test_impossible_setting_is_named(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"lossless.{key}"):
        LosslessSettings(**{key: value})
