from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from core_samples import (
    BASELINE,
    BOARD,
    CELL,
    WIDE_CELL,
    make_arm,
    make_block,
    make_boot,
    make_boots,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.race import (
    MAX_AT_A_TIME,
    MAX_FRESH,
    MAX_RETRIES,
    RaceDecision,
    expected_boots,
    next_boot,
)
from orchestrator.core.race_state import (
    Choice,
    Elapsed,
    RaceQuestion,
    RaceSettings,
    RaceState,
    Scored,
    outcome,
    race_state,
)
from orchestrator.core.types import Arm, BootStatus

ARMS = (BASELINE, *(make_arm(depth) for depth in range(4, 9)))
SETTINGS = RaceSettings(max_boots=64, seed=3)
SPEEDS = {4: 24.0, 5: 25.0, 6: 26.0, 7: 30.0, 8: 12.0, 0: 10.0}
"""Published tokens a second by depth: no hill, but a cliff after the best."""
BEST = make_arm(7)


class Play:
    """Runs a race to its end, with several boots at a time."""

    def __init__(
        self,
        arms: tuple[Arm, ...] = ARMS,
        incumbent: Arm | None = None,
        *,
        race: RaceSettings = SETTINGS,
        outcome: Callable[[Arm], float | str],
        rng: random.Random | None = None,
        slots: int = 1,
    ) -> None:
        self.arms, self.incumbent, self.race = arms, incumbent, race
        self.outcome, self.rng, self.slots = outcome, rng or random.Random(1), slots
        self.scored: list[Scored] = []
        self.issued: dict[Arm, int] = {}
        self.failed: dict[Arm, int] = {}
        self.dead: set[Arm] = set()
        self.known: frozenset[Arm] = frozenset()
        self.kv: dict[Arm, int] = {}
        self.choice: Choice | None = None
        self.hours: float | None = None
        self.order: list[tuple[Arm, str]] = []
        self.running: list[tuple[Arm, int]] = []
        self.reason = ""

    def state(self) -> RaceState:
        elapsed = None
        if self.hours is not None:
            elapsed = Elapsed(hours=self.hours, boot_hours=0.5, num_nodes=self.slots)
        return RaceState(
            arms=self.arms,
            incumbent=self.incumbent,
            scored=tuple(self.scored),
            dead=frozenset(self.dead),
            issued=self.issued,
            failed=self.failed,
            known=self.known,
            kv_cache_tokens=self.kv,
            choice=self.choice,
            elapsed=elapsed,
        )

    def ask(self) -> RaceDecision:
        decision = next_boot(self.state(), self.race)
        self.choice = decision.choice or self.choice
        return decision

    def run(self) -> Play:
        for _ in range(3000):
            decision = self.ask()
            if decision.kind == "finished" and not self.running:
                self.reason = decision.reason
                return self
            if decision.kind == "boot" and len(self.running) < self.slots:
                arm = decision.arm
                assert arm is not None
                assert decision.replicate == self.issued.get(arm, 0)
                self.running.append((arm, self.issued.get(arm, 0)))
                self.issued[arm] = self.issued.get(arm, 0) + 1
                self.order.append((arm, decision.reason))
                continue
            assert self.running, f"nothing runs and the race says {decision}"
            self.end(*self.running.pop(self.rng.randrange(len(self.running))))
        raise AssertionError("the race does not end")

    def end(self, arm: Arm, number: int) -> None:
        if self.hours is not None:
            self.hours += 0.5 / self.slots
        result = self.outcome(arm)
        if result == "dead":
            self.dead.add(arm)
        elif result == "failed":
            self.failed[arm] = self.failed.get(arm, 0) + 1
        else:
            trial_id = f"{arm.key}-{number}"
            self.scored.append(Scored(trial_id=trial_id, arm=arm, score_s=float(result)))

    def count(self, arm: Arm) -> int:
        return sum(item.arm == arm for item in self.scored)

    def fresh(self) -> int:
        assert self.choice is not None
        return sum(
            item.arm == self.choice.arm and item.trial_id not in self.choice.chosen_by
            for item in self.scored
        )


def noisy(cv: float, seed: int = 1, speeds: dict[int, float] = SPEEDS) -> Callable[[Arm], float]:
    rng = random.Random(seed)
    return lambda arm: rng.lognormvariate(0, cv) / speeds[arm.num_speculative_tokens]


def fixed(arm: Arm) -> float:
    return 1 / SPEEDS[arm.num_speculative_tokens]


def test_race_covers_all_arms_first_and_finds_the_best_before_a_cliff() -> None:
    """A11: no unimodality, and no early stop that kills it."""
    game = Play(outcome=noisy(0.02)).run()

    assert {arm for arm, _ in game.order[: len(ARMS)]} == set(ARMS)
    assert game.choice is not None
    assert (game.choice.arm, game.choice.stop) == (BEST, "winner")
    assert game.fresh() == 2
    assert game.count(BASELINE) == 2, "the reference is measured twice"
    assert game.count(make_arm(8)) == game.count(make_arm(4)) == 1


def test_selection_gives_boots_to_the_leader_and_its_strongest_rival() -> None:
    game = Play(outcome=noisy(0.05)).run()

    selected = {arm for arm, reason in game.order if reason.startswith("selection")}
    assert selected <= {BEST, make_arm(6), make_arm(5)}
    assert BEST in selected


def test_coverage_order_depends_on_the_seed_alone() -> None:
    first = [arm for arm, _ in Play(outcome=fixed).run().order[: len(ARMS)]]
    assert [arm for arm, _ in Play(outcome=noisy(0.1)).run().order[: len(ARMS)]] == first
    other = Play(outcome=fixed, race=replace(SETTINGS, seed=4)).run()
    assert [arm for arm, _ in other.order[: len(ARMS)]] != first


def test_equal_arms_end_in_a_tie_and_the_smaller_depth_is_taken() -> None:
    speeds = {**dict.fromkeys(SPEEDS, 10.0), 6: 30.0, 7: 30.0}
    ties = [Play(outcome=noisy(0.01, seed, speeds)).run() for seed in range(20)]

    assert {game.choice.stop for game in ties if game.choice} <= {"tie", "winner"}
    taken = [game.choice.arm for game in ties if game.choice]
    assert set(taken) <= {make_arm(6), BEST}
    assert taken.count(make_arm(6)) > 15
    assert any("within 1.0% of it" in game.reason for game in ties)


def tie(*arms: Arm, incumbent: Arm | None = None, kv: dict[Arm, int] | None = None) -> Arm:
    """Return what is chosen of arms that score alike to the last digit."""
    game = Play(arms, incumbent, outcome=lambda _: 0.03)
    game.kv = kv or {}
    choice = game.run().choice
    assert choice is not None
    return choice.arm


def test_tie_takes_more_kv_and_then_the_incumbent() -> None:
    one, other = make_arm(5, "greedy", "standard"), make_arm(5)
    assert tie(one, other, kv={one: 10, other: 20}) == other
    assert tie(one, other, kv={one: 20, other: 10}) == one
    assert tie(one, other, incumbent=other) == other
    assert tie(one, other, incumbent=one) == one


def test_smaller_depth_never_costs_more_than_the_tolerance_of_the_estimate() -> None:
    speeds = {**dict.fromkeys(SPEEDS, 10.0), 6: 29.4, 7: 30.0}
    game = Play(outcome=noisy(0.0001, 1, speeds)).run()

    assert game.choice is not None
    assert game.choice.arm == BEST


def test_small_lead_gets_as_many_fresh_boots_as_are_likely_to_show_it() -> None:
    """Leads of 15 % and of 5 % over the incumbent, with boots that spread by 2 %."""
    games = [Play(incumbent=make_arm(6), outcome=noisy(0.02, seed)).run() for seed in range(10)]
    near = {**SPEEDS, 7: 27.3}
    close = [Play(incumbent=make_arm(6), outcome=noisy(0.02, s, near)).run() for s in range(10)]

    clear = [game.choice.fresh_boots for game in games if game.choice]
    assert clear.count(2) >= 8, "the spread is an estimate of few boots, so one may get a third"
    counts = [game.choice.fresh_boots for game in close if game.choice and game.choice.arm == BEST]
    assert max(counts) > 3
    assert all(2 <= count <= MAX_FRESH for count in counts)
    for game in close:
        if game.choice is not None and game.choice.arm == BEST:
            assert game.fresh() == game.choice.fresh_boots
            assert game.count(make_arm(6)) >= game.choice.fresh_boots


def test_fresh_boots_that_could_not_show_the_lead_are_not_spent() -> None:
    near = {**dict.fromkeys(SPEEDS, 10.0), 6: 30.0, 7: 30.4}
    games = [Play(incumbent=make_arm(6), outcome=noisy(0.05, s, near)).run() for s in range(20)]
    hopeless = [game for game in games if game.choice and game.choice.arm != make_arm(6)]

    assert hopeless
    assert sum(game.choice.fresh_boots == 2 for game in hopeless if game.choice) > 0


@pytest.mark.parametrize("odd", ["fresh-0", "reference-1"])
def test_boot_far_from_its_arms_others_is_made_good_by_one_more(odd: str) -> None:
    scored = [
        *(Scored(trial_id=f"old-{n}", arm=BEST, score_s=1.0 + n / 100) for n in range(2)),
        *(Scored(trial_id=f"fresh-{n}", arm=BEST, score_s=1.0 + n / 100) for n in range(2)),
        *(Scored(trial_id=f"reference-{n}", arm=BASELINE, score_s=2.0 + n / 99) for n in range(2)),
    ]
    choice = Choice(arm=BEST, stop="winner", reason="", chosen_by=("old-0", "old-1"), fresh_boots=2)
    state = RaceState(
        arms=(BASELINE, BEST),
        incumbent=None,
        scored=tuple(scored),
        issued={BEST: 4, BASELINE: 2},
        choice=choice,
    )
    assert next_boot(state, SETTINGS).kind == "finished"

    again = next_boot(replace(state, outliers=frozenset({odd})), SETTINGS)

    assert again.kind == "boot"
    assert again.arm == (BEST if odd.startswith("fresh") else BASELINE)
    assert next_boot(replace(state, outliers=frozenset({"old-0"})), SETTINGS).kind == "finished"


def test_incumbent_gets_the_boots_that_a_comparison_needs_whatever_it_scores() -> None:
    game = Play(incumbent=make_arm(8), outcome=noisy(0.02)).run()

    assert game.count(make_arm(8)) == 2
    assert game.count(BASELINE) == 1


def test_incumbent_that_is_chosen_needs_no_fresh_boots() -> None:
    game = Play(incumbent=BEST, outcome=noisy(0.02)).run()

    assert game.choice is not None
    assert game.choice.arm == BEST
    assert not any(reason.startswith("confirmation") for _, reason in game.order)


def test_race_without_a_reference_confirms_nothing() -> None:
    game = Play(ARMS[1:], outcome=noisy(0.02)).run()

    assert game.choice is not None
    assert game.fresh() == 0


def test_arm_with_a_known_score_gets_no_boot_beyond_its_first() -> None:
    game = Play(outcome=noisy(0.02))
    game.known = frozenset({BASELINE})

    assert game.run().count(BASELINE) == 1
    assert game.fresh() == 2


def test_choice_of_a_known_arm_needs_no_boots() -> None:
    speeds = {**SPEEDS, 0: 99.0}
    game = Play(incumbent=BEST, outcome=noisy(0.02, 1, speeds))
    game.known = frozenset({BASELINE})

    assert game.run().count(BASELINE) == 1
    assert game.choice is not None
    assert game.choice.arm == BASELINE


def test_only_arm_is_the_winner_after_one_boot() -> None:
    game = Play((BASELINE,), outcome=fixed).run()

    assert game.count(BASELINE) == 1
    assert game.reason.startswith("winner: no-speculation")


def test_selection_starts_while_the_coverage_runs_and_stays_within_its_width() -> None:
    scored = (Scored(trial_id="a", arm=BEST, score_s=1.0),)
    issued = dict.fromkeys(ARMS, 1)
    for extra in range(MAX_AT_A_TIME):
        state = RaceState(
            arms=ARMS, incumbent=None, scored=scored, issued={**issued, BEST: 1 + extra}
        )
        assert next_boot(state, SETTINGS).kind == "boot"
    state = RaceState(
        arms=ARMS, incumbent=None, scored=scored, issued={**issued, BEST: 1 + MAX_AT_A_TIME}
    )
    assert next_boot(state, SETTINGS).kind == "wait"


@pytest.mark.parametrize("seen", [BEST, make_arm(6)])
def test_of_the_leader_and_its_rival_the_one_less_seen_on_the_node_boots_there(seen: Arm) -> None:
    arms = (BASELINE, make_arm(6), BEST)
    scores = {BASELINE: 2.0, make_arm(6): 1.01, BEST: 1.0}
    state = RaceState(
        arms=arms,
        incumbent=None,
        scored=tuple(Scored(trial_id=a.key, arm=a, score_s=s) for a, s in scores.items()),
        issued=dict.fromkeys(arms, 1),
        on_node={seen: 1},
    )

    decision = next_boot(state, SETTINGS)

    assert decision.reason.startswith("selection")
    assert {decision.arm, seen} == {make_arm(6), BEST}


@pytest.mark.parametrize("seen", [BEST, BASELINE])
def test_fresh_boots_begin_with_the_arm_less_seen_on_the_node(seen: Arm) -> None:
    choice = Choice(arm=BEST, stop="winner", reason="", chosen_by=("0", "1"), fresh_boots=2)
    state = RaceState(
        arms=(BASELINE, BEST),
        incumbent=None,
        scored=tuple(
            Scored(trial_id=str(n), arm=arm, score_s=1.0) for n, arm in enumerate((BEST, BASELINE))
        ),
        issued={BEST: 1, BASELINE: 1},
        on_node={seen: 1},
        choice=choice,
    )

    decision = next_boot(state, SETTINGS)

    assert decision.reason.startswith("confirmation")
    assert {decision.arm, seen} == {BASELINE, BEST}


def test_race_state_counts_the_scored_boots_of_the_next_boot_s_node() -> None:
    question = RaceQuestion(arms=ARMS, incumbent=None, weights={CELL: 1.0}, board=None)
    boots = [
        replace(
            make_boot(BEST, [make_block(BEST, seconds_per_token=0.03)], replicate=number),
            node_id=node_id,
        )
        for number, node_id in enumerate(("a", "b", "a"))
    ]
    boots.append(replace(make_boot(make_arm(5), [], status=BootStatus.FAILED), node_id="a"))
    ended = [outcome(boot, question) for boot in boots]

    assert race_state(question, ended=ended, node_id="a").on_node == {BEST: 2}
    assert race_state(question, ended=ended, node_id="b").on_node == {BEST: 1}
    assert race_state(question, ended=ended).on_node == {}
    assert race_state(question, ended=ended, node_id="a").share_on_node(BEST) == pytest.approx(
        2 / 3
    )
    assert race_state(question, ended=ended, node_id="a").share_on_node(BASELINE) == 0


def test_first_boots_all_running_is_a_wait() -> None:
    state = RaceState(arms=ARMS, incumbent=None, scored=(), issued=dict.fromkeys(ARMS, 1))
    decision = next_boot(state, SETTINGS)
    assert (decision.kind, decision.reason) == ("wait", "no boot of the coverage is back")


def test_failed_boot_is_made_good_once() -> None:
    broken = make_arm(5)
    game = Play(outcome=lambda arm: "failed" if arm == broken else fixed(arm)).run()
    assert game.issued[broken] == 1 + MAX_RETRIES
    assert game.count(broken) == 0
    assert game.choice is not None


def test_dead_arm_gets_no_second_boot_and_another_is_chosen() -> None:
    game = Play(outcome=lambda arm: "dead" if arm == BEST else fixed(arm)).run()
    assert game.issued[BEST] == 1
    assert game.choice is not None
    assert game.choice.arm == make_arm(6)


def test_choice_that_cannot_be_booted_again_is_made_anew() -> None:
    noise = noisy(0.001)

    def outcome(arm: Arm) -> float | str:
        return "failed" if arm == BEST and game.choice is not None else noise(arm)

    game = Play(outcome=outcome)
    game.run()

    assert game.choice is not None
    assert game.choice.arm == make_arm(6)
    assert game.failed[BEST] == 2
    assert game.fresh() == 2


def test_all_dead_or_failing_ends_with_the_reason() -> None:
    assert Play(outcome=lambda _: "dead").run().reason == "no arm can run here"
    assert Play(outcome=lambda _: "failed").run().reason == "no arm has a score"


def test_budget_spent_in_the_coverage_ends_the_race() -> None:
    race = replace(SETTINGS, max_boots=3)
    game = Play(race=race, outcome=fixed, slots=3).run()
    assert len(game.order) == 3
    assert "search.max_boots=3 is spent before" in game.reason
    assert game.choice is None
    state = RaceState(arms=ARMS, incumbent=None, scored=(), issued=dict.fromkeys(ARMS[:3], 1))
    assert next_boot(state, race).kind == "wait"


def test_budget_keeps_the_boots_that_the_confirmation_needs() -> None:
    race = replace(SETTINGS, max_boots=10)
    game = Play(race=race, outcome=noisy(0.3)).run()

    assert len(game.order) == 10
    assert game.choice is not None
    assert game.choice.stop == "budget"
    assert "search.max_boots=10 is spent" in game.reason
    assert game.fresh() == 2
    assert game.count(BASELINE) >= 2


def test_budget_too_small_for_the_confirmation_says_so() -> None:
    game = Play(race=replace(SETTINGS, max_boots=7), outcome=noisy(0.02)).run()

    assert len(game.order) == 7
    assert "is spent before its fresh boots" in game.reason


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("max_hours", [2.0, 4.0, 5.0, 30.0])
def test_hours_end_the_race_before_they_are_over(max_hours: float, slots: int) -> None:
    game = Play(race=replace(SETTINGS, max_hours=max_hours), outcome=noisy(0.3), slots=slots)
    game.hours = 0.0
    game.run()

    assert game.hours <= max_hours + 0.5
    if slots == 1 and max_hours < 30:
        assert "search.max_hours=" in game.reason


def test_expected_boots_stay_within_the_budget() -> None:
    assert expected_boots(9, SETTINGS) == 18
    assert expected_boots(100, SETTINGS) == 64


def test_race_state_counts_every_boot_once() -> None:
    good, bad, dead, lost = (make_arm(depth) for depth in (4, 5, 6, 7))
    question = RaceQuestion(
        arms=(BASELINE, good, bad, dead, lost), incumbent=None, weights={CELL: 1.0}, board=None
    )
    boots = [
        make_boot(good, [make_block(good, seconds_per_token=0.03)]),
        make_boot(good, [make_block(good, seconds_per_token=0.02)], replicate=1),
        make_boot(bad, [], status=BootStatus.FAILED, reason="died"),
        make_boot(bad, [make_block(bad, cell=WIDE_CELL)], replicate=1),
        make_boot(dead, [], status=BootStatus.INFEASIBLE, reason="memory"),
    ]

    state = race_state(
        question,
        ended=[outcome(boot, question) for boot in boots],
        missing=[lost],
        running=[BASELINE, lost],
    )

    assert state.scores()[good] == pytest.approx((0.03, 0.02))
    assert state.scores()[bad] == ()
    assert state.failed == {BASELINE: 0, good: 0, bad: 2, dead: 0, lost: 1}
    assert state.issued == {BASELINE: 1, good: 2, bad: 2, dead: 1, lost: 2}
    assert state.dead == {dead}
    assert state.kv_cache_tokens == {good: 300_000}


def test_race_state_gives_an_odd_boot_no_score() -> None:
    question = RaceQuestion(arms=ARMS, incumbent=None, weights={CELL: 1.0}, board=None)
    boots = [
        replace(
            make_boot(BEST, [make_block(BEST, seconds_per_token=0.03)], replicate=number),
            trial_id=f"t{number}",
            sections={"engine": "b" if number == 2 else "a"},
        )
        for number in range(3)
    ]

    state = race_state(question, ended=[outcome(boot, question) for boot in boots])

    assert [item.trial_id for item in state.scored] == ["t0", "t1"]
    assert state.failed[BEST] == 1


def test_race_state_names_the_boots_that_the_verdict_flags_once_there_is_a_choice() -> None:
    question = RaceQuestion(arms=ARMS, incumbent=None, weights={CELL: 1.0}, board=None)
    boots = [
        *make_boots(BEST, [0.0331, 0.0330, 0.0332, 0.0390], length=3.1),
        *make_boots(make_arm(5), [0.05, 0.0502, 0.0501]),
    ]
    ended = [outcome(boot, question) for boot in boots]
    choice = Choice(arm=BEST, stop="winner", reason="", chosen_by=(), fresh_boots=2)

    assert race_state(question, ended=ended).outliers == frozenset()
    assert race_state(question, ended=ended, choice=choice).outliers == {boots[3].trial_id}


def test_race_state_with_a_board_model_scores_acceptance_only() -> None:
    question = RaceQuestion(arms=(BASELINE, BEST), incumbent=None, weights={CELL: 1.0}, board=BOARD)
    boots = [
        make_boot(BEST, [make_block(BEST, seconds_per_token=seconds, length=3.0)])
        for seconds in (0.03, 9.0)
    ]

    state = race_state(question, ended=[outcome(boot, question) for boot in boots])

    assert state.scores()[BEST] == pytest.approx([BOARD.step_time_s(7, 1) / 3.0] * 2)
    assert state.known == {BASELINE}


@settings(max_examples=150)
@given(
    num_arms=st.integers(1, 7),
    max_boots=st.integers(1, 40),
    slots=st.integers(1, 12),
    seed=st.integers(0, 99),
    incumbent=st.one_of(st.none(), st.integers(0, 8)),
    failing=st.floats(0, 1),
    dying=st.floats(0, 0.5),
    spread=st.sampled_from([0.0, 0.02, 0.5]),
)
def test_race_ends_within_its_budget_and_covers_all(
    num_arms: int,
    max_boots: int,
    slots: int,
    seed: int,
    incumbent: int | None,
    failing: float,
    dying: float,
    spread: float,
) -> None:
    arms = tuple(make_arm(depth + 1) for depth in range(num_arms))
    rng = random.Random(seed)

    def outcome(arm: Arm) -> float | str:
        draw = rng.random()
        if draw < dying:
            return "dead"
        return "failed" if draw < dying + failing / 2 else rng.lognormvariate(0, spread)

    game = Play(
        arms,
        None if incumbent is None else make_arm(incumbent + 1),
        race=RaceSettings(max_boots=max_boots, seed=seed),
        outcome=outcome,
        rng=rng,
        slots=slots,
    ).run()
    assert len(game.order) <= max_boots
    if max_boots >= num_arms * (1 + MAX_RETRIES):
        for arm in arms:
            tried_twice = game.failed.get(arm, 0) > MAX_RETRIES
            assert game.count(arm) or arm in game.dead or tried_twice
    if game.choice is not None:
        assert game.count(game.choice.arm)
