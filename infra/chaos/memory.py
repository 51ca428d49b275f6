"""A memory control group for one node, in which the kernel can be made to kill an engine."""

from __future__ import annotations

import contextlib
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup/memory")
_NO_LIMIT = -1
_STEP_BYTES = 16 << 20
_ROOM_BYTES = 256 << 10
_FIRST_TO_GO = 1000
_SPARED = 0
PRESS_S = 10.0
"""Longest time until the kernel has killed."""


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A memory control group of version 1; needs root."""

    name: str = field(default_factory=lambda: f"sp-{uuid.uuid4().hex[:8]}")

    @property
    def folder(self) -> Path:
        """Where the kernel shows it."""
        return _MOUNT / self.name

    @property
    def prefix(self) -> Sequence[str]:
        """Words before a command that is to run in it."""
        return sys.executable, str(Path(__file__).with_name("into_group.py")), str(self.folder)

    def make(self) -> None:
        """Make it.

        Raises:
            OSError: This machine has no such groups, or this user may make none.
        """
        self.folder.mkdir()
        self.kills()

    def press(self, victims: Sequence[int]) -> bool:
        """Leave no memory until the kernel has killed one of the victims; return whether it has.

        The limit goes down until nothing more can be given back; who wants more then makes the
        kernel kill, and it takes the victims first: Ray's workers, which it would take as soon, are
        spared meanwhile.
        """
        before, deadline = self.kills(), time.monotonic() + PRESS_S
        scores = {pid: _score(pid) for pid in self._members()}
        for pid in scores:
            _set_score(pid, _FIRST_TO_GO if pid in victims else _SPARED)
        try:
            while self.kills() == before and time.monotonic() < deadline:
                self._tighten()
                time.sleep(0.02)
        finally:
            self._limit(_NO_LIMIT)
            for pid, score in scores.items():
                _set_score(pid, score)
        return self.kills() > before

    def kills(self) -> int:
        """Return how often the kernel has killed in it."""
        lines = (self.folder / "memory.oom_control").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("oom_kill ")))

    def remove(self) -> None:
        """Remove it, once its processes have gone; what is not there is no error."""
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _members(self) -> list[int]:
        return [int(pid) for pid in (self.folder / "cgroup.procs").read_text().split()]

    def _tighten(self) -> None:
        used = int((self.folder / "memory.usage_in_bytes").read_text())
        try:
            self._limit(used - _STEP_BYTES)
        except OSError:  # EBUSY: all that can be given back has been
            with contextlib.suppress(OSError):
                self._limit(used + _ROOM_BYTES)

    def _limit(self, size: int) -> None:
        (self.folder / "memory.limit_in_bytes").write_text(str(size))


def _score(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return int(_score_file(pid).read_text())
    return None


def _set_score(pid: int, score: int | None) -> None:
    if score is not None:
        with contextlib.suppress(OSError):
            _score_file(pid).write_text(str(score))


def _score_file(pid: int) -> Path:
    return Path("/proc", str(pid), "oom_score_adj")
