"""What a trial tells of itself, handed to the driver with the trial's results."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.journal import Entry
from orchestrator.core.secrecy import redact_text


class TrialLog:
    """Keeps what a trial tells until it is taken.

    A trial so waits for no server, and what it measured is on the driver's disk before MLflow has
    it.
    """

    def __init__(self) -> None:
        self._entries: list[Entry] = []

    def tell(self, entry: Entry) -> None:
        """Note one thing; no secret of an artifact leaves the trial's process."""
        texts = {name: redact_text(text) for name, text in entry.artifacts.items()}
        self._entries.append(replace(entry, artifacts=texts))

    def take(self) -> list[Entry]:
        """Return what was told since the last time."""
        taken, self._entries = self._entries, []
        return taken
