"""The race of a study that compares engine builds: a race for each build, side by side.

Two builds are never ranked together, so no build's arms compete with another's for boots. Each has
its own leader, its own choice, its own reference and its own share of the study's boots. When all
races are over, what is compared across builds gets the boots that a comparison needs: the choices
of the other builds fresh ones, and what production serves, or would, as many altogether.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.core.builds import by_build
from orchestrator.core.race import MAX_RETRIES, RaceDecision, expected_boots, next_boot
from orchestrator.core.race_state import Choice, Elapsed, RaceQuestion, RaceSettings, RaceState
from orchestrator.core.types import Arm


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRace:
    """The race among the arms of one engine build."""

    build: str
    question: RaceQuestion
    """Of its arms; the incumbent only in the race of the build that serves."""
    settings: RaceSettings
    """With the build's share of the study's boots."""
    num_races: int
    """Races of the study: so many boots go by for each one of this race."""

    def elapsed(self, elapsed: Elapsed) -> Elapsed:
        """Return the study's time as this race has it, which waits for the others' boots."""
        return replace(elapsed, boot_hours=elapsed.boot_hours * self.num_races)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What to do now, over all races."""

    decision: RaceDecision
    choices: Mapping[str, Choice]
    """What each race has chosen, by build; a race that has not is absent."""


def production_build(arms: Sequence[Arm], reference: Arm | None) -> str:
    """Return the build that serves, or would: that of the reference, else the first arm's."""
    return arms[0].engine_build if reference is None else reference.engine_build


def build_questions(question: RaceQuestion) -> dict[str, RaceQuestion]:
    """Return what is asked of each build, production's first; of one build the question itself."""
    builds = by_build(question.arms)
    first = production_build(question.arms, question.reference)
    return {
        build: replace(
            question,
            arms=tuple(builds[build]),
            incumbent=question.incumbent if question.incumbent in builds[build] else None,
        )
        for build in sorted(builds, key=lambda build: build != first)
    }


def build_races(question: RaceQuestion, settings: RaceSettings) -> tuple[BuildRace, ...]:
    """Return a race for each build, production's first; the study's own where there is one build.

    The boots are shared out by the number of arms.
    """
    questions = build_questions(question)
    races: list[BuildRace] = []
    num_arms = num_boots = 0
    for build, own in questions.items():
        num_arms += len(own.arms)
        share = settings.max_boots * num_arms // len(question.arms) - num_boots
        num_boots += share
        settled = replace(settings, max_boots=share)
        races.append(
            BuildRace(build=build, question=own, settings=settled, num_races=len(questions))
        )
    return tuple(races)


def expected_boots_of(races: Sequence[BuildRace]) -> int:
    """Return how many boots all races together usually take."""
    return sum(expected_boots(len(race.question.arms), race.settings) for race in races)


def next_turn(races: Sequence[BuildRace], state_of: Callable[[BuildRace], RaceState]) -> Turn:
    """Return the next boot of the race that has had the smallest part of its share.

    Args:
        races: Of ``build_races``.
        state_of: What has happened in one of them.
    """
    states = {race.build: state_of(race) for race in races}
    num_left = _num_left(races, states)
    decisions = {
        race.build: next_boot(states[race.build], _within(race, states[race.build], num_left))
        for race in races
    }
    choices = {build: d.choice for build, d in decisions.items() if d.choice is not None}
    if len(races) == 1:
        return Turn(decision=decisions[races[0].build], choices=choices)
    ready = [race for race in races if decisions[race.build].kind == "boot"]
    if ready:
        due = min(ready, key=lambda race: _part(race, states[race.build]))
        return Turn(decision=_named(race=due, decision=decisions[due.build]), choices=choices)
    waiting = [race for race in races if decisions[race.build].kind == "wait"]
    if waiting:
        first = waiting[0]
        return Turn(decision=_named(race=first, decision=decisions[first.build]), choices=choices)
    due_across = _across(races, states, choices)
    if due_across is not None:
        return Turn(decision=due_across, choices=choices)
    reason = "; ".join(
        f"vLLM {race.build}, its {race.settings.max_boots} boots: {decisions[race.build].reason}"
        for race in races
    )
    return Turn(decision=RaceDecision(kind="finished", reason=reason), choices=choices)


def _across(
    races: Sequence[BuildRace], states: Mapping[str, RaceState], choices: Mapping[str, Choice]
) -> RaceDecision | None:
    """Return the next boot for the comparison of builds, or to wait for one; None when it has all.

    An arm of which two boots failed gets no more.
    """
    ours = races[0]
    base = ours.question.reference
    if base is None and ours.build in choices:
        base = choices[ours.build].arm
    others = [choices[race.build] for race in races[1:] if race.build in choices]
    if base is None or not others:
        return None
    wanted: list[tuple[Arm, int, tuple[str, ...]]] = [(base, ours.settings.fresh_boots, ())]
    wanted += [(choice.arm, choice.fresh_boots, choice.chosen_by) for choice in others]
    num_left = _num_left(races, states)
    is_running = False
    due: list[Arm] = []
    for arm, count, chose in wanted:
        state = states[arm.engine_build]
        if arm in state.dead or arm in state.known:
            continue
        issued, failed = state.issued.get(arm, 0), state.failed.get(arm, 0)
        own = [item.trial_id for item in state.scored if item.arm == arm]
        running = issued - failed - len(own)
        is_running = is_running or running > 0
        lacks = count - running - sum(trial_id not in chose for trial_id in own)
        may_boot = failed <= MAX_RETRIES and num_left > 0 and _has_time(state, ours.settings)
        if lacks > 0 and may_boot:
            due.append(arm)
    if due:
        arm = min(due, key=lambda arm: states[arm.engine_build].share_on_node(arm))
        reason = f"vLLM {arm.engine_build}: {arm.label} for the comparison of builds"
        issued = states[arm.engine_build].issued.get(arm, 0)
        return RaceDecision(kind="boot", reason=reason, arm=arm, replicate=issued)
    return RaceDecision(kind="wait", reason="the last boots are running") if is_running else None


def _num_left(races: Sequence[BuildRace], states: Mapping[str, RaceState]) -> int:
    """Return the boots that the study has left."""
    issued = sum(sum(state.issued.values()) for state in states.values())
    return sum(race.settings.max_boots for race in races) - issued


def _within(race: BuildRace, state: RaceState, num_left: int) -> RaceSettings:
    """Return a race's settings with no more boots than the study has left for it.

    What the comparison of builds took of one build's share is gone when that race goes on, after
    its choice was set aside.
    """
    most = sum(state.issued.values()) + num_left
    return replace(race.settings, max_boots=min(race.settings.max_boots, most))


def _has_time(state: RaceState, settings: RaceSettings) -> bool:
    elapsed, limit = state.elapsed, settings.max_hours
    return elapsed is None or limit is None or elapsed.hours + elapsed.boot_hours <= limit


def _part(race: BuildRace, state: RaceState) -> float:
    """Return the part of its boots that a race has had, 0 to 1."""
    return sum(state.issued.values()) / max(1, race.settings.max_boots)


def _named(*, race: BuildRace, decision: RaceDecision) -> RaceDecision:
    return replace(decision, reason=f"vLLM {race.build}: {decision.reason}")
