"""Races of several engine builds side by side: none sees another's arms."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from core_samples import BASELINE, CELL, make_arm
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.core.build_race import (
    BuildRace,
    build_races,
    expected_boots_of,
    next_turn,
    production_build,
)
from orchestrator.core.race import RaceDecision, expected_boots, next_boot
from orchestrator.core.race_state import (
    Choice,
    Elapsed,
    RaceQuestion,
    RaceSettings,
    RaceState,
    Scored,
)
from orchestrator.core.types import Arm

NEW, OLD = "0.32.0", "0.28.0"
RULES = (make_arm(7), make_arm(5))


def on(build: str, *arms: Arm) -> tuple[Arm, ...]:
    return tuple(replace(arm, engine_build=build) for arm in arms)


ARMS = (*on(NEW, BASELINE, *RULES), *on(OLD, BASELINE, *RULES))
SETTINGS = RaceSettings(max_boots=40, seed=3)


def ask(arms: tuple[Arm, ...] = ARMS, incumbent: Arm | None = None) -> RaceQuestion:
    return RaceQuestion(arms=arms, incumbent=incumbent, weights={CELL: 1.0}, board=None)


@dataclass
class Play:
    """Runs all races to their end."""

    question: RaceQuestion
    score: Callable[[Arm], float | str]
    race: RaceSettings = SETTINGS
    slots: int = 1
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    hours: float | None = None

    def __post_init__(self) -> None:
        self.races = build_races(self.question, self.race)
        self.scored: list[Scored] = []
        self.issued: Counter[Arm] = Counter()
        self.failed: Counter[Arm] = Counter()
        self.dead: set[Arm] = set()
        self.running: list[Arm] = []
        self.choices: dict[str, Choice] = {}
        self.order: list[tuple[Arm, str]] = []
        self.reason = ""

    def state(self, race: BuildRace) -> RaceState:
        arms = race.question.arms
        elapsed = None
        if self.hours is not None:
            elapsed = race.elapsed(Elapsed(hours=self.hours, boot_hours=0.5, num_nodes=self.slots))
        return RaceState(
            arms=arms,
            incumbent=race.question.incumbent,
            scored=tuple(item for item in self.scored if item.arm in arms),
            dead=frozenset(self.dead),
            issued={arm: self.issued[arm] for arm in arms},
            failed={arm: self.failed[arm] for arm in arms},
            choice=self.choices.get(race.build),
            elapsed=elapsed,
        )

    def turn(self) -> RaceDecision:
        turn = next_turn(self.races, self.state)
        self.choices |= turn.choices
        return turn.decision

    def run(self) -> Play:
        for _ in range(2000):
            decision = self.turn()
            if decision.kind == "finished" and not self.running:
                self.reason = decision.reason
                return self
            if decision.kind == "boot" and len(self.running) < self.slots:
                assert decision.arm is not None
                assert decision.replicate == self.issued[decision.arm]
                self.issued[decision.arm] += 1
                self.running.append(decision.arm)
                self.order.append((decision.arm, decision.reason))
                continue
            assert self.running, f"nothing runs and the races say {decision}"
            self.end(self.running.pop(self.rng.randrange(len(self.running))))
        raise AssertionError("the races do not end")

    def end(self, arm: Arm) -> None:
        if self.hours is not None:
            self.hours += 0.5 / self.slots
        result = self.score(arm)
        if result == "dead":
            self.dead.add(arm)
        elif result == "failed":
            self.failed[arm] += 1
        else:
            number = len(self.scored)
            self.scored.append(Scored(trial_id=str(number), arm=arm, score_s=float(result)))

    def fresh(self, choice: Choice) -> int:
        return sum(
            item.arm == choice.arm and item.trial_id not in choice.chosen_by for item in self.scored
        )


def noisy(seed: int, speeds: dict[str, float] | None = None) -> Callable[[Arm], float]:
    """Score arms by build and depth with 2 % of luck a boot."""
    rng = random.Random(seed)
    builds = speeds or {NEW: 1.0, OLD: 1.0}

    def score(arm: Arm) -> float:
        base = {0: 0.08, 5: 0.04, 7: 0.03}[arm.num_speculative_tokens]
        return base / builds[arm.engine_build] * rng.lognormvariate(0, 0.02)

    return score


def test_build_races_of_one_build_are_the_study_s_own_race() -> None:
    question = ask(ARMS[:3], incumbent=ARMS[2])
    (race,) = build_races(question, SETTINGS)

    assert (race.question, race.settings, race.num_races) == (question, SETTINGS, 1)
    elapsed = Elapsed(hours=1.0, boot_hours=0.5, num_nodes=2)
    assert race.elapsed(elapsed) == elapsed
    state = RaceState(arms=question.arms, incumbent=question.incumbent, scored=())
    turn = next_turn([race], lambda _race: state)
    assert turn.decision == next_boot(state, SETTINGS)
    assert expected_boots_of([race]) == expected_boots(3, SETTINGS)


def test_build_races_production_s_build_comes_first_and_alone_has_the_incumbent() -> None:
    incumbent = ARMS[5]
    first, second = build_races(ask(incumbent=incumbent), SETTINGS)

    assert (first.build, second.build) == (OLD, NEW)
    assert (first.question.incumbent, second.question.incumbent) == (incumbent, None)
    assert second.question.reference == ARMS[0]
    assert production_build(ARMS, None) == NEW


@given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=4), boots=st.integers(1, 60))
def test_build_races_share_out_all_boots_by_the_number_of_arms(
    counts: list[int], boots: int
) -> None:
    arms = tuple(
        replace(make_arm(depth), engine_build=f"0.{30 + number}.0")
        for number, count in enumerate(counts)
        for depth in range(1, count + 1)
    )
    races = build_races(ask(arms), replace(SETTINGS, max_boots=boots))

    assert sum(race.settings.max_boots for race in races) == boots
    for race in races:
        fair = boots * len(race.question.arms) / len(arms)
        assert abs(race.settings.max_boots - fair) < 1
    assert {arm for race in races for arm in race.question.arms} == set(arms)


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_next_turn_a_slow_build_is_covered_and_chosen_from_like_the_fast_one(
    seed: int, slots: int
) -> None:
    """A02: a build that is twice as fast takes no boots from the other: they are not ranked."""
    play = Play(ask(), noisy(seed, {NEW: 2.0, OLD: 1.0}), slots=slots).run()

    assert {build: choice.arm for build, choice in play.choices.items()} == {
        NEW: ARMS[1],
        OLD: ARMS[4],
    }
    for choice in play.choices.values():
        assert play.fresh(choice) >= 2
        assert all(
            item.arm.engine_build == choice.arm.engine_build
            for item in play.scored
            if item.trial_id in choice.chosen_by
        )
    first_six = {arm for arm, _ in play.order[:6]}
    assert first_six == set(ARMS), "both are covered side by side"
    assert play.reason.startswith(f"vLLM {NEW}, its 20 boots: winner: {RULES[0].label}")
    assert f"; vLLM {OLD}, its 20 boots: winner: {RULES[0].label}" in play.reason


def test_next_turn_one_arm_a_build_gets_the_boots_that_a_comparison_needs() -> None:
    """Without a rival in its build neither would ever be booted twice."""
    arms = (*on(NEW, RULES[0]), *on(OLD, RULES[0]))
    play = Play(ask(arms), noisy(1)).run()

    assert play.fresh(play.choices[OLD]) == 2
    assert Counter(arm for arm, _ in play.order) == {arms[0]: 2, arms[1]: 3}
    assert play.order[-1][1].endswith("for the comparison of builds")


@pytest.mark.parametrize("seen", [0, 1])
def test_comparison_of_builds_begins_with_the_arm_less_seen_on_the_node(seen: int) -> None:
    arms = (*on(NEW, RULES[0]), *on(OLD, RULES[0]))
    play = Play(ask(arms), noisy(1))
    while (decision := play.turn()).arm is not None and OLD not in play.choices:
        play.issued[decision.arm] += 1
        play.end(decision.arm)

    def state(race: BuildRace) -> RaceState:
        return replace(play.state(race), on_node={arms[seen]: 1})

    decision = next_turn(play.races, state).decision

    assert decision.reason.endswith("for the comparison of builds")
    assert decision.arm == arms[1 - seen]


def test_next_turn_boots_that_are_compared_stay_within_the_budget_of_the_study() -> None:
    arms = (*on(NEW, RULES[0]), *on(OLD, RULES[0]))
    assert len(Play(ask(arms), noisy(1), replace(SETTINGS, max_boots=3)).run().order) == 3
    late = Play(ask(arms), noisy(1), replace(SETTINGS, max_hours=1.0), hours=0.0).run()
    assert len(late.order) < 5


def test_next_turn_build_that_cannot_run_leaves_the_other_alone() -> None:
    score = noisy(2)
    play = Play(ask(), lambda arm: "dead" if arm.engine_build == OLD else score(arm)).run()

    assert set(play.choices) == {NEW}
    assert Counter(arm.engine_build for arm, _ in play.order)[OLD] == 3
    assert "no arm can run here" in play.reason


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    slots=st.integers(1, 4),
    boots=st.integers(1, 30),
    incumbent=st.sampled_from([None, *ARMS]),
    faulty=st.sets(st.sampled_from(ARMS), max_size=4),
)
def test_next_turn_always_ends_within_the_boots_and_keeps_builds_apart(
    seed: int, slots: int, boots: int, incumbent: Arm | None, faulty: set[Arm]
) -> None:
    rng, score = random.Random(seed), noisy(seed)
    play = Play(
        ask(incumbent=incumbent),
        lambda arm: rng.choice(["dead", "failed"]) if arm in faulty else score(arm),
        replace(SETTINGS, max_boots=boots),
        slots=slots,
    ).run()

    assert sum(play.issued.values()) <= boots
    for build, choice in play.choices.items():
        assert choice.arm.engine_build == build
        assert choice.arm not in play.dead


def issued_with_choices_set_aside(seed: int) -> tuple[int, int]:
    """Return the boots of a study whose choices are set aside again and again, and its budget."""
    rng, score = random.Random(seed), noisy(seed)
    arms = (*on(NEW, *RULES), *ARMS[3:])
    faulty = rng.sample(arms, 2)
    question = ask(arms, incumbent=rng.choice([None, ARMS[3]]))
    play = Play(
        question,
        lambda arm: "failed" if arm in faulty and rng.random() < 0.5 else score(arm),
        replace(SETTINGS, max_boots=rng.randint(14, 20)),
        slots=3,
    )
    for _ in range(4):
        play.run()
        for build in sorted(play.choices):
            if play.choices[build].arm != question.reference and rng.random() < 0.7:
                play.dead.add(play.choices.pop(build).arm)
    return sum(play.issued.values()), play.race.max_boots


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6))
@example(seed=10)
@example(seed=19)
@example(seed=23)
def test_choices_that_are_set_aside_never_cost_more_boots_than_the_study_has(seed: int) -> None:
    """One build may use boots of another's share for the comparison; they are gone then."""
    issued, budget = issued_with_choices_set_aside(seed)

    assert issued <= budget
