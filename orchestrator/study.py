"""The study on Ray Tune: the race as a Searcher, one boot as a class Trainable, the loop."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.search import Searcher

from orchestrator.core.codec import from_plain, to_plain
from orchestrator.core.race import next_boot
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
from orchestrator.trial import Trial, describe_end

logger = logging.getLogger(__name__)

HEARTBEAT_S = 20.0
"""A boot can be silent for minutes; the progress display speaks at least this often."""
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
    needs_proof: bool = False
    """Whether the choice and its control get proof boots once the race is over."""
    storage_path: Path
    """Folder for Tune's own state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceResult:
    """What a race came to."""

    boots: tuple[Boot, ...]
    """All boots that came back, in the order of their end."""
    choice: Choice | None
    """Which arm was chosen, and which boots chose it; None when no arm could be."""
    proofs: tuple[Boot, ...] = ()
    """Proof boots that came back, in the order of their end."""


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
    ) -> None:
        super().__init__(metric=None, mode=None)
        self._plan = plan
        self._on_issue = on_issue
        self._now_s = now_s
        self._begun_s: float | None = None
        self._outcomes: list[Outcome] = []
        self._spent_s: list[float] = []
        self._running: dict[str, tuple[Arm, int, float]] = {}
        self._lost: list[Arm] = []
        self._proofs = ProofBoots(plan.question)
        self.choice: Choice | None = None
        self.stop_reason = ""

    @property
    def boots(self) -> tuple[Boot, ...]:
        """Boots that came back, in order of their end."""
        return tuple(item.boot for item in self._outcomes)

    @property
    def proofs(self) -> tuple[Boot, ...]:
        """Proof boots that came back, in order of their end."""
        return self._proofs.ended

    @property
    def running(self) -> int:
        """Boots under way."""
        return len(self._running) + self._proofs.num_running

    def suggest(  # type: ignore[override]  # Tune's FINISHED is text, which its hint leaves out
        self, trial_id: str
    ) -> dict[str, Any] | str | None:
        """Return the next boot, None to wait, or FINISHED."""
        decision = next_boot(self._state(), self._plan.race)
        self.choice = decision.choice or self.choice
        if decision.kind == "finished":
            return self._suggest_proof(trial_id, decision.reason)
        if decision.kind == "wait" or decision.arm is None or decision.replicate is None:
            return None
        self._running[trial_id] = (decision.arm, decision.replicate, self._now_s())
        self._on_issue(trial_id, f"{decision.arm.label} (boot {decision.replicate + 1})")
        return _order(decision.arm, decision.replicate, is_proof=False)

    def _suggest_proof(self, trial_id: str, stop_reason: str) -> dict[str, Any] | str | None:
        """Return the next proof boot of a race that is over, None to wait, or FINISHED."""
        due = self._proofs.start(trial_id, self.choice) if self._plan.needs_proof else None
        if due is not None:
            arm, number = due
            self._on_issue(trial_id, f"{arm.label} (proof)")
            return _order(arm, number, is_proof=True)
        if self._proofs.num_running:
            return None
        self.stop_reason = stop_reason
        return str(Searcher.FINISHED)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Record the boot; a trial whose actor died counts as a lost boot."""
        boot = None if error or not result or "boot" not in result else _read_boot(result)
        if self._proofs.end(trial_id, boot):
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
            "choice": None if self.choice is None else to_plain(self.choice),
            "passed_s": self._passed_s(),
            "proofs": self._proofs.save(),
        }
        Path(checkpoint_path).write_text(json.dumps(state), encoding="utf-8")

    def restore(self, checkpoint_path: str) -> None:
        """Read the race's state."""
        state = json.loads(Path(checkpoint_path).read_text(encoding="utf-8"))
        question, choice = self._plan.question, state["choice"]
        self._outcomes = [outcome(from_plain(Boot, item), question) for item in state["boots"]]
        self._spent_s = [float(value) for value in state["spent_s"]]
        self._lost = [from_plain(Arm, item) for item in state["lost"]]
        self._running = {}
        self.choice = None if choice is None else from_plain(Choice, choice)
        self._begun_s = self._now_s() - float(state["passed_s"])
        self._proofs.restore(state["proofs"])

    def _passed_s(self) -> float:
        """Return the time since the race was first asked, the driver's absence not counted."""
        if self._begun_s is None:
            self._begun_s = self._now_s()
        return self._now_s() - self._begun_s

    def _state(self) -> RaceState:
        spent_s = self._spent_s or [self._plan.expected_boot_s]
        return race_state(
            self._plan.question,
            ended=self._outcomes,
            missing=self._lost,
            running=[arm for arm, _, _ in self._running.values()],
            choice=self.choice,
            elapsed=Elapsed(
                hours=self._passed_s() / SECONDS_PER_HOUR,
                boot_hours=sum(spent_s) / len(spent_s) / SECONDS_PER_HOUR,
                num_nodes=self._plan.num_nodes,
            ),
        )


@dataclass(slots=True)
class Progress(tune.Callback):
    """Tells what the trials do, how long is left, and shows the table after each boot."""

    printer: Printer
    pace: Pace
    table: Callable[[Sequence[Boot]], Sequence[str]]
    boots: list[Boot] = field(default_factory=list)
    started: dict[str, float] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    last_s: float = 0.0

    def left_s(self) -> float:
        """Return the expected time to the end of the study."""
        now = time.monotonic()
        running_s = sum(now - at for at in self.started.values())
        return self.pace.left_s(now, len(self.started), running_s)

    def on_issue(self, trial_id: str, name: str) -> None:
        """Tell that a boot begins; Tune's own hook comes only when the engine is up."""
        self.started[trial_id] = time.monotonic()
        self.names[trial_id] = name
        self._say(f"{name}: booting")

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Tell that the engine is up."""
        begun = self.started[trial.trial_id]
        self._say(f"{self.names[trial.trial_id]}: up after {time.monotonic() - begun:.0f} s")

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Tell what a block measured, and how a trial ended."""
        name = self.names.get(trial.trial_id, trial.trial_id)
        if result.get("text"):
            self._say(f"{name}: {result['text']}")
        if "boot" in result:
            boot = _read_boot(result)
            if boot.proof is None:
                self.boots.append(boot)
            self._say(f"{name}: {describe_end(boot)}")

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Show the table after each boot."""
        begun = self.started.pop(trial.trial_id, None)
        if begun is not None:
            self.pace.durations_s.append(time.monotonic() - begun)
        self.printer.lines(self.table(self.boots))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Tell that a trial's actor died."""
        self.started.pop(trial.trial_id, None)
        self._say(f"{self.names.get(trial.trial_id, trial.trial_id)}: the trial's process died")

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Speak up when nothing has happened for a while."""
        now = time.monotonic()
        if self.started and now - self.last_s > HEARTBEAT_S:
            since = ", ".join(
                f"{self.names[trial_id]} for {now - at:.0f} s"
                for trial_id, at in self.started.items()
            )
            self._say(f"under way: {since}")

    def _say(self, text: str) -> None:
        self.last_s = time.monotonic()
        self.printer.say(text)


def _order(arm: Arm, replicate: int, *, is_proof: bool) -> dict[str, Any]:
    """Return what Tune hands to the trial."""
    return {"arm": to_plain(arm), "replicate": replicate, "is_proof": is_proof}


def _read_boot(result: Mapping[str, Any]) -> Boot:
    return from_plain(Boot, json.loads(result["boot"]))


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
    searcher = RaceSearcher(plan, progress.on_issue)
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
    return RaceResult(boots=searcher.boots, choice=searcher.choice, proofs=searcher.proofs)


def with_incumbent(arms: Sequence[Arm], incumbent: Arm | None) -> tuple[Arm, ...]:
    """Return the arms with the incumbent among them, so that it is measured beside them."""
    if incumbent is None or incumbent in arms:
        return tuple(arms)
    return (*arms, incumbent)
