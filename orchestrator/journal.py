"""The journal of a study: on the driver's disk first, in the tracker as soon as it is there.

What trials tell comes here with their results. It is written down before anything else is done,
and told to the tracker by a thread of its own, in order and once: a tracker that is away or hangs
costs a block nothing. What it has not taken stays in the state, also for a new driver.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from orchestrator.adapters.study_file import StudyFile
from orchestrator.core.codec import from_plain, to_plain
from orchestrator.core.journal import BlockCheck, Entry, Records, check_blocks
from orchestrator.core.types import Boot
from orchestrator.errors import OrchestratorError
from orchestrator.events import Emit
from orchestrator.ports import Tracker

RETRY_S = 10.0
"""From one try to tell the tracker to the next, where it did not take everything."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyState:
    """What a new driver must know of a study.

    Whoever changes what is in it, or in the race's state, changes ``study_file.FORMAT``.
    """

    study_id: str
    run_id: str
    """Of the study in the tracker."""
    asks: Mapping[str, Any]
    """Of ``resume.asked``."""
    has_verdict: bool = False
    """Whether the tracker has the verdict: nothing is left to do."""
    verdict: str | None = None
    """As it was printed; None before it. A new driver reaches it again from the race's state."""
    race: Mapping[str, Any] | None = None
    """Of ``RaceSearcher.state``; None before its first decision."""
    records: Mapping[str, Any] | None = None
    """``Records`` as plain JSON; None before a trial has told anything."""

    @property
    def trial_ids(self) -> set[str]:
        """Trials whose boots came back: those that count."""
        race = self.race
        if race is None:
            return set()
        ended = [boot for proofs in race["proofs"].values() for boot in proofs["ended"]]
        return {str(boot["trial_id"]) for boot in [*race["boots"], *ended]}


class Journal:
    """Keeps the state of a study under way in its file, and tells the tracker what trials told.

    Args:
        file: Of the study.
        state: Of the study, as it was read or begins.
        tracker: Is told.
        say: Told when the tracker is away, and when it has everything again.
    """

    def __init__(
        self,
        file: StudyFile,
        state: StudyState,
        tracker: Tracker,
        say: Emit = lambda _text: None,
    ) -> None:
        self.state = state
        self._file = file
        self._tracker = tracker
        self._say = say
        records = Records() if state.records is None else from_plain(Records, state.records)
        # Each with its plain form, made once: it is written often.
        self._pending = [(entry, to_plain(entry)) for entry in records.pending]
        self._measured = dict(records.measured)
        self._runs = dict(records.runs)
        self._closed = state.trial_ids
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._is_wanted = threading.Event()
        self._is_away = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle nothing: Tune pickles its searcher for a restore that nobody does."""
        return str, ("the journal of a study",)

    @property
    def can_resume(self) -> bool:
        """Whether a new driver could go on from what is on the disk."""
        return self._file.is_kept and not self.state.has_verdict

    def keep(self, race: Mapping[str, Any] | None, told: Sequence[Entry] = ()) -> None:
        """Keep the race's state and what trials have told; it is on the disk on return.

        Args:
            race: Of ``RaceSearcher.state``.
            told: What is new; what was told before changes nothing.
        """
        with self._lock:
            for entry in told:
                self._add(entry)
            self._write(replace(self.state, race=race))
        self._is_wanted.set()

    def keep_verdict(self, text: str) -> None:
        """Keep the verdict before the tracker has it."""
        with self._lock:
            self._write(replace(self.state, verdict=text))

    def conclude(self) -> None:
        """Keep that the verdict is stored: there is nothing left to resume.

        On a disk that is full the state goes: a study that is done must not be gone on with.
        """
        with self._lock:
            self._write(replace(self.state, has_verdict=True))
            if not self._file.is_kept:
                self._file.drop()

    def start(self) -> None:
        """Begin to tell the tracker, in a thread that ends with the process."""
        threading.Thread(target=self._tell_for_ever, daemon=True, name="journal").start()

    def flush(self, wait_s: float) -> bool:
        """Wait until the thread has told the tracker everything; return whether it has.

        Args:
            wait_s: Longest wait in which the tracker takes nothing.
        """
        self._is_wanted.set()
        with self._changed:
            while self._pending:
                if not self._changed.wait(wait_s):
                    return False
        return True

    def replay(self) -> bool:
        """Tell the tracker what it may not have, in order; return whether it has everything.

        Where it does not take something of a trial, the rest of that trial waits, and the others
        have their turn: a run that somebody has deleted keeps nobody else's blocks back.
        """
        failed: set[str] = set()
        with self._lock:
            due = [entry for entry, _ in self._pending]
        for entry in due:
            if entry.trial_id in failed:
                continue
            try:
                run_id = self._tell(entry)
            except OrchestratorError as error:
                failed.add(entry.trial_id)
                self._complain(entry.trial_id, error)
            else:
                self._done(entry, run_id)
        with self._lock:
            is_done, was_away = not self._pending, self._is_away
            self._is_away = was_away and not is_done
        if is_done and was_away:
            self._say("the tracker has everything again")
        return is_done

    def with_run(self, boot: Boot) -> Boot:
        """Return a boot with its run, where the tracker has one."""
        with self._lock:
            return replace(boot, run_id=self._runs.get(boot.trial_id))

    def _add(self, entry: Entry) -> None:
        """Take what is new; Tune may hand over a trial's last result twice.

        An interrupt in between leaves an entry that is told and not counted, and is taken again.
        """
        known = self._measured.get(entry.trial_id, ())
        ids: list[str] = []
        if entry.block is not None:
            if entry.block.block_id in known:
                return
            ids = [entry.block.block_id]
        elif entry.boot is not None:
            if entry.trial_id in self._closed:
                return
            # A block whose result was lost with a message comes with its boot.
            ids = [block.block_id for block in entry.boot.blocks]
        self._pending.append((entry, to_plain(entry)))
        if ids:
            self._measured[entry.trial_id] = tuple(dict.fromkeys([*known, *ids]))
        if entry.boot is not None:
            self._closed.add(entry.trial_id)

    def _tell(self, entry: Entry) -> str:
        tracker, run_id = self._tracker, self._runs.get(entry.trial_id)
        if run_id is None or entry.params is not None:
            opened = tracker.open_trial(self.state.run_id, entry.trial_id, entry.params or {})
            run_id = run_id or opened
        if entry.block is not None:
            tracker.log_block(run_id, entry.block)
        if entry.boot is not None:
            tracker.close_trial(run_id, replace(entry.boot, run_id=run_id), entry.artifacts)
        return run_id

    def _done(self, entry: Entry, run_id: str) -> None:
        """Forget an entry; on the disk it goes with the next state, and may be told twice."""
        with self._changed:
            self._runs[entry.trial_id] = run_id
            self._pending = [item for item in self._pending if item[0] is not entry]
            self._changed.notify_all()

    def _complain(self, trial_id: str, error: OrchestratorError) -> None:
        logger.warning("trial %s: not tracked: %s", trial_id, error)
        with self._lock:
            was_away, self._is_away = self._is_away, True
        if not was_away:
            self._say(f"blocks wait for the tracker on this disk: {error}")

    def _tell_for_ever(self) -> None:
        while True:
            self._is_wanted.wait()
            self._is_wanted.clear()
            try:
                is_done = self.replay()
            except Exception:  # whatever it is, the thread must try again
                logger.exception("the journal cannot be told to the tracker")
                is_done = False
            if not is_done and not self._is_wanted.wait(RETRY_S):
                self._is_wanted.set()

    def _write(self, state: StudyState) -> None:
        records = {
            "pending": [plain for _, plain in self._pending],
            "measured": {trial: list(ids) for trial, ids in self._measured.items()},
            "runs": dict(self._runs),
        }
        self.state = replace(state, records=records)
        self._file.write({item.name: getattr(self.state, item.name) for item in fields(state)})


def check_journal(state: StudyState, tracker: Tracker) -> BlockCheck:
    """Hold the blocks that the tracker has against those that the study has measured, by id.

    Args:
        state: Of the study, as ``resume.load_state`` returns it.
        tracker: Is asked.

    Raises:
        TransientError: The tracker does not answer, or does not know the study.
    """
    records = Records() if state.records is None else from_plain(Records, state.records)
    return check_blocks(records.measured, tracker.block_counts(state.run_id))
