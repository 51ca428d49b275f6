"""Which arm gets the next boot, and when the race is over.

Three stages. Coverage: every arm boots once, in a seeded order, so that no arm is lost to an idea
of how neighbours score. Selection: boots go to the leader and its strongest rival in turn, until
every other arm is beaten by a bound that holds at any look, or changing the choice would gain next
to nothing on average, or the budget is spent. Confirmation: the choice gets fresh boots, which did
not choose it, and the reference as many as a comparison needs. How many that is follows from what
the selection saw and is fixed before the first of them, so that nothing is stopped when it happens
to look good. A boot of the two that is far from the arm's others stays in the record, counts, and
is made good by one more.

The strongest rival is the arm with the smallest (gap + tolerance) / sqrt(1 / n + 1 / n of the
leader): the one that is the least surely not better by the tolerance. The rule is EB-TC-epsilon
(Jourdan, Degenne and Kaufmann, NeurIPS 2023, "An epsilon-best-arm identification algorithm for
fixed-confidence and beyond"); it needs no estimate of the spread. Boots under way count as if they
were there, so that several boards never ask for the same boot.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.core.race_state import Choice, RaceSettings, RaceState, Stop
from orchestrator.core.space import reference_arm
from orchestrator.core.standings import Standings, standings
from orchestrator.core.types import Arm

MAX_RETRIES = 1
"""Failed boots of one arm that are made good by a new one; after that it gets no more."""
USUAL_SELECTION = 7
"""Boots between coverage and confirmation in simulated studies whose boots spread by 2 %."""
GIVEN_UP = 0.5
"""Share of the tolerance that the selection may give up on average when it ends."""
MAX_FRESH = 6
"""Fresh boots of the choice, at most, when two would hardly show its lead."""
SHOWN = 0.9
"""Chance with which the fresh boots shall show the lead that the selection saw."""
MAX_AT_A_TIME = 4
"""Boots of the selection under way at a time, however many boards there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceDecision:
    """What to do now, and why."""

    kind: Literal["boot", "wait", "finished"]
    reason: str
    arm: Arm | None = None
    """Only with ``boot``."""
    replicate: int | None = None
    """Only with ``boot``: the number of boots that the arm had before."""
    choice: Choice | None = None
    """What the next state must hold: the one that stands, or a new one."""


def next_boot(state: RaceState, settings: RaceSettings) -> RaceDecision:
    """Decide on the next boot. A failed boot is retried once an arm, in every stage."""
    race = _Race(state, settings)
    due = race.uncovered()
    if due is not None:
        return due
    choice = state.choice
    if choice is None or choice.arm not in race.standing:
        decided = race.select()
        if isinstance(decided, RaceDecision):
            return decided
        choice = decided
    return race.confirm(choice)


def expected_boots(num_arms: int, settings: RaceSettings) -> int:
    """Return how many boots a race in which nothing fails usually takes.

    Half of simulated races of 9 to 17 arms whose boots spread by 2 % end within it; the plan
    command says more.
    """
    return min(settings.max_boots, num_arms + USUAL_SELECTION + settings.fresh_boots)


class _Race:
    """One look at a race: counts, and the three stages."""

    def __init__(self, state: RaceState, settings: RaceSettings) -> None:
        self._state = state
        self._settings = settings
        self._scores = state.scores()
        alive = [arm for arm in state.arms if arm not in state.dead]
        self.standing = [arm for arm in alive if state.failed.get(arm, 0) <= MAX_RETRIES]
        self._reference = reference_arm(state.arms, state.incumbent)

    def uncovered(self) -> RaceDecision | None:
        """Return the coverage's next boot; None when every arm has had or has its first."""
        uncovered = [arm for arm in self.standing if not self._held(arm)]
        if not uncovered:
            return None
        order = _coverage_order(uncovered, self._settings.seed)
        asked = self._state.wants_baseline
        first = min(order, key=lambda arm: (self._issued(arm) > 0, not (asked and arm.is_baseline)))
        again = " again: a boot failed" if self._issued(first) else ""
        if self._num_left() > 0 and self._time_for(1):
            return self._boot(first, f"coverage{again}")
        if self._any_running():
            return RaceDecision(kind="wait", reason="the budget is spent and boots are running")
        reason = f"{self._spent()} before {first.label} (coverage{again})"
        return RaceDecision(kind="finished", reason=reason, choice=self._state.choice)

    def select(self) -> RaceDecision | Choice:
        """Return the selection's next boot, or the choice that ends it."""
        scores = {arm: self._scores[arm] for arm in self.standing if self._scores[arm]}
        now = standings(scores, known=self._state.known)
        if now is None:
            if self._any_running():
                return RaceDecision(kind="wait", reason="no boot of the coverage is back")
            none_runs = all(arm in self._state.dead for arm in self._state.arms)
            reason = "no arm can run here" if none_runs else "no arm has a score"
            return RaceDecision(kind="finished", reason=reason)
        is_covered = len(scores) == len(self.standing)
        if is_covered:
            choice = self._settled(now)
            if choice is not None:
                return choice
        arm = self._wanted(now)
        reserve = self._reserve(now.leader)
        running = sum(self._running(item) for item in self.standing if self._scores[item])
        if running >= MAX_AT_A_TIME:
            return RaceDecision(kind="wait", reason=f"{running} boots of the selection are running")
        may_fail = len(self.standing) - len(scores)
        affordable = self._num_left() > reserve + may_fail and self._time_for(1, reserve)
        if arm is not None and affordable:
            return self._boot(arm, f"selection: {now.leader.label} leads")
        if not is_covered or self._any_running():
            return RaceDecision(kind="wait", reason="the last boots of the selection are running")
        return self._choice(
            now, "budget", "no arm wants another boot" if arm is None else self._spent()
        )

    def confirm(self, choice: Choice) -> RaceDecision:
        """Return the next fresh boot, or the end."""
        pair = [arm for arm in (choice.arm, self._reference) if arm is not None]
        wanting = [arm for arm in pair if self._lacks(arm, choice) > 0]
        if wanting and self._num_left() > 0 and self._time_for(1):
            share = self._state.share_on_node
            arm = min(wanting, key=lambda arm: (share(arm), -self._lacks(arm, choice)))
            return self._boot(arm, f"confirmation of {choice.arm.label}", choice)
        if self._any_running():
            return RaceDecision(kind="wait", reason="the last boots are running", choice=choice)
        short = f"; {self._spent()} before its fresh boots" if wanting else ""
        return RaceDecision(kind="finished", reason=f"{choice.reason}{short}", choice=choice)

    def _settled(self, now: Standings) -> Choice | None:
        """Return the choice if the leader is settled, by a bound or in expectation."""
        margin, error = math.log1p(self._settings.tolerance), self._settings.error
        leader = now.leader.label
        if all(now.is_beaten(rival, margin=margin, error=error) for rival in now.rivals):
            words = f"no other arm is more than {self._settings.tolerance:.1%} faster than {leader}"
            return self._choice(now, "winner", f"{words} ({1 - error:.0%} bound at any look)")
        losses = [now.expected_loss(rival) for rival in now.rivals]
        worst = max((loss for loss in losses if loss is not None), default=None)
        if worst is None or worst > GIVEN_UP * margin:
            return None
        reason = f"another arm than {leader} would gain {worst:.2%} on average"
        if all(now.is_told_apart(rival, error=error) for rival in now.rivals):
            return self._choice(now, "winner", reason)
        near = any(rival.gap <= margin for rival in now.rivals)
        return self._choice(now, "tie" if near else "winner", f"{reason}; not all are told apart")

    def _choice(self, now: Standings, stop: Stop, reason: str) -> Choice:
        """Choose among the arms near the leader: depth, then KV, then the incumbent."""
        margin, state = math.log1p(self._settings.tolerance), self._state
        near = [rival.arm for rival in now.rivals if rival.gap <= margin]
        tied = [arm for arm in near if len(self._scores[arm]) > 1 or arm in state.known]
        arm = min(
            [now.leader, *tied],
            key=lambda arm: (
                arm.num_speculative_tokens,
                -state.kv_cache_tokens.get(arm, 0),
                arm != state.incumbent,
            ),
        )
        names = ", ".join(other.label for other in (now.leader, *tied) if other != arm)
        beside = f"; {names} within {self._settings.tolerance:.1%} of it" if names else ""
        return Choice(
            arm=arm,
            stop=stop,
            reason=f"{stop}: {arm.label}: {reason}{beside}",
            chosen_by=tuple(item.trial_id for item in state.scored),
            fresh_boots=self._fresh_boots(arm, now),
        )

    def _fresh_boots(self, arm: Arm, now: Standings) -> int:
        """Return how many fresh boots are likely to show the arm's lead over the reference.

        As many as usual where no number that could be afforded would.
        """
        usual, reference = self._settings.fresh_boots, self._reference
        if reference is None or reference not in now.means or reference == arm:
            return usual

        def chance(fresh: int) -> float:
            held = max(fresh, len(self._scores[reference]))
            counts = {arm: fresh, reference: held}
            return now.chance_to_show(
                arm, reference, [n for a, n in counts.items() if a not in self._state.known]
            )

        afforded = max(usual, min(MAX_FRESH, self._num_left() // 2))
        likely = (n for n in range(usual, afforded + 1) if chance(n) >= SHOWN)
        most = afforded if chance(afforded) >= 0.5 else usual
        return next(likely, most)

    def _wanted(self, now: Standings) -> Arm | None:
        """Return the leader or its strongest rival.

        The one with fewer boots; when they differ by one at most, first the one with the smaller
        share of its boots on the node of the next one.
        """
        margin, known = math.log1p(self._settings.tolerance), self._state.known

        def doubt(arm: Arm, gap: float) -> float:
            counts = [self._held(item) for item in (arm, now.leader) if item not in known]
            weight = math.sqrt(sum(1 / count for count in counts))
            return (gap + margin) / weight if weight else math.inf

        ranked = sorted(now.rivals, key=lambda rival: doubt(rival.arm, rival.gap))
        pair = [arm for arm in (*(r.arm for r in ranked[:1]), now.leader) if arm not in known]
        if not pair:
            return None
        fewest = min(map(self._held, pair))
        near = [arm for arm in pair if self._held(arm) <= fewest + 1]
        return min(near, key=lambda arm: (self._state.share_on_node(arm), self._held(arm)))

    def _reserve(self, leader: Arm) -> int:
        """Return the boots that the confirmation of the leader would take."""
        state = self._state
        if self._reference is None or leader == self._reference:
            return 0
        fresh = 0 if leader in state.known else self._settings.fresh_boots
        return fresh + self._reference_lacks()

    def _reference_lacks(self) -> int:
        arm = self._reference
        if arm is None or arm not in self.standing or arm in self._state.known:
            return 0
        wanted = self._settings.fresh_boots
        if self._state.choice is not None:
            wanted = self._state.choice.fresh_boots
        return max(0, wanted - self._held(arm) + self._num_odd(arm))

    def _num_odd(self, arm: Arm, *, unless: Collection[str] = ()) -> int:
        odd = self._state.outliers.difference(unless)
        return sum(item.arm == arm and item.trial_id in odd for item in self._state.scored)

    def _lacks(self, arm: Arm | None, choice: Choice) -> int:
        """Return the boots that the confirmation still wants of the winner or the reference."""
        if self._reference is None or choice.arm == self._reference:
            return 0
        if arm != choice.arm:
            return self._reference_lacks()
        if arm in self._state.known:
            return 0
        fresh = sum(
            item.arm == arm and item.trial_id not in choice.chosen_by for item in self._state.scored
        )
        wanted = choice.fresh_boots + self._num_odd(arm, unless=choice.chosen_by)
        return max(0, wanted - fresh - self._running(choice.arm))

    def _boot(self, arm: Arm, reason: str, choice: Choice | None = None) -> RaceDecision:
        return RaceDecision(
            kind="boot", reason=reason, arm=arm, replicate=self._issued(arm), choice=choice
        )

    def _issued(self, arm: Arm) -> int:
        return self._state.issued.get(arm, 0)

    def _running(self, arm: Arm) -> int:
        ended = sum(item.arm == arm for item in self._state.scored) + self._state.failed.get(arm, 0)
        return max(0, self._issued(arm) - ended)

    def _held(self, arm: Arm) -> int:
        return len(self._scores[arm]) + self._running(arm)

    def _any_running(self) -> bool:
        return any(self._running(arm) for arm in self._state.arms if arm not in self._state.dead)

    def _num_left(self) -> int:
        return self._settings.max_boots - sum(self._state.issued.values())

    def _time_for(self, *stages: int) -> bool:
        """Whether stages of so many boots, one after the other, can end within the hours."""
        elapsed, limit = self._state.elapsed, self._settings.max_hours
        if elapsed is None or limit is None:
            return True
        rounds = sum(math.ceil(boots / elapsed.num_nodes) for boots in stages)
        return elapsed.hours + rounds * elapsed.boot_hours <= limit

    def _spent(self) -> str:
        if self._num_left() <= 0 or self._settings.max_hours is None:
            return f"search.max_boots={self._settings.max_boots} is spent"
        return (
            f"search.max_hours={self._settings.max_hours:g} or "
            f"search.max_boots={self._settings.max_boots} is spent"
        )


def _coverage_order(arms: Sequence[Arm], seed: int) -> list[Arm]:
    """Order by a hash of seed and arm, so that the order of the others never shifts."""
    return sorted(arms, key=lambda arm: hashlib.sha256(f"{seed}/{arm.key}".encode()).digest())
