"""How often the kernel's out-of-memory killer has struck, by its own counters."""

from __future__ import annotations

from pathlib import Path

from serve_apps.engine.cgroups import memory_groups

_PROC = Path("/proc")
_FILES = {1: "memory.oom_control", 2: "memory.events"}
"""By version of the control groups."""


class OomKills:
    """The kills since it was made."""

    def __init__(self, proc: Path = _PROC) -> None:
        self._proc = proc
        self._before = oom_kills(proc)

    def have_risen(self) -> bool:
        """Return whether there was one; False where the kernel does not say."""
        now = oom_kills(self._proc)
        return now is not None and self._before is not None and now > self._before


def oom_kills(proc: Path = _PROC) -> int | None:
    """Return the kills in this process's memory control group, else on the whole machine.

    The group's counter is the sharper one: a machine's other containers do not move it. Version 2
    has it in ``memory.events``, version 1 in ``memory.oom_control``; kernels from 4.13 on.

    Args:
        proc: Where the kernel's process file system is; ``sys/fs/cgroup`` lies beside it.

    Returns:
        Kills since the group was made or the machine started; None when the kernel does not say.
    """
    mount = proc.parent / "sys" / "fs" / "cgroup"
    for version, folder, group in memory_groups(_text(proc / "self" / "cgroup"), mount):
        for file in (folder / group / _FILES[version], folder / _FILES[version]):
            found = _counter(file)
            if found is not None:
                return found
    return _counter(proc / "vmstat")


def _counter(file: Path) -> int | None:
    for line in _text(file).splitlines():
        key, _, value = line.partition(" ")
        if key == "oom_kill" and value.strip().isdecimal():
            return int(value)
    return None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
