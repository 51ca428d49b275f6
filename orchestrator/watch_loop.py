"""Looks in a row, and the study that asks again: a small service that ends on a signal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.events import Emit
from orchestrator.exit_status import ExitStatus
from orchestrator.traffic import weight_entries
from orchestrator.watch import Watcher

STUDY_END_S = 60.0
"""What a study is given to end its trials, as `ray job stop` gives it."""

NOT_STARTED = "was not started"
_MEANINGS: dict[int, str] = {
    ExitStatus.DONE: "done",
    ExitStatus.BAD_INPUT: "bad input",
    ExitStatus.NO_GO: "nothing was promoted",
    ExitStatus.INTERRUPTED: "stopped",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """How the service goes on."""

    every_s: float
    """From the beginning of one look to that of the next."""
    once: bool
    """One look, and no study."""
    study_command: tuple[str, ...] | None
    """What a person would type; None where findings are only reported."""


class WatchLoop:
    """Lets a watcher look until a signal comes.

    Args:
        watcher: Looks in a thread of its own.
        settings: How often, and what follows.
        keep: Stores the watcher's state after each look.
        say: Told what happens.
    """

    def __init__(
        self,
        watcher: Watcher,
        settings: LoopSettings,
        keep: Callable[[Mapping[str, Any]], None],
        say: Emit,
    ) -> None:
        self._watcher = watcher
        self._settings = settings
        self._keep = keep
        self._say = say
        self._study: asyncio.subprocess.Process | None = None
        self._asked_for: tuple[str, ...] = ()
        """Findings that the study under way was started for."""

    async def run(self) -> None:
        """Look until SIGINT or SIGTERM; then end the study under way, if any, and return."""
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        try:
            while not stop.is_set():
                began_s = loop.time()
                await self._step()
                if self._settings.once:
                    return
                left_s = self._settings.every_s - (loop.time() - began_s)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), max(0.0, left_s))
        finally:
            await self._end_study()
            self._keep(self._watcher.state())
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
        self._say("stopped")

    async def _step(self) -> None:
        await asyncio.to_thread(self._watcher.look)
        self._note_end()
        if not self._settings.once and self._settings.study_command and self._study is None:
            await self._ask_again(self._settings.study_command)
        self._keep(self._watcher.state())

    async def _ask_again(self, command: tuple[str, ...]) -> None:
        """Start one study for all findings that have had none; each finding has one at most.

        None is started that would be refused: it is a person who decides about that.
        """
        fresh = [
            finding
            for finding in self._watcher.open
            if not finding.study or finding.study.startswith(NOT_STARTED)
        ]
        if not fresh:
            return
        is_told, reason = await asyncio.to_thread(self._watcher.refusal)
        if not is_told:
            return
        if reason is not None:
            text = f"{NOT_STARTED}: {reason}"
            self._note(text, [item.finding_id for item in fresh if item.study != text])
            return
        is_traffic = any(finding.kind == "traffic" for finding in self._watcher.open)
        shares = self._watcher.shares if is_traffic else None
        typed = (*command, *([] if shares is None else [weights_override(shares)]))
        self._asked_for = tuple(finding.finding_id for finding in fresh)
        # In a session of its own: a Ctrl-C at the terminal is the watcher's to pass on.
        self._study = await asyncio.create_subprocess_exec(*typed, start_new_session=True)
        self._note(f"started: {' '.join(typed[1:])}", self._asked_for)

    def _note_end(self) -> None:
        if self._study is not None and self._study.returncode is not None:
            status = self._study.returncode
            meaning = _MEANINGS.get(status, "failed")
            self._note(f"ended with status {status}, {meaning}", self._asked_for)
            self._study, self._asked_for = None, ()

    def _note(self, text: str, finding_ids: Sequence[str]) -> None:
        if finding_ids:
            self._say(f"the study that asks again {text}")
        for finding_id in finding_ids:
            self._watcher.note_study(finding_id, text)

    async def _end_study(self) -> None:
        self._note_end()
        study = self._study
        if study is None:
            return
        self._say("ending the study that asks again")
        study.send_signal(signal.SIGINT)
        try:
            await asyncio.wait_for(study.wait(), STUDY_END_S)
        except TimeoutError:
            study.kill()
            await study.wait()
        self._note(f"was ended with the watcher, status {study.returncode}", self._asked_for)


def weights_override(shares: Mapping[tuple[int, float], float]) -> str:
    """Return the setting by which a study weighs the traffic as it is now.

    Args:
        shares: Of the output tokens by streams and temperature.
    """
    return f"objective.weights=[{', '.join(weight_entries(shares))}]"
