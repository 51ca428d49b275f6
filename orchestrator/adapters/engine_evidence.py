"""What ended a trial's engine, by the logs on its node and by what its replica and Serve say."""

from __future__ import annotations

import glob
from pathlib import Path

from orchestrator.core.failures import Failure, FailureKind
from orchestrator.core.secrecy import redact_text
from serve_apps.engine.enginelog import (
    BootLog,
    Phase,
    failure_kind,
    is_killed,
    names_error,
    root_cause,
)
from serve_apps.engine.errors import BootFailure, boot_error_from_text
from serve_apps.engine.oomkills import OomKills

TAIL_LINES = 80
MAX_MESSAGE_CHARS = 2000
RAY_OOM_WORDS = "due to the node running low on memory"
"""What the raylet of Ray 2.60 says of workers that its memory monitor killed; Serve repeats it."""

_PLACEHOLDER = "{boot_id}"


class EngineLogs:
    """The logs of one trial's boots. The engine runs on the node of its trial.

    They need no replica, so they outlive one that died or was never made.

    Args:
        log_path: ``EngineSpec.log_path``; the boot's id stands in the file's name.
    """

    def __init__(self, log_path: str) -> None:
        self._before, _, self._after = log_path.partition(_PLACEHOLDER)

    def boot_ids(self) -> list[str]:
        """Return the boots that have a log, the oldest first; Serve may have started several."""
        pattern = f"{glob.escape(self._before)}*{glob.escape(self._after)}"
        files = sorted(map(Path, glob.glob(pattern)), key=_changed_at)  # noqa: PTH207  absolute
        end = len(self._after)
        return [str(file)[len(self._before) : len(str(file)) - end] for file in files]

    def text(self, boot_id: str | None = None) -> str:
        """Return what a boot wrote, by default the newest; empty where there is none."""
        log = self._log(boot_id)
        return "" if log is None else log.text()

    def tail(self, boot_id: str | None = None) -> str:
        """Return the last lines that a boot wrote, by default the newest."""
        log = self._log(boot_id)
        return "" if log is None else log.tail(TAIL_LINES)

    def _log(self, boot_id: str | None) -> BootLog | None:
        found = [boot_id] if boot_id is not None else self.boot_ids()[-1:]
        return BootLog(Path(f"{self._before}{found[0]}{self._after}")) if found else None


def _changed_at(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _told(kind: FailureKind, reason: str, cause: str = "") -> Failure:
    """Return a failure in the words of an engine, of Serve or of Ray, without secrets."""
    return Failure(kind, redact_text(reason), redact_text(cause))


def failed_boot(message: str, kills: OomKills) -> Failure:
    """Return what an application that did not come up failed of.

    Args:
        message: Of Serve, for the engine's deployment.
        kills: Of the kernel, since the boot began.
    """
    error = boot_error_from_text(message)
    if error is not None:
        return _told(FailureKind(error.kind.value), error.reason, error.cause)
    if RAY_OOM_WORDS in message:
        return by_ray(next(line for line in message.splitlines() if RAY_OOM_WORDS in line))
    said = message.strip()[-MAX_MESSAGE_CHARS:]
    if kills.have_risen():
        return _told(FailureKind.OOM_KILLED, "the engine's replica died", said)
    return _told(FailureKind.NO_ANSWER, f"the engine's application failed: {said}")


def by_ray(cause: str) -> Failure:
    """Return the failure of an engine whose replica Ray's memory monitor killed."""
    return _told(FailureKind.RAY_OOM, "its replica was killed", cause[:MAX_MESSAGE_CHARS])


def ended_engine(told: str | None, text: str, kills: OomKills) -> Failure | None:
    """Return what ended an engine that had come up; None where no evidence names it.

    Args:
        told: The text of its replica's error; None where the replica is gone, or says it runs.
        text: The engine's log.
        kills: Of the kernel, since before it was booted.
    """
    error = None if told is None else boot_error_from_text(told)
    if error is not None and error.kind is not BootFailure.EXITED:
        return _told(FailureKind(error.kind.value), error.reason, error.cause)
    # A server may outlive its engine core for a while, and a killed replica tells nothing.
    cause = root_cause(text)
    is_silent = error is None and not names_error(text)
    is_oom_killed = (is_killed(text, None) or is_silent) and kills.have_risen()
    kind = failure_kind(text, cause, phase=Phase.LOAD, is_oom_killed=is_oom_killed)
    if kind is not BootFailure.EXITED:
        reason = "the engine ended after it was ready" if error is None else error.reason
        return _told(FailureKind(kind.value), reason, cause)
    if error is not None:
        return _told(FailureKind.ENGINE_LOST, error.reason, error.cause)
    return None
