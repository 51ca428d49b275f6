from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.edetector import CLOSED, EDetector, Floats

ALL = np.ones(1, dtype=bool)


def feed(detector: EDetector, *values: float) -> bool:
    return bool(detector.feed(np.array([list(values)]), ALL)[0])


def first_alarms(draw: st.SearchStrategy[float] | str, threshold: float, num: int) -> Floats:
    rng = np.random.default_rng(3)
    detector = EDetector(num, num_directions=1, threshold=threshold)
    found = np.full(num, np.nan)
    step = 0
    before = np.zeros(num)
    while np.isnan(found).any():
        step += 1
        noise = rng.standard_normal(num)
        # Neighbours that share their spread: dependent, with mean 0 given the past.
        x = np.clip(noise * np.where(before > 0, 0.9, 0.3), -1, 1)
        if draw == "coins":
            x = rng.choice([-1.0, 1.0], num)
        if draw == "rare":
            x = np.where(rng.random(num) < 0.2, 4.0, -1.0)
        changed = detector.feed(x[:, None], np.isnan(found))
        found[changed] = step
        before = noise
    return found


@pytest.mark.parametrize("draw", ["coins", "rare", "dependent"])
def test_mean_run_to_a_false_alarm_is_no_shorter_than_the_threshold(draw: str) -> None:
    threshold = 50.0
    found = first_alarms(draw, threshold, 800)

    standard_error = found.std() / math.sqrt(len(found))
    assert found.mean() >= threshold - 3 * standard_error
    assert found.mean() < 100 * threshold, "else it would never find anything"


def test_level_far_outside_is_found_in_a_logarithm_of_the_threshold() -> None:
    detector = EDetector(1, num_directions=2, threshold=1e6)

    batches = next(n for n in range(1, 100) if feed(detector, 1.0, -1.0))

    assert 18 <= batches <= 24
    assert detector.open.tolist() == [0]


def test_open_alarm_is_not_raised_again_and_closes_once_the_level_is_back() -> None:
    detector = EDetector(1, num_directions=2, threshold=1e3)
    changes = [feed(detector, -1.0, 1.0) for _ in range(200)]
    assert sum(changes) == 1
    assert detector.open.tolist() == [1]

    back = [feed(detector, -1.0, -1.0) for _ in range(60)]

    assert sum(back) == 1
    assert detector.open.tolist() == [CLOSED]


@given(st.lists(st.tuples(st.floats(-1, 4), st.booleans()), max_size=30))
def test_evidence_is_never_negative_and_stays_without_a_batch(
    batches: list[tuple[float, bool]],
) -> None:
    detector = EDetector(2, num_directions=1, threshold=1e9)
    for x, has_batch in batches:
        before = detector.evidence
        detector.feed(np.full((2, 1), x), np.array([has_batch, False]))
        assert (detector.evidence >= 0).all()
        assert detector.evidence[1] == 0
        if not has_batch:
            assert (detector.evidence == before).all()


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=40), st.integers(0, 40))
def test_state_goes_on_where_it_was(values: list[float], cut: int) -> None:
    whole = EDetector(1, num_directions=1, threshold=20.0)
    part = EDetector(1, num_directions=1, threshold=20.0)
    for index, x in enumerate(values):
        if index == cut:
            state = json.loads(json.dumps(part.state()))
            part = EDetector(1, num_directions=1, threshold=20.0)
            part.restore(state)
        assert feed(whole, x) == feed(part, x)
    assert whole.state() == part.state()


def test_state_of_other_directions_is_refused() -> None:
    state = EDetector(1, num_directions=1, threshold=9.0).state()

    with pytest.raises(ValueError, match="sums of shape"):
        EDetector(1, num_directions=2, threshold=9.0).restore(state)
