from __future__ import annotations

import math

import pytest
from core_samples import BASELINE, make_arm
from scipy import integrate, stats

from orchestrator.core.standings import Standings, standings

FAST, NEAR, FAR = make_arm(7), make_arm(6), make_arm(4)


def of(scores: dict[int, list[float]]) -> Standings:
    now = standings({make_arm(depth): values for depth, values in scores.items()})
    assert now is not None
    return now


def loss(scores: dict[int, list[float]]) -> float:
    """Return what taking the leader is expected to cost against the nearest rival."""
    now = of(scores)
    expected = now.expected_loss(now.rivals[0])
    assert expected is not None
    return expected


def test_standings_without_scores_is_none() -> None:
    assert standings({}) is None
    assert standings({FAST: []}) is None


def test_standings_order_gaps_and_pooled_spread() -> None:
    now = of({4: [2.0], 7: [1.0, 1.0 * math.exp(0.02)], 6: [1.1 * math.exp(0.02), 1.1]})

    assert now.leader == FAST
    assert [rival.arm for rival in now.rivals] == [NEAR, FAR]
    near, far = now.rivals
    assert near.gap == pytest.approx(math.log(1.1))
    assert far.gap == pytest.approx(math.log(2) - 0.01)
    assert (near.weight, far.weight) == pytest.approx((1.0, math.sqrt(1.5)))
    assert now.degrees == 2
    assert now.spread == pytest.approx(math.sqrt(4 * 0.01**2 / 2))


def test_one_boot_an_arm_tells_nothing_of_the_spread() -> None:
    now = of({7: [1.0], 6: [9.0]})

    assert now.spread is None
    assert now.expected_loss(now.rivals[0]) is None
    assert not now.is_beaten(now.rivals[0], margin=0.01, error=0.05)
    assert not now.is_told_apart(now.rivals[0], error=0.05)


def test_known_score_is_exact_and_no_part_of_the_spread() -> None:
    now = standings({BASELINE: [2.0, 2.0], FAST: [1.0, 1.1, 1.2]}, known={BASELINE})

    assert now is not None
    assert now.degrees == 2
    assert now.rivals[0].weight == pytest.approx(math.sqrt(1 / 3))


def test_expected_loss_is_the_integral_over_the_rivals_lead() -> None:
    now = of({7: [1.0, 1.03, 0.99], 6: [1.02, 1.0]})
    rival = now.rivals[0]
    assert now.spread is not None
    scale = now.spread * rival.weight
    law = stats.t(now.degrees, loc=-rival.gap, scale=scale)
    expected, _ = integrate.quad(lambda lead: lead * law.pdf(lead), 0, 60 * scale, limit=200)

    assert now.expected_loss(rival) == pytest.approx(expected, rel=1e-3)


def test_expected_loss_falls_with_the_gap_and_with_boots() -> None:
    near, farther, far = (
        loss({7: [1.0, 1.02, 0.99], 6: [gap, 1.02 * gap]}) for gap in (1.01, 1.05, 1.2)
    )
    assert near > farther > far > 0
    few, many = (
        loss({7: [1.0, 1.02], 6: [1.03, 1.01]}),
        loss({7: [1.0, 1.02] * 4, 6: [1.03, 1.01] * 4}),
    )
    assert few > many


def test_boots_without_any_spread_lose_nothing() -> None:
    now = of({7: [1.0] * 3, 6: [1.1]})

    assert now.expected_loss(now.rivals[0]) == 0.0
    assert now.is_beaten(now.rivals[0], margin=0.0, error=0.05)


def test_bound_at_any_look_is_wider_than_the_one_of_a_single_look() -> None:
    gaps = [1.0 + 0.002 * step for step in range(1, 100)]
    told, beaten = [], []
    for gap in gaps:
        now = of({7: [1.0, 1.02, 0.99, 1.01], 6: [gap, gap * 1.02, gap * 0.99, gap * 1.01]})
        told.append(now.is_told_apart(now.rivals[0], error=0.05))
        beaten.append(now.is_beaten(now.rivals[0], margin=0.0, error=0.05))

    assert sum(told) > sum(beaten) > 0
    assert all(seen or not sure for seen, sure in zip(told, beaten, strict=True))


def test_margin_lets_a_rival_be_beaten_that_is_as_fast() -> None:
    now = of({7: [1.0, 1.001] * 8, 6: [1.0, 1.001] * 8})
    rival = now.rivals[0]

    assert not now.is_beaten(rival, margin=0.0, error=0.05)
    assert now.is_beaten(rival, margin=0.01, error=0.05)


def test_chance_to_show_a_lead_is_the_power_of_the_interval() -> None:
    now = of({7: [1.0, 1.02, 0.99, 1.01], 6: [1.05, 1.06]})
    assert now.spread is not None
    lead = now.means[NEAR] - now.means[FAST]
    error = now.spread * math.sqrt(1 / 3 + 1 / 2)
    expected = stats.norm.cdf(lead / error - stats.t.ppf(0.975, now.degrees))

    assert now.chance_to_show(FAST, NEAR, [3, 2]) == pytest.approx(expected)
    assert now.chance_to_show(FAST, NEAR, [6, 6]) > now.chance_to_show(FAST, NEAR, [3, 2])
    assert now.chance_to_show(NEAR, FAST, [3, 2]) == 0
    assert now.chance_to_show(FAST, NEAR, []) == 1, "both are known"
    assert of({7: [1.0], 6: [1.1]}).chance_to_show(FAST, NEAR, [9, 9]) == 0
