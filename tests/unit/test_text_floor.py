"""The numeric floor of the text test: the drift between sampling and scoring."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.core.lossless.betting import tilted
from orchestrator.load.token_answers import Scores, Top
from orchestrator.lossless_floor import DriftMeter

NUM_TOKENS, VOCABULARY = 400, 80


def distributions(seed: int = 0) -> np.ndarray:
    """Return falling rows, [NUM_TOKENS, VOCABULARY], that sum to 1."""
    rng = np.random.default_rng(seed)
    weights = np.sort(rng.exponential(size=(NUM_TOKENS, VOCABULARY)) ** 4)[:, ::-1]
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def scores_of(probabilities: np.ndarray) -> Scores:
    num = len(probabilities)
    return Scores(
        top=Top(
            ids=np.tile(np.arange(VOCABULARY), (num, 1)), logprobs=np.log(probabilities)
        ),
        logprobs=np.log(probabilities[:, 0]),
        ranks=np.ones(num, dtype=np.int64),
        is_whole=True,
    )  # fmt: skip


def decoded_of(probabilities: np.ndarray, num_top: int = VOCABULARY) -> Top:
    order = np.argsort(-probabilities, axis=1)[:, :num_top]
    return Top(ids=order, logprobs=np.log(np.take_along_axis(probabilities, order, axis=1)))


def tilted_first(probabilities: np.ndarray, log_odds: np.ndarray) -> np.ndarray:
    """Return distributions whose first token has its log odds moved, the others in proportion."""
    first = probabilities[:, :1]
    moved = np.array([tilted(p, f) for p, f in zip(first, log_odds, strict=True)])
    rest = probabilities[:, 1:] * (1 - moved) / (1 - first)
    return np.concatenate([moved, rest], axis=1)


def floor_of(scored: np.ndarray, sampled: np.ndarray, num_top: int = VOCABULARY) -> float:
    meter = DriftMeter()
    meter.update(scores_of(scored), decoded_of(sampled, num_top))
    assert meter.floor is not None
    return meter.floor


def test_floor_of_equal_distributions_is_nothing() -> None:
    p = distributions()

    assert floor_of(p, p) < 1e-12


def test_floor_of_a_drift_one_way_is_its_size_and_a_little_more() -> None:
    p = distributions()

    floor = floor_of(p, tilted_first(p, np.full(NUM_TOKENS, 0.05)))

    assert 0.05 <= floor < 0.08


def test_floor_of_drifts_both_ways_falls_with_the_tokens() -> None:
    p = distributions()
    drifts = 0.05 * np.random.default_rng(1).standard_normal(NUM_TOKENS)

    floor = floor_of(p, tilted_first(p, drifts))

    assert floor < 0.03
    assert floor > 0.05 / np.sqrt(NUM_TOKENS)


def test_floor_does_not_depend_on_how_answers_are_divided() -> None:
    p = distributions()
    sampled = tilted_first(p, np.full(NUM_TOKENS, 0.02))
    meter = DriftMeter()
    for part in np.array_split(np.arange(NUM_TOKENS), 7):
        meter.update(scores_of(p[part]), decoded_of(sampled[part]))

    assert meter.floor == pytest.approx(floor_of(p, sampled))
    assert meter.num_tokens == NUM_TOKENS
    assert meter.most == pytest.approx(np.abs(sampled - p)[:, 0].max(), rel=1e-6)


def test_floor_of_two_tokens_that_changed_places_is_of_their_masses() -> None:
    """Ranks of sampling do not matter: the scorer's order makes the buckets."""
    p = distributions()
    p[:, 0] = p[:, 1] = p[:, :2].mean(axis=1)
    tied = p.copy()
    tied[:, 0] *= 1 + 1e-9

    assert floor_of(tied, p[:, ::1]) < 1e-6


def test_floor_of_few_known_tokens_is_that_of_their_buckets() -> None:
    p = distributions()
    sampled = tilted_first(p, np.full(NUM_TOKENS, 0.05))

    assert floor_of(p, sampled, num_top=4) == pytest.approx(floor_of(p, sampled), rel=0.3)


def test_floor_of_nothing_is_not_known() -> None:
    assert DriftMeter().floor is None
    assert DriftMeter().most is None


def test_floor_ignores_the_unscored_end_of_an_answer() -> None:
    p = distributions()
    meter = DriftMeter()

    meter.update(scores_of(p[:-3]), decoded_of(p))

    assert meter.num_tokens == NUM_TOKENS - 3
    assert meter.floor is not None
    assert meter.floor < 1e-12
