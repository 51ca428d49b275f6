from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.drift import BATCH_S, DAY_S, OVER, UNDER, LevelTest, Looks, MixTest
from orchestrator.core.edetector import CLOSED

WEIGHTS = np.array([0.5, 0.3, 0.2])


def looks(level: float, *, drafts: float = 5000.0, allowance: float = 0.02) -> Looks:
    return Looks(
        observed=np.array([drafts * level]),
        promised=np.array([drafts]),
        allowance=np.array([allowance]),
        drafts=np.array([drafts]),
        seconds=60.0,
    )


def changes(test: LevelTest, level: Callable[[int], float], num: int) -> list[int]:
    """Return the looks at which an alarm was opened or closed."""
    return [minute for minute in range(num) if test.update(looks(level(minute)))[0]]


def test_level_within_interval_and_tolerance_is_no_drift() -> None:
    levels = np.linspace(1 / 1.05, 1.05, 101)
    test = LevelTest(len(levels), tolerance=0.03)
    drafts = np.full(len(levels), 5000.0)
    each = Looks(
        observed=drafts * levels,
        promised=drafts,
        allowance=np.full(len(levels), 0.02),
        drafts=drafts,
        seconds=60.0,
    )

    assert not any(test.update(each).any() for _ in range(4000))


@pytest.mark.parametrize(("level", "side"), [(1.2, OVER), (0.8, UNDER)])
def test_level_beyond_is_one_alarm_until_it_is_back(level: float, side: int) -> None:
    test = LevelTest(1, tolerance=0.03)

    opened = changes(test, lambda _: level, 3000)
    assert len(opened) == 1
    assert opened[0] < 25 * BATCH_S / 60
    assert test.detector.open.tolist() == [side]
    assert float(test.level[0]) == pytest.approx(level)
    assert float(test.allowance[0]) == pytest.approx(np.exp(0.02) * 1.03)

    assert len(changes(test, lambda _: 1.0, 3000)) == 1
    assert test.detector.open.tolist() == [CLOSED]


def test_minutes_that_swing_about_the_centre_are_no_drift() -> None:
    test = LevelTest(1, tolerance=0.03)

    # Half an hour of each: neighbours are alike, and no minute is within the interval.
    assert changes(test, lambda minute: 1.3 if minute // 30 % 2 else 0.7, 10_000) == []


def test_look_without_evidence_changes_nothing() -> None:
    test = LevelTest(1, tolerance=0.03)
    test.update(looks(1.2))
    before = json.dumps(test.state())

    for _ in range(1000):
        assert not test.update(looks(1.2, drafts=0.0))[0]

    assert json.dumps(test.state()) == before


def test_few_drafts_take_longer_to_a_batch() -> None:
    test = LevelTest(1, tolerance=0.03)
    for _ in range(90):
        test.update(looks(1.5, drafts=10.0))
    assert np.isnan(test.level[0]), "900 drafts in 90 minutes are no batch"

    for _ in range(10):
        test.update(looks(1.5, drafts=10.0))
    assert test.level[0] == pytest.approx(1.5)


@settings(max_examples=20)
@given(st.integers(1, 400), st.floats(0.7, 1.4))
def test_state_of_a_level_goes_on_where_it_was(cut: int, level: float) -> None:
    whole, part = LevelTest(1, tolerance=0.03), LevelTest(1, tolerance=0.03)
    for minute in range(450):
        if minute == cut:
            state = json.loads(json.dumps(part.state()))
            part = LevelTest(1, tolerance=0.03)
            part.restore(state)
        assert whole.update(looks(level))[0] == part.update(looks(level))[0]
    assert whole.state() == part.state()


def days(test: MixTest, shares: list[float], num: int, *, requests: float = 10_000) -> int:
    found = 0
    for _ in range(num):
        tokens = np.array([shares]) * 1e6
        found += int(test.update(tokens, np.array([float(requests)]), DAY_S)[0])
    return found


def test_mix_within_its_tolerance_is_no_drift() -> None:
    test = MixTest(1, WEIGHTS)

    assert days(test, [0.4, 0.3, 0.3], 400) == 0
    assert float(test.distance[0]) == pytest.approx(0.1)


def test_mix_far_off_is_one_alarm_within_days_and_closes() -> None:
    test = MixTest(1, WEIGHTS)

    assert days(test, [0.0, 0.1, 0.9], 10) == 1
    assert days(test, [0.0, 0.1, 0.9], 30) == 0
    assert days(test, [0.5, 0.3, 0.2], 30) == 1
    assert test.detector.open.tolist() == [CLOSED]


def test_day_with_few_requests_waits_for_more() -> None:
    test = MixTest(1, WEIGHTS)

    days(test, [0.0, 0.0, 1.0], 4, requests=100)
    assert np.isnan(test.shares).all()
    days(test, [0.0, 0.0, 1.0], 1, requests=100)
    assert test.shares.tolist() == [[0.0, 0.0, 1.0]]


def test_state_of_a_mix_goes_on_where_it_was() -> None:
    whole, part = MixTest(1, WEIGHTS), MixTest(1, WEIGHTS)
    for day in range(20):
        state = json.loads(json.dumps(part.state()))
        part = MixTest(1, WEIGHTS)
        part.restore(state)
        shares = [0.0, 0.1, 0.9] if day > 2 else [0.5, 0.3, 0.2]
        assert days(whole, shares, 1) == days(part, shares, 1)
    assert whole.state() == part.state()
    with pytest.raises(ValueError, match="tokens of shape"):
        MixTest(1, WEIGHTS[:2]).restore(whole.state())


@pytest.mark.parametrize(
    "make", [lambda: LevelTest(1, tolerance=0.03), lambda: MixTest(1, WEIGHTS)]
)
@pytest.mark.parametrize("damage", [None, [], [[0.0, 0.0]], ["x"], [None], [10**400], [math.nan]])
def test_state_that_is_damaged_anywhere_leaves_nothing_of_it(
    make: Callable[[], LevelTest | MixTest], damage: object
) -> None:
    seen, fresh = make(), make()
    if isinstance(seen, LevelTest):
        changes(seen, lambda _: 1.2, 1000)
    else:
        days(seen, [0.0, 0.1, 0.9], 10)
    nothing, state = fresh.state(), seen.state()
    assert state["detector"]["open"] != [CLOSED]

    for holder, key in [(state, key) for key in state] + [
        (state["detector"], key) for key in state["detector"]
    ]:
        whole, holder[key] = holder[key], damage
        if not (key == "shares" and damage == [None]):  # it is how no day is told
            with pytest.raises((ValueError, KeyError, TypeError)):
                fresh.restore(state)
            assert fresh.state() == nothing
        holder[key] = whole
    fresh.restore(state)
    assert fresh.state() == state


def test_state_with_an_alarm_of_no_direction_is_refused() -> None:
    state = LevelTest(1, tolerance=0.03).state()
    state["detector"]["open"] = [2]

    with pytest.raises(ValueError, match="no directions"):
        LevelTest(1, tolerance=0.03).restore(state)
