"""What a study tells while its trials run, on Tune's callbacks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ray import tune

from orchestrator.core.codec import from_plain
from orchestrator.core.journal import Entry
from orchestrator.core.types import Boot
from orchestrator.events import Pace, Printer
from orchestrator.stopping import BLOCK_S, Stop
from orchestrator.trial_text import describe_end

HEARTBEAT_S = 20.0
"""A boot can be silent for minutes; the progress display speaks at least this often."""


@dataclass(slots=True)
class Progress(tune.Callback):
    """Tells what the trials do, how long is left, and shows the table after each boot."""

    printer: Printer
    pace: Pace
    table: Callable[[Sequence[Boot]], Sequence[str]]
    boots: list[Boot] = field(default_factory=list)
    started: dict[str, float] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    up: set[str] = field(default_factory=set)
    """Trials whose engine is up, and which measure."""
    last_s: float = 0.0

    def left_s(self) -> float:
        """Return the expected time to the end of the study."""
        now = time.monotonic()
        running_s = sum(now - at for at in list(self.started.values()))  # also asked in a thread
        return self.pace.left_s(now, len(self.started), running_s)

    def on_issue(self, trial_id: str, name: str) -> None:
        """Tell that a boot begins; Tune's own hook comes only when the engine is up."""
        self.started[trial_id] = time.monotonic()
        self.names[trial_id] = name
        self.say(f"{name}: booting")

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Tell that the engine is up."""
        begun = self.started[trial.trial_id]
        self.up.add(trial.trial_id)
        self.say(f"{self.names[trial.trial_id]}: up after {time.monotonic() - begun:.0f} s")

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Tell what a block measured, and how a trial ended."""
        name = self.names.get(trial.trial_id, trial.trial_id)
        if result.get("text"):
            self.say(f"{name}: {result['text']}")
        if "boot" in result:
            boot = read_boot(result)
            if boot.proof is None:
                self.boots.append(boot)
            else:
                # It measures nothing: no row of the table, and no guess at what a boot takes.
                self.started.pop(trial.trial_id, None)
            self.say(f"{name}: {describe_end(boot)}")

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Show the table after each boot."""
        self.up.discard(trial.trial_id)
        begun = self.started.pop(trial.trial_id, None)
        if begun is not None:
            self.pace.durations_s.append(time.monotonic() - begun)
            self.printer.lines(self.table(self.boots))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Tell that a trial's actor died."""
        self.up.discard(trial.trial_id)
        self.started.pop(trial.trial_id, None)
        self.say(f"{self.names.get(trial.trial_id, trial.trial_id)}: the trial's process died")

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Speak up when nothing has happened for a while."""
        now = time.monotonic()
        if self.started and now - self.last_s > HEARTBEAT_S:
            since = ", ".join(
                f"{self.names[trial_id]} for {now - at:.0f} s"
                for trial_id, at in self.started.items()
            )
            self.say(f"under way: {since}")

    def say(self, text: str) -> None:
        """Print a line, with the time that is left."""
        self.last_s = time.monotonic()
        self.printer.say(text)


class StudyStopper(tune.Stopper):
    """Ends a study that somebody wants to end: each trial after its block, and then all.

    Args:
        stop: The wish.
        progress: Knows which trials measure, and tells what becomes of them.
    """

    def __init__(self, stop: Stop, progress: Progress) -> None:
        self._stop = stop
        self._progress = progress
        self._is_told = False

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """Whether the trial ends with this result."""
        return self._stop.is_asked

    def stop_all(self) -> bool:
        """Whether all that runs ends now; what boots has nothing to finish."""
        if not self._stop.is_asked:
            return False
        up = self._progress.up
        if not self._is_told:
            self._is_told = True
            first = f" after their blocks, in {BLOCK_S:g} s at most" if up else ""
            self._progress.say(f"stopping: the trials end{first}; a second signal ends them now")
        if not up:
            return True
        if self._stop.is_late:
            for trial_id in sorted(up):
                name = self._progress.names[trial_id]
                self._progress.say(f"{name}: its block is cut off, it takes longer than that")
            up.clear()
        return self._stop.is_late


def read_told(result: Mapping[str, Any]) -> list[Entry]:
    """Return what the trial tells the tracker with a result."""
    return [from_plain(Entry, entry) for entry in json.loads(result.get("told", "[]"))]


def read_boot(result: Mapping[str, Any]) -> Boot:
    """Return the boot of a trial's last result."""
    return from_plain(Boot, json.loads(result["boot"]))
