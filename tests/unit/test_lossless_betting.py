"""Wealth of bets on exact means: fair under the null, growing beside it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.bench.lossless.worlds import Sampler, TextScorer, contexts, sample_texts
from orchestrator.core.lossless.betting import (
    BLOCK,
    NUM_BETS,
    BettingProcess,
    log_factors,
    null_limits,
    tilted,
)
from orchestrator.core.lossless.judge import LosslessTest
from orchestrator.core.lossless.observations import SLACK, Floats

UNIT = st.floats(0.0, 1.0)
EDGES = st.sampled_from([0.0, 1e-30, 1e-9, 1e-6, 1e-3, 0.5, 1 - 1e-3, 1 - 1e-9, 1.0])


def bernoulli(num: int, m: float, seed: int) -> tuple[Floats, Floats]:
    x = (np.random.default_rng(seed).random(num) < m).astype(float)
    return x, np.full(num, m)


def wealth_after(x: Floats, m: Floats, *, floor: float = 0.0) -> BettingProcess:
    process = BettingProcess(floor=floor)
    process.update(x, m)
    return process


def fraction_within(alarms: int, num: int, alpha: float) -> bool:
    """Whether the alarms do not exceed alpha by more than chance does, at three standard errors."""
    return alarms <= alpha * num + 3 * math.sqrt(num * alpha * (1 - alpha))


@given(st.one_of(UNIT, EDGES), st.floats(0.0, 3.0), st.floats(0.0, 1.0))
def test_no_bet_gains_on_average_whatever_mean_the_null_allows(
    m: float, floor: float, where: float
) -> None:
    means = np.array([m])
    low, high = null_limits(means, floor=floor)
    mean = low + where * (high - low)

    hit = np.exp(log_factors(np.array([1.0]), means, floor=floor))[:, 0]
    miss = np.exp(log_factors(np.array([0.0]), means, floor=floor))[:, 0]

    assert len(hit) == NUM_BETS
    assert (hit > 0).all()
    assert (miss > 0).all()
    assert (mean * hit + (1 - mean) * miss <= 1 + 1e-9).all()


@given(UNIT, st.lists(st.tuples(UNIT, st.floats(0.01, 1.0)), min_size=1, max_size=6))
def test_no_bet_gains_on_numbers_between_0_and_1(
    m: float, drawn: list[tuple[float, float]]
) -> None:
    weights = np.array([weight for _, weight in drawn])
    x = np.array([value for value, _ in drawn])
    chances = weights / weights.sum()
    mean = float(chances @ x)

    factors = np.exp(log_factors(x, np.full(len(x), mean)))

    # The same distribution is fair where its own mean is the null, and in general no bet is free.
    assert (factors @ chances <= 1 + 1e-9).all()
    assert (np.exp(log_factors(np.array([m]), np.array([m]))) <= 1 + 1e-9).all()


@given(
    st.integers(0, 400),
    st.lists(st.integers(0, 400), max_size=5),
    st.floats(0.0, 1.0),
    st.sampled_from([0.0, 0.1]),
)
@settings(max_examples=50)
def test_division_into_updates_changes_nothing(
    num: int, cuts: list[int], true_mean: float, floor: float
) -> None:
    rng = np.random.default_rng(num)
    m = rng.beta(0.3, 0.3, num)
    x = (rng.random(num) < (m + true_mean) / 2).astype(float)
    at_once = wealth_after(x, m, floor=floor)
    in_pieces = BettingProcess(floor=floor)

    ends = sorted(min(cut, num) for cut in cuts)
    for start, end in itertools.pairwise([0, *ends, num]):
        in_pieces.update(x[start:end], m[start:end])

    assert in_pieces.log_peak == pytest.approx(at_once.log_peak, abs=1e-9)
    assert in_pieces.log_wealth == pytest.approx(at_once.log_wealth, abs=1e-9)


def test_wealth_is_the_mean_of_the_products_of_factors() -> None:
    rng = np.random.default_rng(1)
    m = rng.beta(0.5, 0.5, 90)
    x = np.where(rng.random(90) < 0.5, rng.random(90), (rng.random(90) < m).astype(float))

    paths = np.exp(np.cumsum(log_factors(x, m), axis=1)).mean(axis=0)

    process = wealth_after(x, m)
    assert process.log_wealth == pytest.approx(math.log(paths[-1]))
    looks = [*paths[BLOCK - 1 :: BLOCK], paths[-1], 1.0]
    assert process.log_peak == pytest.approx(math.log(max(looks)))


def test_empty_stream_has_its_stake() -> None:
    process = wealth_after(np.empty(0), np.empty(0))

    assert process.log_wealth == pytest.approx(0.0)
    assert process.log_peak == pytest.approx(0.0)


@pytest.mark.parametrize("m", [0.0, 1.0, 1e-9, 1 - 1e-9])
def test_rounding_of_certain_events_is_no_evidence(m: float) -> None:
    noise = np.random.default_rng(2).uniform(-1e-7, 1e-7, 100_000)
    x = np.clip(m + noise, 0, 1)

    assert wealth_after(x, np.full(len(x), m)).log_peak < math.log(2)


@pytest.mark.parametrize(("m", "x"), [(0.0, 1.0), (1.0, 0.0)])
@pytest.mark.parametrize(("num", "num_events", "level"), [(100, 1, 1e-3), (1000, 3, 1e-6)])
def test_impossible_events_reject(
    m: float, x: float, num: int, num_events: int, level: float
) -> None:
    happened = np.full(num, m)
    happened[num // 10 :: num // num_events] = x
    assert (happened == x).sum() == num_events

    assert wealth_after(happened, np.full(num, m)).log_peak > -math.log(level)


def test_events_as_rare_as_the_slack_are_no_evidence() -> None:
    x = np.zeros(1_000_000)
    x[500_000] = 1.0

    assert wealth_after(x, np.zeros(len(x))).log_peak < math.log(1000)
    assert len(x) * SLACK == pytest.approx(1.0)


@pytest.mark.parametrize("m", [0.01, 0.2, 0.9, 0.99])
@pytest.mark.parametrize("sign", [-1, 1])
def test_floor_holds_what_it_names_and_no_more(m: float, sign: int) -> None:
    truth = float(tilted(np.array([m]), sign * 0.4)[0])
    x, _ = bernoulli(200_000, truth, seed=3)
    means = np.full(len(x), m)

    assert wealth_after(x, means).log_peak > math.log(1e3)
    assert wealth_after(x, means, floor=0.2).log_peak < wealth_after(x, means).log_peak
    assert wealth_after(x, means, floor=0.4).log_peak < math.log(1e3)


@given(st.floats(-20, 20), UNIT)
def test_tilt_adds_to_the_log_odds_and_back(log_odds: float, m: float) -> None:
    there = tilted(np.array([m]), log_odds)

    assert 0 <= there[0] <= 1
    if 1e-3 < m < 1 - 1e-3 and abs(log_odds) < 8:
        assert math.log(there[0] / (1 - there[0])) == pytest.approx(
            math.log(m / (1 - m)) + log_odds, abs=1e-6
        )
        assert tilted(there, -log_odds)[0] == pytest.approx(m, rel=1e-6)


def test_lossless_texts_are_rejected_no_oftener_than_said() -> None:
    # Texts in which every context follows from what was sampled, looked at all the way.
    rng = np.random.default_rng(4)
    ranked = contexts(rng)
    scorer = TextScorer(ranked)
    texts = sample_texts(Sampler(ranked), num_texts=1000, num_tokens=160, rng=rng)
    p_values = []
    for where, ranks in zip(texts.where, texts.ranks, strict=True):
        test = LosslessTest()
        test.update(scorer.observations(where, ranks))
        p_values.append(test.p_value)

    found = np.array(p_values)
    for alpha in (0.01, 0.05, 0.2):
        assert fraction_within(int((found <= alpha).sum()), len(found), alpha)
    # A test that never says anything would pass the above.
    assert (found <= 0.5).any()


def test_false_alarms_of_one_kind_come_near_what_is_allowed() -> None:
    alarms = {0.05: 0, 0.2: 0}
    for seed in range(2000):
        peak = wealth_after(*bernoulli(2000, 0.3, seed)).log_peak
        for alpha in alarms:
            alarms[alpha] += peak >= -math.log(alpha)

    for alpha, count in alarms.items():
        assert fraction_within(count, 2000, alpha)
    assert alarms[0.2] > 0.02 * 2000
