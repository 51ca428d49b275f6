"""The race of a study as Ray Tune's Searcher: which boot is next, and what came of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.tune.search import Searcher

from orchestrator.core.build_race import BuildRace, build_races, next_turn
from orchestrator.core.builds import arm_names
from orchestrator.core.codec import from_plain, to_plain
from orchestrator.core.estimate import known_arms
from orchestrator.core.freed_nodes import FreedNodes
from orchestrator.core.journal import Entry
from orchestrator.core.proof_gates import NO_PROOF, ProofDemands
from orchestrator.core.race_state import (
    Choice,
    Outcome,
    RaceQuestion,
    RaceSettings,
    RaceState,
    elapsed,
    outcome,
    race_state,
)
from orchestrator.core.refusals import StudyFault, study_fault
from orchestrator.core.types import Arm, Boot, BootStatus
from orchestrator.proof_boots import ProofBoots, SavedProofs
from orchestrator.study_progress import read_boot, read_told
from orchestrator.trial_text import boot_params


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlan:
    """The study as the loop sees it."""

    study_id: str
    question: RaceQuestion
    race: RaceSettings
    expected_boot_s: float
    """What a boot with its blocks takes, until one has shown it."""
    slot_token: str
    num_nodes: int
    demands: ProofDemands = NO_PROOF
    """What is asked of the proof boots that the choice and its control get; by default nothing, so
    that there are none."""
    storage_path: Path
    """Folder for Tune's own state."""
    earlier: Mapping[str, Any] | None = None
    """State of the race as a driver that ended before its verdict kept it; None at the beginning.
    """


Keep = Callable[[Mapping[str, Any], Sequence[Entry]], None]
"""Takes the state of the race, from which a new driver can go on, as plain JSON; and what is to be
told of its trials since the last time."""


def _keep_nothing(_state: Mapping[str, Any], _told: Sequence[Entry]) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRace:
    """The state of a race as it is kept.

    Whoever changes it changes ``study_file.FORMAT``.
    """

    boots: tuple[Boot, ...]
    spent_s: tuple[float, ...]
    """Of each of the boots."""
    lost: tuple[Arm, ...]
    cut: tuple[Arm, ...]
    """Of the boots that ended with a driver that died."""
    stopped: tuple[Arm, ...]
    """Of those that somebody ended with the study."""
    trial_ids: tuple[str, ...]
    choices: tuple[Choice, ...]
    passed_s: float
    proofs: dict[str, SavedProofs]
    """By engine build."""

    def __post_init__(self) -> None:
        """Refuse what no race keeps: it is read from a file."""
        if len(self.boots) != len(self.spent_s):
            raise ValueError(f"{len(self.boots)} boots and {len(self.spent_s)} times of boots")


class RaceSearcher(Searcher):
    """Asks the race which boot comes next and tells it what came of it; then the proof boots.

    Args:
        plan: The study.
        on_issue: Told of each boot that begins.
        now_s: The clock of the race's hours.
        tell: Hears what was chosen and what was set aside.
        keep: Given the state whenever something has changed that a new driver must know.
        is_stopping: Whether somebody wants the study to end: no boot begins any more, and one that
            ends without its record was not lost.
    """

    def __init__(
        self,
        plan: StudyPlan,
        on_issue: Callable[[str, str], None],
        now_s: Callable[[], float] = time.monotonic,
        tell: Callable[[str], None] = lambda _line: None,
        keep: Keep = _keep_nothing,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(metric=None, mode=None)
        self._plan = plan
        self._on_issue = on_issue
        self._now_s = now_s
        self._tell = tell
        self._keep = keep
        self._is_stopping = is_stopping
        self._begun_s: float | None = None
        self._outcomes: list[Outcome] = []
        self._plain: list[dict[str, Any]] = []
        self._spent_s: list[float] = []
        self._running: dict[str, tuple[Arm, int, float]] = {}
        self._freed = FreedNodes()
        self._lost: list[Arm] = []
        self._cut: list[Arm] = []
        self._stopped: list[Arm] = []
        self._trial_ids: set[str] = set()
        self._races = build_races(plan.question, plan.race)
        self._proofs = {
            race.build: ProofBoots(race.question, plan.demands, lambda: self.boots)
            for race in self._races
        }
        self._name = arm_names(plan.question.arms)
        self.choices: dict[str, Choice] = {}
        self.stop_reason = ""
        self.fault: StudyFault | None = None
        """Why no arm can run as the study is set up; then no further boot is asked for."""

    @property
    def boots(self) -> tuple[Boot, ...]:
        """Boots that came back, in order of their end."""
        return tuple(item.boot for item in self._outcomes)

    @property
    def proofs(self) -> tuple[Boot, ...]:
        """Proof boots that came back, by build and in order of their end."""
        return tuple(boot for proofs in self._proofs.values() for boot in proofs.ended)

    @property
    def lost_proofs(self) -> tuple[Arm, ...]:
        """Arms of the proof boots that were lost with their process, once for each."""
        return tuple(arm for proofs in self._proofs.values() for arm in proofs.lost)

    @property
    def spent_s(self) -> tuple[float, ...]:
        """What each boot that came back has taken, in order of their end."""
        return tuple(self._spent_s)

    @property
    def choice(self) -> Choice | None:
        """What the race of production's build has chosen."""
        return self.choices.get(self._races[0].build)

    @property
    def running(self) -> int:
        """Boots under way."""
        return len(self._running) + self._num_proofs_running

    def suggest(  # type: ignore[override]  # Tune's FINISHED is text, which its hint leaves out
        self, trial_id: str
    ) -> dict[str, Any] | str | None:
        """Return the next boot, None to wait, or FINISHED.

        What is decided is kept before it is done: a driver that dies afterwards knows of the boot.
        """
        if trial_id in self._trial_ids:
            return None  # Tune's ids are random; a run of MLflow is found by its trial's id
        if self.fault is not None or self._is_stopping():
            return str(Searcher.FINISHED)
        before = dict(self.choices)
        suggested = self._suggest(trial_id)
        if suggested is not None or self.choices != before:
            self._keep(self.state(), _opening(trial_id, suggested))
        return suggested

    def _suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        turn = next_turn(self._races, self._state)
        for build, choice in turn.choices.items():
            if choice != self.choices.get(build):
                self._tell(f"the race has chosen {self._name(choice.arm)}: {choice.reason}")
        self.choices |= turn.choices
        decision = turn.decision
        if decision.kind == "finished":
            return self._suggest_proof(trial_id, decision.reason)
        arm = decision.arm
        if decision.kind == "wait" or arm is None:
            return None
        number = self._num_booted(arm)
        self._trial_ids.add(trial_id)
        self._freed.take()
        self._running[trial_id] = (arm, number, self._now_s())
        self._on_issue(trial_id, f"{self._name(arm)} (boot {number + 1})")
        return _order(arm, number)

    def _suggest_proof(self, trial_id: str, stop_reason: str) -> dict[str, Any] | str | None:
        """Return the next proof boot of a race that is over, None to wait, or FINISHED."""
        for build, proofs in self._proofs.items():
            choice = self.choices.get(build)
            if choice is None or not self._is_confirmed(choice):
                continue
            due = proofs.start(trial_id, choice)
            if due is not None:
                arm, number = due
                self._trial_ids.add(trial_id)
                self._freed.take()
                self._on_issue(trial_id, f"{self._name(arm)} (proof)")
                return _order(arm, number, is_proof=True, floor=proofs.floor(arm))
        if self._num_proofs_running:
            return None
        self.stop_reason = stop_reason
        return str(Searcher.FINISHED)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Record the boot; a trial whose actor died counts as a lost boot."""
        boot = None if error or not result or "boot" not in result else read_boot(result)
        is_proof = any(self._end_proof(proofs, trial_id, boot) for proofs in self._proofs.values())
        issued = self._running.pop(trial_id, None)
        self._freed.free(None if boot is None else boot.node_id)
        if issued is not None:
            arm, _, begun_s = issued
            if boot is not None:
                self._add(boot, self._now_s() - begun_s)
                self.fault = self.fault or study_fault(self.boots, self._plan.question.arms)
            else:
                (self._stopped if self._is_stopping() else self._lost).append(arm)
        if is_proof or issued is not None:
            self._keep(self.state(), read_told(result or {}))

    def _end_proof(self, proofs: ProofBoots, trial_id: str, boot: Boot | None) -> bool:
        """Record the end of a proof boot and tell what it sets aside; False of another boot."""
        before = set(proofs.set_aside)
        if not proofs.end(trial_id, boot, is_cut=self._is_stopping()):
            return False
        for arm, reason in proofs.set_aside.items():
            if arm not in before:
                self._tell(f"{self._name(arm)} is set aside: {reason}")
        self.choices = {
            build: choice
            for build, choice in self.choices.items()
            if choice.arm not in proofs.set_aside
        }
        return True

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Keep what a block has measured, and the time that it has taken.

        What is told with a boot's record is kept with it, when the trial is complete.
        """
        del trial_id
        if "boot" not in result:
            self._keep(self.state(), read_told(result))

    def end_running(self) -> None:
        """Keep that somebody ended the boots under way, which says nothing of their arms."""
        self._stopped += [arm for arm, _, _ in self._running.values()]
        self._running = {}
        self._keep(self.state(), ())

    def state(self) -> dict[str, Any]:
        """Return the race's state as plain JSON; a boot under way ends with the driver.

        Boots that show a fault of the study are not in it: they say nothing of their arms, and
        where the fault is put right the study can go on.
        """
        running = [arm for arm, _, _ in self._running.values()]
        faulty = frozenset() if self.fault is None else self.fault.trial_ids
        kept = [i for i, boot in enumerate(self.boots) if boot.trial_id not in faulty]
        return {
            "boots": [self._plain[i] for i in kept],
            "spent_s": [self._spent_s[i] for i in kept],
            "lost": [to_plain(arm) for arm in self._lost],
            "cut": [to_plain(arm) for arm in [*self._cut, *running]],
            "stopped": [to_plain(arm) for arm in self._stopped],
            "trial_ids": sorted(self._trial_ids),
            "choices": [to_plain(choice) for choice in self.choices.values()],
            "passed_s": self._passed_s(),
            "proofs": {build: proofs.save() for build, proofs in self._proofs.items()},
        }

    def save(self, checkpoint_path: str) -> None:
        """Write the race's state."""
        Path(checkpoint_path).write_text(json.dumps(self.state()), encoding="utf-8")

    def restore(self, checkpoint_path: str) -> None:
        """Read the race's state."""
        self.set_out_from(json.loads(Path(checkpoint_path).read_text(encoding="utf-8")))

    def set_out_from(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state`` returned in an earlier driver.

        Raises:
            ValueError: It is of another shape.
        """
        saved = from_plain(SavedRace, state)
        self._outcomes, self._plain, self._spent_s = [], [], []
        for boot, spent_s in zip(saved.boots, saved.spent_s, strict=True):
            self._add(boot, spent_s)
        self._lost, self._cut = list(saved.lost), list(saved.cut)
        self._stopped = list(saved.stopped)
        self._trial_ids = set(saved.trial_ids)
        self._running = {}
        self.choices = {choice.arm.engine_build: choice for choice in saved.choices}
        self._begun_s = self._now_s() - saved.passed_s
        for build, proofs in self._proofs.items():
            proofs.restore(saved.proofs.get(build, SavedProofs()))

    def _add(self, boot: Boot, spent_s: float) -> None:
        self._outcomes.append(outcome(boot, self._plan.question))
        self._plain.append(to_plain(boot))  # once: the state is written after every block
        self._spent_s.append(spent_s)

    def _num_booted(self, arm: Arm) -> int:
        """Return the boots that the arm has had, whatever came of them."""
        ended = [item.boot.arm for item in self._outcomes]
        running = [issued for issued, _, _ in self._running.values()]
        return [*ended, *self._lost, *self._cut, *self._stopped, *running].count(arm)

    @property
    def _missing(self) -> list[Arm]:
        """Arms of the boots that count as failed ones, once for each.

        A boot that ended with its driver is not held against an arm that came up before or after
        it. It is where the arm never did: it may be what took the driver's machine down.
        """
        sound = {o.boot.arm for o in self._outcomes if o.boot.status is BootStatus.OK}
        return [*self._lost, *(arm for arm in self._cut if arm not in sound)]

    @property
    def _num_proofs_running(self) -> int:
        return sum(proofs.num_running for proofs in self._proofs.values())

    def _is_confirmed(self, choice: Choice) -> bool:
        """Whether a choice has the fresh boots without which no proof would let it win."""
        question = self._plan.question
        if choice.arm in known_arms(question.arms, question.board):
            return True
        fresh = sum(
            item.score_s is not None
            for item in self._outcomes
            if item.boot.arm == choice.arm and item.boot.trial_id not in choice.chosen_by
        )
        return fresh >= self._plan.race.fresh_boots

    def _passed_s(self) -> float:
        """Return the time since the race was first asked, the driver's absence not counted."""
        if self._begun_s is None:
            self._begun_s = self._now_s()
        return self._now_s() - self._begun_s

    def _state(self, race: BuildRace) -> RaceState:
        """Return what happened to the arms of one build."""
        spent_s = self._spent_s or [self._plan.expected_boot_s]
        spent = elapsed(self._passed_s(), spent_s, num_nodes=self._plan.num_nodes)
        arms = race.question.arms
        return race_state(
            race.question,
            ended=[item for item in self._outcomes if item.boot.arm in arms],
            missing=[arm for arm in self._missing if arm in arms],
            running=[arm for arm, _, _ in self._running.values() if arm in arms],
            choice=self.choices.get(race.build),
            elapsed=race.elapsed(spent),
            set_aside=self._proofs[race.build].set_aside,
            node_id=self._freed.next,
        )


def _opening(trial_id: str, suggested: dict[str, Any] | str | None) -> list[Entry]:
    """Return what is known of a run before its trial says more, so that a boot can be seen."""
    if not isinstance(suggested, dict):
        return []
    arm, number = from_plain(Arm, suggested["arm"]), int(suggested["replicate"])
    return [Entry(trial_id=trial_id, params=boot_params(arm, number, trial_id=trial_id))]


def _order(
    arm: Arm, replicate: int, *, is_proof: bool = False, floor: float | None = None
) -> dict[str, Any]:
    """Return what Tune hands to the trial."""
    return {"arm": to_plain(arm), "replicate": replicate, "is_proof": is_proof, "floor": floor}
