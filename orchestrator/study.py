"""The study on Ray Tune: the loop around the race."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ray import tune

from orchestrator.core.race_state import Choice
from orchestrator.core.types import Arm, Boot
from orchestrator.errors import StudyStopped, TransientError
from orchestrator.events import Pace, Printer
from orchestrator.race_searcher import Keep, RaceSearcher, StudyPlan
from orchestrator.stopping import Stop
from orchestrator.study_progress import Progress, StudyStopper
from orchestrator.study_trial import SpecTrial, TrialFactory


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


@contextmanager
def _storable(plan: StudyPlan) -> Iterator[None]:
    """Say in one line that Tune cannot write its own files, as on a full disk.

    Raises:
        TransientError: So it is.
    """
    try:
        yield
    except OSError as error:
        raise TransientError(
            f"Tune cannot write to {plan.storage_path} (SPECPILOT_STATE_DIR): {error}"
        ) from error


def run_race(
    plan: StudyPlan,
    factory: TrialFactory,
    printer: Printer,
    pace: Pace,
    table: Callable[[Sequence[Boot]], Sequence[str]],
    keep: Keep,
    stop: Stop,
) -> RaceResult:
    """Run the study's trials to the end of the race.

    Raises:
        ConfigError: No arm can run as the study is set up.
        StudyStopped: Somebody wanted it to end first.
    """
    # Tune keeps one trial pending at a time unless told otherwise, and a trial is pending for as
    # long as its engine boots: the nodes would boot one after the other.
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(plan.num_nodes)
    # Results go to the tracker. Tune's own loggers would load torch into the driver for nothing.
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    # Nobody reads Tune's own snapshots, and one that fails, as on a full disk, ends the study. The
    # first and the last cannot be turned off.
    os.environ["TUNE_GLOBAL_CHECKPOINT_S"] = "inf"
    # The driver takes SIGINT and SIGTERM alike; Tune would take the first and cut the blocks off.
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"
    # The newer output prints a banner even when it is told to be silent.
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
    progress = Progress(printer=printer, pace=pace, table=table)
    searcher = RaceSearcher(
        plan,
        progress.on_issue,
        tell=progress.say,
        keep=keep,
        is_stopping=lambda: stop.is_asked,
    )
    if plan.earlier is not None:
        searcher.set_out_from(plan.earlier)
        progress.boots.extend(searcher.boots)
        pace.durations_s.extend(searcher.spent_s)
    printer.left_s = progress.left_s
    trainable = tune.with_resources(
        tune.with_parameters(SpecTrial, factory=factory),
        tune.PlacementGroupFactory([{plan.slot_token: 1}]),
    )
    with _storable(plan):
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
                # Tune would hold a trial's last result back until it has a checkpoint of it, and
                # a process that dies meanwhile would take a boot with it that was told as done.
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                stop=StudyStopper(stop, progress),
                callbacks=[progress],
                verbose=0,
            ),
        )
    try:
        with stop.blocks_first():
            tuner.fit()
    finally:
        if stop.is_asked:
            searcher.end_running()
    if searcher.fault is not None:
        raise searcher.fault.error()
    if stop.is_asked or not searcher.stop_reason:
        raise StudyStopped(f"the study was stopped after {len(searcher.boots)} boots; no verdict")
    pace.race_ended_s = time.monotonic()
    printer.say(f"race over: {searcher.stop_reason}")
    return RaceResult(
        boots=searcher.boots,
        choices=searcher.choices,
        proofs=searcher.proofs,
        lost_proofs=searcher.lost_proofs,
    )
