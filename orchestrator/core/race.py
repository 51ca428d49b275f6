"""Which arm gets the next boot.

The rule now: coverage first, then fresh boots for the finalists. No step assumes that neighbouring
depths score alike. The decision is a pure function of the state, so that a later rule replaces
``next_boot`` and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from orchestrator.core.space import reference_arm
from orchestrator.core.types import Arm

MAX_RETRIES = 1
"""Failed boots of one arm that are made good by a new one; after that it gets no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceSettings:
    """The budget of a race."""

    num_finalists: int
    """Arms that get fresh boots; the incumbent comes on top."""
    boots_per_finalist: int
    """Scored boots of each finalist altogether, the first included."""
    max_boots: int
    """Boots of the whole study, failed ones included."""
    seed: int
    """Orders the coverage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceState:
    """What has happened so far. Arms that a mapping does not name have none."""

    arms: tuple[Arm, ...]
    incumbent: Arm | None
    scores: Mapping[Arm, Sequence[float]]
    """Objective of each scored boot in seconds, in the order of the boots. An issued boot that is
    neither here nor in ``failed`` counts as running."""
    dead: frozenset[Arm] = frozenset()
    """Arms that cannot run here or are not in force."""
    issued: Mapping[Arm, int] = field(default_factory=dict)
    """Boots started so far, running ones included."""
    failed: Mapping[Arm, int] = field(default_factory=dict)
    """Boots that ended without a score."""
    known: frozenset[Arm] = frozenset()
    """Arms whose score a model states: after their first boot more would tell nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceDecision:
    """What to do now, and why."""

    kind: Literal["boot", "wait", "finished"]
    reason: str
    arm: Arm | None = None
    """Only with ``boot``."""
    replicate: int | None = None
    """Only with ``boot``: the number of boots that the arm had before."""


def next_boot(state: RaceState, settings: RaceSettings) -> RaceDecision:
    """Decide on the next boot.

    Coverage in a seeded order; then the best ``num_finalists`` arms by their first score plus the
    reference (the incumbent, else the baseline), round by round, every second round reversed, so
    that a drift of the node meets all alike. A failed boot is retried once an arm.
    """
    alive = [arm for arm in state.arms if arm not in state.dead]
    in_race = [arm for arm in alive if state.failed.get(arm, 0) <= MAX_RETRIES]
    uncovered = [arm for arm in in_race if not state.scores.get(arm)]
    due = [arm for arm in _coverage_order(uncovered, settings.seed) if not _running(arm, state)]
    if due:
        first = min(due, key=lambda arm: state.issued.get(arm, 0) > 0)
        reason = "coverage" if not state.issued.get(first, 0) else "coverage again: a boot failed"
        return _boot(first, reason, state=state, settings=settings)
    if uncovered:
        labels = ", ".join(arm.label for arm in uncovered)
        return RaceDecision(kind="wait", reason=f"the coverage is not back: {labels}")
    finalists = _finalists(state, alive, settings)
    wanting = [
        arm
        for arm in finalists
        if arm in in_race
        and arm not in state.known
        and _held(arm, state) < settings.boots_per_finalist
    ]
    if wanting:
        arm, round_number = _of_round(finalists, wanting, state)
        return _boot(arm, f"final, round {round_number}", state=state, settings=settings)
    if any(_running(arm, state) for arm in alive):
        return RaceDecision(kind="wait", reason="the last boots are running")
    return RaceDecision(kind="finished", reason=_finish_reason(alive, finalists))


def expected_boots(
    num_arms: int, settings: RaceSettings, *, is_reference_known: bool = False
) -> int:
    """Return the most boots of a race in which nothing fails.

    Args:
        num_arms: Size of the space.
        settings: The race's budget.
        is_reference_known: Whether a model states the reference's score, so that it gets no
            boots beyond its first.
    """
    on_top = 0 if is_reference_known else 1
    num_finalists = min(num_arms, settings.num_finalists + on_top)
    return min(settings.max_boots, num_arms + num_finalists * (settings.boots_per_finalist - 1))


def _running(arm: Arm, state: RaceState) -> int:
    ended = len(state.scores.get(arm, ())) + state.failed.get(arm, 0)
    return max(0, state.issued.get(arm, 0) - ended)


def _held(arm: Arm, state: RaceState) -> int:
    return len(state.scores.get(arm, ())) + _running(arm, state)


def _coverage_order(arms: Sequence[Arm], seed: int) -> list[Arm]:
    """Order by a hash of seed and arm, so that the order of the others never shifts."""
    return sorted(arms, key=lambda arm: hashlib.sha256(f"{seed}/{arm.key}".encode()).digest())


def _finalists(state: RaceState, alive: Sequence[Arm], settings: RaceSettings) -> list[Arm]:
    scored = [arm for arm in alive if state.scores.get(arm)]
    ranked = sorted(scored, key=lambda arm: state.scores[arm][0])
    finalists = ranked[: settings.num_finalists]
    reference = reference_arm(state.arms, state.incumbent)
    if reference in scored and reference not in finalists:
        finalists.append(reference)
    return finalists


def _of_round(
    finalists: Sequence[Arm], wanting: Sequence[Arm], state: RaceState
) -> tuple[Arm, int]:
    round_number = min(_held(arm, state) for arm in wanting)
    order = finalists if round_number % 2 else list(reversed(finalists))
    due = [arm for arm in order if arm in wanting and _held(arm, state) == round_number]
    return due[0], round_number


def _boot(arm: Arm, reason: str, *, state: RaceState, settings: RaceSettings) -> RaceDecision:
    issued = sum(state.issued.get(item, 0) for item in state.arms)
    if issued < settings.max_boots:
        return RaceDecision(kind="boot", reason=reason, arm=arm, replicate=state.issued.get(arm, 0))
    if any(_running(item, state) for item in state.arms if item not in state.dead):
        return RaceDecision(kind="wait", reason="the budget is spent and boots are running")
    return RaceDecision(
        kind="finished",
        reason=f"search.max_boots={settings.max_boots} is spent before {arm.label} ({reason})",
    )


def _finish_reason(alive: Sequence[Arm], finalists: Sequence[Arm]) -> str:
    if not alive:
        return "no arm can run here"
    if not finalists:
        return "no arm has a score"
    return f"{len(finalists)} finalists have their boots"
