"""The study on Ray Tune: the race as a Searcher, one boot as a class Trainable, the loop."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.search import Searcher

from orchestrator.core.build_race import BuildRace, build_races, next_turn
from orchestrator.core.builds import arm_names
from orchestrator.core.codec import from_plain, to_plain
from orchestrator.core.estimate import known_arms
from orchestrator.core.proof_gates import NO_PROOF, ProofDemands
from orchestrator.core.race_state import (
    Choice,
    Elapsed,
    Outcome,
    RaceQuestion,
    RaceSettings,
    RaceState,
    outcome,
    race_state,
)
from orchestrator.core.types import Arm, Boot
from orchestrator.errors import StudyStopped
from orchestrator.events import Pace, Printer
from orchestrator.proof_boots import ProofBoots
from orchestrator.study_progress import Progress, read_boot
from orchestrator.trial import Trial

logger = logging.getLogger(__name__)

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOrder:
    """What the study asks of one trial; crosses from the driver into the trial's actor."""

    trial_id: str
    arm: Arm
    replicate: int
    """Number of the boot among those of its arm and purpose, from 0."""
    node_id: str
    is_proof: bool = False
    """Whether the boot measures nothing and looks at the parts of a proof."""
    floor: float | None = None
    """Of a proof boot: log odds by which numerics move an event, as its control measured them."""


TrialFactory = Callable[[TrialOrder], Trial]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceResult:
    """What a race came to."""

    boots: tuple[Boot, ...]
    """All boots that came back, in the order of their end."""
    choices: Mapping[str, Choice]
    """By engine build: which arm was chosen, and which boots chose it. A build
    of which no arm could be is absent."""
    proofs: tuple[Boot, ...] = ()
    """Proof boots that came back, by build and in the order of their end."""
    lost_proofs: tuple[Arm, ...] = ()
    """Arms of the proof boots that were lost with their process, once for each."""


class SpecTrial(tune.Trainable):
    """One boot of one arm; a ``step()`` is one block."""

    def setup(self, config: dict[str, Any], factory: TrialFactory | None = None) -> None:
        """Boot the engine; an arm that cannot run ends the trial, it does not fail it."""
        assert factory is not None
        order = TrialOrder(
            trial_id=self.trial_id,
            arm=from_plain(Arm, config["arm"]),
            replicate=int(config["replicate"]),
            node_id=ray.get_runtime_context().get_node_id(),
            is_proof=bool(config["is_proof"]),
            floor=config["floor"],
        )
        self._trial = factory(order)
        try:
            self._trial.setup()
        except BaseException:
            self.cleanup()  # Tune does not call it for a trial whose setup raised
            raise

    def step(self) -> dict[str, Any]:
        """Measure one block, or report how the trial ended."""
        text = "" if self._trial.ended else self._trial.step()
        result: dict[str, Any] = {"text": text}
        if self._trial.ended:
            # As text: Tune flattens nested results on their way to the searcher.
            result |= {"boot": json.dumps(to_plain(self._trial.finish())), "done": True}
        return result

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Store nothing: blocks live in the tracker, the engine cannot be stored."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Restore nothing: a boot that was cut is a new boot."""

    def cleanup(self) -> None:
        """End the engine; its own failure must not hide how the trial ended."""
        try:
            self._trial.cleanup()
        except Exception:
            logger.exception("cleanup of trial %s failed", self.trial_id)


class RaceSearcher(Searcher):
    """Asks the race which boot comes next and tells it what came of it; then the proof boots."""

    def __init__(
        self,
        plan: StudyPlan,
        on_issue: Callable[[str, str], None],
        now_s: Callable[[], float] = time.monotonic,
        tell: Callable[[str], None] = lambda _line: None,
    ) -> None:
        super().__init__(metric=None, mode=None)
        self._plan = plan
        self._on_issue = on_issue
        self._now_s = now_s
        self._tell = tell
        self._begun_s: float | None = None
        self._outcomes: list[Outcome] = []
        self._spent_s: list[float] = []
        self._running: dict[str, tuple[Arm, int, float]] = {}
        self._lost: list[Arm] = []
        self._races = build_races(plan.question, plan.race)
        self._proofs = {race.build: ProofBoots(race.question, plan.demands) for race in self._races}
        self._name = arm_names(plan.question.arms)
        self.choices: dict[str, Choice] = {}
        self.stop_reason = ""

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
        """Return the next boot, None to wait, or FINISHED."""
        turn = next_turn(self._races, self._state)
        for build, choice in turn.choices.items():
            if choice != self.choices.get(build):
                self._tell(f"the race has chosen {self._name(choice.arm)}: {choice.reason}")
        self.choices |= turn.choices
        decision = turn.decision
        if decision.kind == "finished":
            return self._suggest_proof(trial_id, decision.reason)
        if decision.kind == "wait" or decision.arm is None or decision.replicate is None:
            return None
        self._running[trial_id] = (decision.arm, decision.replicate, self._now_s())
        self._on_issue(trial_id, f"{self._name(decision.arm)} (boot {decision.replicate + 1})")
        return _order(decision.arm, decision.replicate)

    def _suggest_proof(self, trial_id: str, stop_reason: str) -> dict[str, Any] | str | None:
        """Return the next proof boot of a race that is over, None to wait, or FINISHED."""
        for build, proofs in self._proofs.items():
            choice = self.choices.get(build)
            if choice is None or not self._is_confirmed(choice):
                continue
            due = proofs.start(trial_id, choice)
            if due is not None:
                arm, number = due
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
        for proofs in self._proofs.values():
            before = set(proofs.set_aside)
            if proofs.end(trial_id, boot):
                for arm, reason in proofs.set_aside.items():
                    if arm not in before:
                        self._tell(f"{self._name(arm)} is set aside: {reason}")
                return
        issued = self._running.pop(trial_id, None)
        if issued is None:
            return
        arm, _, begun_s = issued
        if boot is None:
            self._lost.append(arm)
            return
        self._outcomes.append(outcome(boot, self._plan.question))
        self._spent_s.append(self._now_s() - begun_s)

    def save(self, checkpoint_path: str) -> None:
        """Write the race's state; a boot under way is lost with the driver."""
        running = [arm for arm, _, _ in self._running.values()]
        state = {
            "boots": [to_plain(boot) for boot in self.boots],
            "spent_s": self._spent_s,
            "lost": [to_plain(arm) for arm in [*self._lost, *running]],
            "choices": [to_plain(choice) for choice in self.choices.values()],
            "passed_s": self._passed_s(),
            "proofs": {build: proofs.save() for build, proofs in self._proofs.items()},
        }
        Path(checkpoint_path).write_text(json.dumps(state), encoding="utf-8")

    def restore(self, checkpoint_path: str) -> None:
        """Read the race's state."""
        state = json.loads(Path(checkpoint_path).read_text(encoding="utf-8"))
        question = self._plan.question
        self._outcomes = [outcome(from_plain(Boot, item), question) for item in state["boots"]]
        self._spent_s = [float(value) for value in state["spent_s"]]
        self._lost = [from_plain(Arm, item) for item in state["lost"]]
        self._running = {}
        choices = [from_plain(Choice, item) for item in state["choices"]]
        self.choices = {choice.arm.engine_build: choice for choice in choices}
        self._begun_s = self._now_s() - float(state["passed_s"])
        for build, proofs in self._proofs.items():
            proofs.restore(state["proofs"][build])

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
        elapsed = Elapsed(
            hours=self._passed_s() / SECONDS_PER_HOUR,
            boot_hours=sum(spent_s) / len(spent_s) / SECONDS_PER_HOUR,
            num_nodes=self._plan.num_nodes,
        )
        arms = race.question.arms
        return race_state(
            race.question,
            ended=[item for item in self._outcomes if item.boot.arm in arms],
            missing=[arm for arm in self._lost if arm in arms],
            running=[arm for arm, _, _ in self._running.values() if arm in arms],
            choice=self.choices.get(race.build),
            elapsed=race.elapsed(elapsed),
            set_aside=self._proofs[race.build].set_aside,
        )


def _order(
    arm: Arm, replicate: int, *, is_proof: bool = False, floor: float | None = None
) -> dict[str, Any]:
    """Return what Tune hands to the trial."""
    return {"arm": to_plain(arm), "replicate": replicate, "is_proof": is_proof, "floor": floor}


def run_race(
    plan: StudyPlan,
    factory: TrialFactory,
    printer: Printer,
    pace: Pace,
    table: Callable[[Sequence[Boot]], Sequence[str]],
) -> RaceResult:
    """Run the study's trials to the end of the race."""
    # Tune keeps one trial pending at a time unless told otherwise, and a trial is pending for as
    # long as its engine boots: the nodes would boot one after the other.
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(plan.num_nodes)
    # Results go to the tracker. Tune's own loggers would load torch into the driver for nothing.
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    # The newer output prints a banner even when it is told to be silent.
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
    progress = Progress(printer=printer, pace=pace, table=table)
    searcher = RaceSearcher(plan, progress.on_issue, tell=progress.say)
    printer.left_s = progress.left_s
    trainable = tune.with_resources(
        tune.with_parameters(SpecTrial, factory=factory),
        tune.PlacementGroupFactory([{plan.slot_token: 1}]),
    )
    tuner = tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(
            search_alg=searcher,
            num_samples=-1,
            max_concurrent_trials=plan.num_nodes,
            reuse_actors=False,
        ),
        run_config=tune.RunConfig(
            name=plan.study_id,
            storage_path=str(plan.storage_path),
            failure_config=tune.FailureConfig(max_failures=0),
            callbacks=[progress],
            verbose=0,
        ),
    )
    tuner.fit()
    if not searcher.stop_reason:
        # Tune takes SIGINT for itself and returns as if it were done.
        raise StudyStopped(f"the study was stopped after {len(searcher.boots)} boots; no verdict")
    pace.race_ended_s = time.monotonic()
    printer.say(f"race over: {searcher.stop_reason}")
    return RaceResult(
        boots=searcher.boots,
        choices=searcher.choices,
        proofs=searcher.proofs,
        lost_proofs=searcher.lost_proofs,
    )


def with_incumbent(arms: Sequence[Arm], incumbent: Arm | None) -> tuple[Arm, ...]:
    """Return the arms with the incumbent among them, so that it is measured beside them."""
    if incumbent is None or incumbent in arms:
        return tuple(arms)
    return (*arms, incumbent)
