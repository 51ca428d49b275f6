"""What a lossless test would have seen, against simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from infra.bench.lossless.worlds import Sampler, TextScorer, contexts, displaced
from orchestrator.core.lossless.betting import BettingProcess, Direction, tilted
from orchestrator.core.lossless.judge import LosslessSettings, LosslessTest, judge
from orchestrator.core.lossless.observations import RANK_BUCKETS, Floats, Observations
from orchestrator.core.lossless.power import (
    FamilyPower,
    KindPower,
    smallest_seen,
    tokens_needed,
)
from orchestrator.core.lossless.ranks import bucket_masses

THRESHOLD = math.log(5000)
DIRECTIONS: list[Direction] = ["more", "fewer"]
MEANS = {
    "even": np.full(2000, 0.3),
    "rare": np.full(2000, 0.02),
    "spread": np.random.default_rng(0).beta(0.4, 0.6, 2000),
    "nearly certain": np.random.default_rng(1).beta(5.0, 0.2, 2000),
}


def power_of(m: Floats, *, num: int | None = None, floor: float = 0.0) -> KindPower:
    return KindPower(m, num=num or len(m), log_threshold=THRESHOLD, power=0.95, floor=floor)


def simulated_power(m: Floats, direction: Direction, shift: float, *, runs: int = 200) -> float:
    """Return how often a displacement of the mean is rejected, spread in the worst way."""
    sign = 1 if direction == "more" else -1
    low, high = 0.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        moved = abs(float(np.mean(tilted(m, sign * middle) - m)))
        low, high = (middle, high) if moved < shift else (low, middle)
    truth = tilted(m, sign * high)
    rng = np.random.default_rng(7)
    seen = 0
    for _ in range(runs):
        bets = BettingProcess()
        bets.update((rng.random(len(m)) < truth).astype(float), m)
        seen += bets.log_peak >= THRESHOLD
    return seen / runs


@pytest.mark.parametrize("name", MEANS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_smallest_displacement_is_seen_as_often_as_said(name: str, direction: Direction) -> None:
    m = MEANS[name]
    shift = power_of(m).smallest(direction)

    assert 0 < shift < power_of(m).capacity(direction)
    # 0.95 of 200 runs, three standard errors below; above, wealth before the end helps a little.
    assert simulated_power(m, direction, shift) >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / 200)
    # Not far below what is needed either: four fifths of it are often missed.
    assert simulated_power(m, direction, 0.8 * shift) < 0.95


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_scale_needed_sees_what_was_asked_for(direction: Direction) -> None:
    m = MEANS["spread"]
    shift = power_of(m).smallest(direction) / 3

    scale = power_of(m).scale_needed(direction, shift)

    # A third of the displacement takes about nine times the tokens.
    assert 7 < scale < 12
    more = power_of(m, num=math.ceil(scale * len(m)))
    assert more.smallest(direction) == pytest.approx(shift, rel=0.01)


def test_other_ways_of_spreading_a_displacement_are_seen_no_worse() -> None:
    # All of it in one tenth of the tokens, where the event is likelier than not.
    rng = np.random.default_rng(3)
    m = rng.beta(0.4, 0.6, 4000)
    shift = power_of(m).smallest("fewer")
    struck = rng.random(4000) < 0.25
    truth = m - np.where(struck, m * min(1.0, shift / float((m * struck).mean())), 0.0)
    assert (m - truth).mean() == pytest.approx(shift, rel=0.05)

    seen = 0
    for _ in range(100):
        bets = BettingProcess()
        bets.update((rng.random(4000) < truth).astype(float), m)
        seen += bets.log_peak >= THRESHOLD

    assert seen >= 90


def test_nothing_is_seen_where_nothing_can_be_displaced() -> None:
    certain = power_of(np.zeros(1000))

    assert certain.capacity("fewer") == 0
    assert certain.smallest("fewer") == math.inf
    assert certain.scale_needed("fewer", 0.01) == math.inf


def test_too_few_observations_see_nothing_at_all() -> None:
    assert power_of(np.full(3, 0.5)).smallest("fewer") == math.inf


def test_floor_hides_what_it_allows_however_many_the_tokens() -> None:
    m = np.full(1000, 0.3)
    hidden = 0.5 * float(tilted(m, 0.2)[0] - 0.3)

    assert power_of(m, floor=0.2).scale_needed("more", hidden) == math.inf
    assert power_of(m, floor=0.2).smallest("more") > power_of(m).smallest("more")
    assert math.isfinite(power_of(m).scale_needed("more", hidden))


def family(masses: Floats, *, num: int | None = None) -> FamilyPower:
    kinds = {str(index): power_of(masses[:, index], num=num) for index in range(masses.shape[1])}
    return FamilyPower(name="f", num=num or len(masses), kinds=kinds)


def test_pair_is_as_sharp_as_the_sharper_of_its_sides() -> None:
    # The rare side sees what the common one does not.
    rare = np.tile([0.98, 0.02], (4000, 1))
    unseen = family(rare).unseen()

    assert unseen == pytest.approx(
        max(
            min(power_of(rare[:, loser]).smallest("fewer"), gain, 0.02 if loser else 1.0)
            for loser, gainer in ((0, 1), (1, 0))
            for gain in [power_of(rare[:, gainer]).smallest("more")]
        )
    )


def test_events_that_no_kind_counts_are_one_side_more() -> None:
    m = np.tile([0.3], (4000, 1))
    kind = power_of(m[:, 0])

    assert family(m).unseen() == pytest.approx(max(kind.smallest("fewer"), kind.smallest("more")))


def test_no_more_is_unseen_than_a_pair_has_room_for() -> None:
    assert family(np.tile([0.999, 0.001], (100, 1))).unseen() <= 1.0
    # Out of the rare kind no more can come than is in it; into it, much more can, and is seen.
    tiny = np.tile([0.9, 0.1 - 1e-5, 1e-5], (100, 1))
    found = family(tiny, num=200_000)
    assert 1e-5 < found.unseen() < 0.01
    assert found.scale_needed(0.5) < 1
    assert found.scale_needed(0.95) == 0.0


def test_displacement_is_a_share_of_all_tokens() -> None:
    one = family(np.tile([0.4, 0.6], (4000, 1)))

    seen = smallest_seen([one], num_tokens=40_000)

    assert seen == pytest.approx(one.unseen() / 10)
    needed = tokens_needed([one], displacement=0.01, num_tokens=40_000)
    assert needed is not None
    assert seen is not None
    assert (needed > 40_000) == (seen > 0.01)


def test_nothing_is_said_without_families() -> None:
    assert smallest_seen([], num_tokens=10) is None
    assert tokens_needed([], displacement=0.01, num_tokens=10) is None


def text(sampled: Floats, scored: Floats, num: int, seed: int) -> dict[str, Observations]:
    rng = np.random.default_rng(seed)
    where = rng.integers(0, len(scored), num)
    return TextScorer(scored).observations(where, Sampler(sampled).ranks(where, rng))


@pytest.mark.parametrize(("loser", "gainer"), [("1", "2-4"), ("2-4", "1"), ("65+", "5-16")])
def test_text_test_sees_what_it_says_it_sees(loser: str, gainer: str) -> None:
    scored = contexts(np.random.default_rng(5), num=512)
    settings = LosslessSettings()
    num = 5000
    seen = judge(text(scored, scored, num, 0), num_tokens=num, settings=settings).seen
    assert seen is not None
    sampled = displaced(scored, seen, loser=loser, gainer=gainer)
    before, after = (
        p[:, RANK_BUCKETS.index(loser)]
        for p in (bucket_masses(scored, is_whole=True), bucket_masses(sampled, is_whole=True))
    )
    assert (before - after).mean() == pytest.approx(seen, rel=0.01)

    rejected = 0
    for seed in range(1, 41):
        test = LosslessTest(settings)
        test.update(text(sampled, scored, num, seed))
        rejected += test.p_value <= settings.alpha

    # 0.95 of 40, three standard errors below.
    assert rejected / 40 >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / 40)
