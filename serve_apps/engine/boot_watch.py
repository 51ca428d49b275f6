"""What is seen of a boot: its progress, by the growth of its log, and what its stop found."""

from __future__ import annotations

from dataclasses import dataclass

from serve_apps.engine.enginelog import BootLog
from serve_apps.engine.errors import BootFailure
from serve_apps.engine.spec import EngineSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class BootProgress:
    """How far a boot is; a log that grows is progress even without an answer."""

    elapsed_s: float
    idle_s: float
    """Seconds since the log last grew."""
    last_line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReport:
    """What a stop found."""

    exit_status: int | None
    """Of the engine, 128 + signal for a signal; None when it never started."""
    left: tuple[str, ...]
    """What outlived the guard and was ended by the supervisor; empty after a clean stop."""
    kept: tuple[str, ...] = ()
    """Shared memory and folders of the boot that are still there, each with the reason."""


class LogWatch:
    """Sees since when a log has stood still, and whether its boot has taken too long.

    Args:
        log: The boot's.
        spec: What is booted, with its limits.
        now_s: When the boot began.
    """

    def __init__(self, log: BootLog, spec: EngineSpec, now_s: float) -> None:
        self._log = log
        self._spec = spec
        self._num_bytes = log.num_bytes()
        self._began_s = self._grew_s = now_s

    def look(self, now_s: float) -> BootProgress:
        """Look at the log, and return how far the boot is."""
        num_bytes = self._log.num_bytes()
        if num_bytes != self._num_bytes:
            self._num_bytes, self._grew_s = num_bytes, now_s
        return BootProgress(
            elapsed_s=now_s - self._began_s,
            idle_s=now_s - self._grew_s,
            last_line=self._log.tail(1),
        )

    def fault(self, seen: BootProgress) -> tuple[BootFailure, str, str] | None:
        """Return kind, reason and cause of a boot that is to be given up; None while it may go on.

        A log that grows is never stalled, however long the boot takes.
        """
        if seen.elapsed_s > self._spec.boot_timeout_s:
            limit = f"no answer within {self._spec.boot_timeout_s:.0f} s"
            return BootFailure.TIMEOUT, f"{limit} (log silent for {seen.idle_s:.0f} s)", ""
        if seen.idle_s > self._spec.boot_silence_s:
            reason = f"its log has not grown for {seen.idle_s:.0f} s"
            return BootFailure.BOOT_STALLED, reason, f"last line: {seen.last_line}"
        return None
