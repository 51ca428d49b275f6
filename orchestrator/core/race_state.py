"""What a race knows: its settings, what came of its boots, and what it has chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from orchestrator.core.comparable import odd_boots
from orchestrator.core.comparison import measured
from orchestrator.core.estimate import boot_objective, known_arms
from orchestrator.core.refusals import wants_baseline
from orchestrator.core.space import reference_arm
from orchestrator.core.types import Arm, BoardModel, Boot, BootStatus, Cell

SECONDS_PER_HOUR = 3600.0
Stop = Literal["winner", "tie", "budget"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceSettings:
    """The budget of a race and what it may overlook."""

    max_boots: int
    """Boots of the race, failed ones included; proof boots are none of them."""
    max_hours: float | None = None
    """From the start to the end of the race's last boot; None: no limit."""
    tolerance: float = 0.01
    """Relative difference of two arms that does not matter, above 0."""
    error: float = 0.05
    """Chance that an arm is wrongly called beaten, 0 to 1."""
    fresh_boots: int = 2
    """Boots of the winner that did not choose it, at least; the reference has as many altogether.
    """
    seed: int
    """Orders the coverage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One boot with a score."""

    trial_id: str
    arm: Arm
    score_s: float
    """Objective in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which arm the selection ended with; kept with the race's state until the arm is set aside."""

    arm: Arm
    stop: Stop
    """winner: every other arm is beaten by the bound, or on average another one would gain less
    than half the tolerance and none is estimated within the tolerance. tie: the same gain,
    and arms within the tolerance that are not told apart. budget: boots or hours are spent first.
    """
    reason: str
    chosen_by: tuple[str, ...]
    """Trial ids of the scored boots at that moment; all others are fresh."""
    fresh_boots: int
    """Fresh boots that it gets, and that the reference has at least altogether."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elapsed:
    """The time that a race has taken."""

    hours: float
    boot_hours: float
    """What a boot with its blocks takes."""
    num_nodes: int
    """Boots that run at a time."""


def elapsed(passed_s: float, boots_s: Sequence[float], *, num_nodes: int) -> Elapsed:
    """Return the time that a race has taken.

    Args:
        passed_s: Since it began.
        boots_s: What each boot with its blocks took; without any, one takes nothing.
        num_nodes: Boots that run at a time.
    """
    mean_s = sum(boots_s) / len(boots_s) if boots_s else 0.0
    return Elapsed(
        hours=passed_s / SECONDS_PER_HOUR,
        boot_hours=mean_s / SECONDS_PER_HOUR,
        num_nodes=num_nodes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceState:
    """What has happened so far. Arms that a mapping does not name have none."""

    arms: tuple[Arm, ...]
    incumbent: Arm | None
    scored: tuple[Scored, ...]
    """In order of their end. An issued boot that is neither here nor in ``failed`` is running."""
    dead: frozenset[Arm] = frozenset()
    """Arms that cannot run here, are not in force, or cannot win by what their output showed."""
    issued: Mapping[Arm, int] = field(default_factory=dict)
    """Boots started so far, running ones included."""
    failed: Mapping[Arm, int] = field(default_factory=dict)
    """Boots that ended without a score."""
    known: frozenset[Arm] = frozenset()
    """Arms whose score a model states: after their first boot more would tell nothing."""
    kv_cache_tokens: Mapping[Arm, int] = field(default_factory=dict)
    """Smallest over boots, for ties."""
    on_node: Mapping[Arm, int] = field(default_factory=dict)
    """Scored boots on the node that the next boot will run on; empty where that is not known."""
    choice: Choice | None = None
    outliers: frozenset[str] = frozenset()
    """Trial ids of boots far from their arm's others, once there is a choice to confirm."""
    elapsed: Elapsed | None = None
    """None where hours do not matter."""
    wants_baseline: bool = False
    """Whether the baseline's first boot goes before those of the others; see ``refusals``."""

    def share_on_node(self, arm: Arm) -> float:
        """Return the share of an arm's scored boots on the next boot's node; 0 without any."""
        num_scored = sum(item.arm == arm for item in self.scored)
        return self.on_node.get(arm, 0) / max(1, num_scored)

    def scores(self) -> dict[Arm, tuple[float, ...]]:
        """Return the scores by arm, in the order of the arms; those of dead arms are left out."""
        values: dict[Arm, tuple[float, ...]] = dict.fromkeys(self.arms, ())
        for item in self.scored:
            if item.arm not in self.dead:
                values[item.arm] = (*values[item.arm], item.score_s)
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceQuestion:
    """What a study asks; it does not change while it runs."""

    arms: tuple[Arm, ...]
    incumbent: Arm | None
    weights: Mapping[Cell, float]
    """The traffic's share by cell."""
    board: BoardModel | None
    """Source of modelled step times; None when they are measured."""

    @property
    def reference(self) -> Arm | None:
        """What a challenger must beat."""
        return reference_arm(self.arms, self.incumbent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A boot that came back, with its score."""

    boot: Boot
    score_s: float | None
    """Objective in seconds; None when it has none."""


def outcome(boot: Boot, question: RaceQuestion) -> Outcome:
    """Return the boot with its score."""
    return Outcome(boot=boot, score_s=boot_objective(boot, question.weights, question.board))


def race_state(
    question: RaceQuestion,
    *,
    ended: Sequence[Outcome],
    missing: Sequence[Arm] = (),
    running: Sequence[Arm] = (),
    choice: Choice | None = None,
    elapsed: Elapsed | None = None,
    set_aside: Collection[Arm] = (),
    node_id: str | None = None,
) -> RaceState:
    """Return what the race decides on.

    A boot that ran on or with something else than the others has no score here either; it counts
    as failed and is made good like one.

    Args:
        question: What the study asks.
        ended: Boots that came back, in the order of their end.
        missing: Arms of boots that were lost with their process, once for each.
        running: Arms of the boots under way, once for each.
        choice: What the race has chosen, if it has.
        elapsed: The time taken; None where hours do not matter.
        set_aside: Arms that cannot win by what their proof boots showed; the reference stays.
        node_id: Node that the next boot will run on; None where that is not known.
    """
    failed = dict.fromkeys(question.arms, 0)
    issued = dict.fromkeys(question.arms, 0)
    kv: dict[Arm, int] = {}
    on_node: Counter[Arm] = Counter()
    dead: set[Arm] = {arm for arm in set_aside if arm != question.reference}
    scored: list[Scored] = []
    odd = odd_boots([item.boot for item in ended])
    for item in ended:
        boot = item.boot
        issued[boot.arm] += 1
        if boot.status in (BootStatus.INFEASIBLE, BootStatus.NOT_IN_FORCE):
            dead.add(boot.arm)
        elif item.score_s is None or boot.trial_id in odd:
            failed[boot.arm] += 1
        else:
            scored.append(Scored(trial_id=boot.trial_id, arm=boot.arm, score_s=item.score_s))
            if node_id is not None and boot.node_id == node_id:
                on_node[boot.arm] += 1
            tokens = None if boot.facts is None else boot.facts.kv_cache_tokens
            if tokens is not None:
                kv[boot.arm] = min(tokens, kv.get(boot.arm, tokens))
    for arm in missing:
        issued[arm] += 1
        failed[arm] += 1
    for arm in running:
        issued[arm] += 1
    return RaceState(
        arms=question.arms,
        incumbent=question.incumbent,
        scored=tuple(scored),
        dead=frozenset(dead),
        issued=issued,
        failed=failed,
        known=known_arms(question.arms, question.board),
        kv_cache_tokens=kv,
        on_node=on_node,
        choice=choice,
        outliers=frozenset() if choice is None else _outliers(ended, question),
        elapsed=elapsed,
        wants_baseline=wants_baseline([item.boot for item in ended]),
    )


def _outliers(ended: Sequence[Outcome], question: RaceQuestion) -> frozenset[str]:
    """Return the trial ids of the boots that the verdict would flag."""
    taken = measured(
        [item.boot for item in ended], cells=tuple(question.weights), board=question.board
    )
    return frozenset(item.boot for item in taken.compare(question.weights).outliers())
