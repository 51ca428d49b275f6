"""What a trial tells the tracker, handed to the driver with the trial's results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from orchestrator.core.journal import Entry
from orchestrator.core.secrecy import redact_text
from orchestrator.core.types import Block, Boot


class TrialLog:
    """Implements ``ports.TrialTracker`` without a tracker: keeps entries until they are taken.

    A trial so waits for no server, and what it measured is on the driver's disk before MLflow has
    it. A run is known to the trial by the trial's id; the driver knows the tracker's.
    """

    def __init__(self) -> None:
        self._entries: list[Entry] = []

    def open_trial(self, study_run_id: str, trial_id: str, params: Mapping[str, object]) -> str:
        """Note what the run begins with; return the trial's id."""
        del study_run_id
        self._entries.append(Entry(trial_id=trial_id, params=dict(params)))
        return trial_id

    def log_block(self, run_id: str, block: Block) -> None:
        """Note one block."""
        self._entries.append(Entry(trial_id=run_id, block=block))

    def close_trial(self, run_id: str, boot: Boot, artifacts: Mapping[str, str]) -> None:
        """Note how the trial ended; no secret of an artifact leaves the trial's process."""
        texts = {name: redact_text(text) for name, text in artifacts.items()}
        told = replace(boot, run_id=None)
        self._entries.append(Entry(trial_id=run_id, boot=told, artifacts=texts))

    def take(self) -> list[Entry]:
        """Return what was told since the last time."""
        taken, self._entries = self._entries, []
        return taken
