from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from core_samples import BASELINE, make_arm
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.race import (
    MAX_RETRIES,
    RaceSettings,
    RaceState,
    expected_boots,
    next_boot,
)
from orchestrator.core.types import Arm

ARMS = (BASELINE, *(make_arm(depth) for depth in range(4, 9)))
SETTINGS = RaceSettings(num_finalists=2, boots_per_finalist=3, max_boots=64, seed=3)
SCORES = {4: 24.0, 5: 25.0, 6: 26.0, 7: 30.0, 8: 12.0, 0: 10.0}
"""Published tokens a second by depth: no hill, but a cliff after the best."""


class Play:
    """Runs a race to its end, with several boots at a time."""

    def __init__(
        self,
        arms: tuple[Arm, ...],
        incumbent: Arm | None,
        *,
        race: RaceSettings,
        outcome: Callable[[Arm], float | str],
        rng: random.Random,
        slots: int = 1,
    ) -> None:
        self.arms, self.incumbent, self.race = arms, incumbent, race
        self.outcome, self.rng, self.slots = outcome, rng, slots
        self.scores: dict[Arm, list[float]] = {}
        self.issued: dict[Arm, int] = {}
        self.failed: dict[Arm, int] = {}
        self.dead: set[Arm] = set()
        self.known: frozenset[Arm] = frozenset()
        self.order: list[Arm] = []
        self.running: list[Arm] = []
        self.reason = ""

    def state(self) -> RaceState:
        return RaceState(
            arms=self.arms,
            incumbent=self.incumbent,
            scores=self.scores,
            dead=frozenset(self.dead),
            issued=self.issued,
            failed=self.failed,
            known=self.known,
        )

    def run(self) -> None:
        for _ in range(2000):
            decision = next_boot(self.state(), self.race)
            if decision.kind == "finished" and not self.running:
                self.reason = decision.reason
                return
            if decision.kind == "boot" and len(self.running) < self.slots:
                arm = decision.arm
                assert arm is not None
                assert decision.replicate == self.issued.get(arm, 0)
                self.issued[arm] = self.issued.get(arm, 0) + 1
                self.order.append(arm)
                self.running.append(arm)
                continue
            assert self.running, f"nothing runs and the race says {decision}"
            self.end(self.running.pop(self.rng.randrange(len(self.running))))
        raise AssertionError("the race does not end")

    def end(self, arm: Arm) -> None:
        result = self.outcome(arm)
        if result == "dead":
            self.dead.add(arm)
        elif result == "failed":
            self.failed[arm] = self.failed.get(arm, 0) + 1
        else:
            self.scores.setdefault(arm, []).append(float(result))


def play(
    outcome: Callable[[Arm], float | str],
    *,
    arms: tuple[Arm, ...] = ARMS,
    incumbent: Arm | None = None,
    race: RaceSettings = SETTINGS,
    slots: int = 1,
) -> Play:
    game = Play(arms, incumbent, race=race, outcome=outcome, rng=random.Random(1), slots=slots)
    game.run()
    return game


def published(arm: Arm) -> float:
    return 1 / SCORES[arm.num_speculative_tokens]


def test_next_boot_cliff_after_the_best_depth_is_no_obstacle() -> None:
    game = play(published)
    assert len(game.scores[make_arm(7)]) == 3
    assert len(game.scores[make_arm(6)]) == 3
    assert len(game.scores[BASELINE]) == 3
    assert len(game.scores[make_arm(8)]) == 1
    assert game.reason == "3 finalists have their boots"


def test_next_boot_covers_first_then_interleaves_with_every_second_round_reversed() -> None:
    game = play(published)
    assert set(game.order[: len(ARMS)]) == set(ARMS)
    best, second = make_arm(7), make_arm(6)
    assert game.order[len(ARMS) :] == [best, second, BASELINE, BASELINE, second, best]


def test_next_boot_coverage_order_depends_on_the_seed_alone() -> None:
    first = play(published).order
    assert play(published).order == first
    other = RaceSettings(num_finalists=2, boots_per_finalist=3, max_boots=64, seed=4)
    assert play(published, race=other).order[: len(ARMS)] != first[: len(ARMS)]


def test_next_boot_incumbent_is_in_the_final_whatever_it_scores() -> None:
    game = play(published, incumbent=make_arm(8))
    assert len(game.scores[make_arm(8)]) == 3
    assert len(game.scores[BASELINE]) == 1


def test_next_boot_arm_with_a_known_score_gets_no_boot_beyond_its_first() -> None:
    play = Play(ARMS, None, race=SETTINGS, outcome=published, rng=random.Random(1))
    play.known = frozenset({BASELINE})

    play.run()

    assert play.order.count(BASELINE) == 1
    assert len(play.order) == expected_boots(len(ARMS), SETTINGS, is_reference_known=True)


def test_next_boot_waits_for_the_coverage() -> None:
    state = RaceState(
        arms=ARMS, incumbent=None, scores={BASELINE: [0.1]}, issued=dict.fromkeys(ARMS, 1)
    )
    decision = next_boot(state, SETTINGS)
    assert decision.kind == "wait"
    assert "coverage" in decision.reason


def test_next_boot_failed_boot_is_retried_once() -> None:
    broken = make_arm(5)
    game = play(lambda arm: "failed" if arm == broken else published(arm))
    assert game.issued[broken] == 1 + MAX_RETRIES
    assert broken not in game.scores


def test_next_boot_dead_arm_gets_no_second_boot_and_frees_its_place() -> None:
    best = make_arm(7)
    game = play(lambda arm: "dead" if arm == best else published(arm))
    assert game.issued[best] == 1
    assert len(game.scores[make_arm(5)]) == 3


def test_next_boot_all_dead_or_failing_ends_with_the_reason() -> None:
    assert play(lambda _: "dead").reason == "no arm can run here"
    assert play(lambda _: "failed").reason == "no arm has a score"


def test_next_boot_spent_budget_waits_and_then_ends() -> None:
    race = RaceSettings(num_finalists=2, boots_per_finalist=3, max_boots=3, seed=3)
    game = play(published, race=race, slots=3)
    assert len(game.order) == 3
    assert "search.max_boots=3 is spent" in game.reason
    state = RaceState(arms=ARMS, incumbent=None, scores={}, issued=dict.fromkeys(ARMS[:3], 1))
    assert next_boot(state, race).kind == "wait"


def test_next_boot_last_boots_running_is_a_wait() -> None:
    arms = (BASELINE, make_arm(7))
    state = RaceState(
        arms=arms,
        incumbent=None,
        scores={arm: [0.1] for arm in arms},
        issued=dict.fromkeys(arms, 3),
    )
    decision = next_boot(state, SETTINGS)
    assert (decision.kind, decision.reason) == ("wait", "the last boots are running")


def test_expected_boots_counts_coverage_and_final_within_the_budget() -> None:
    assert expected_boots(9, SETTINGS) == 9 + 3 * 2
    assert expected_boots(2, SETTINGS) == 6
    assert expected_boots(100, SETTINGS) == 64
    assert len(play(published).order) == expected_boots(len(ARMS), SETTINGS)


@settings(max_examples=150, deadline=None)
@given(
    num_arms=st.integers(1, 7),
    finalists=st.integers(1, 4),
    boots=st.integers(1, 4),
    max_boots=st.integers(1, 60),
    slots=st.integers(1, 4),
    seed=st.integers(0, 99),
    incumbent=st.one_of(st.none(), st.integers(0, 8)),
    failing=st.floats(0, 1),
    dying=st.floats(0, 0.5),
)
def test_race_ends_within_its_budgets_and_covers_all(
    num_arms: int,
    finalists: int,
    boots: int,
    max_boots: int,
    slots: int,
    seed: int,
    incumbent: int | None,
    failing: float,
    dying: float,
) -> None:
    arms = tuple(make_arm(depth + 1) for depth in range(num_arms))
    rng = random.Random(seed)

    def outcome(arm: Arm) -> float | str:
        draw = rng.random()
        if draw < dying:
            return "dead"
        return "failed" if draw < dying + failing / 2 else rng.lognormvariate(0, 0.1)

    race = RaceSettings(
        num_finalists=finalists,
        boots_per_finalist=boots,
        max_boots=max_boots,
        seed=seed,
    )
    game = Play(
        arms,
        None if incumbent is None else make_arm(incumbent + 1),
        race=race,
        outcome=outcome,
        rng=rng,
        slots=slots,
    )
    game.run()
    assert len(game.order) <= max_boots
    for arm in arms:
        assert len(game.scores.get(arm, ())) <= boots
        assert game.issued.get(arm, 0) <= boots + MAX_RETRIES + 1
    if max_boots >= num_arms * (1 + MAX_RETRIES):
        for arm in arms:
            tried_twice = game.failed.get(arm, 0) > MAX_RETRIES
            assert game.scores.get(arm) or arm in game.dead or tried_twice


@pytest.mark.parametrize("slots", [1, 3])
def test_race_with_nothing_failing_gives_each_finalist_its_boots(slots: int) -> None:
    game = play(published, slots=slots)
    assert sorted(map(len, game.scores.values())) == [1, 1, 1, 3, 3, 3]
