"""The memory limit of a container; ``/proc/meminfo`` tells of the whole machine inside of one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from orchestrator.adapters.procfs import read_text
from serve_apps.engine.cgroups import memory_groups

# Version 1 writes the largest number of whole pages where there is no limit.
_NO_LIMIT = 1 << 60
_NAMES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}
"""By version of the control groups: limit, usage, and the line of ``memory.stat``."""


def memory_available(proc: Path) -> int | None:
    """Return the bytes that the control groups of this process still allow.

    Formula: limit - usage + inactive page cache, which is given back at the limit; the least of
    all groups from this process's own to the root.

    Args:
        proc: Where the kernel's process file system is; ``sys/fs/cgroup`` lies beside it.

    Returns:
        Bytes, or None when no group has a limit or none can be read.
    """
    return min(_rooms(proc, proc.parent / "sys" / "fs" / "cgroup"), default=None)


def _rooms(proc: Path, mount: Path) -> Iterator[int]:
    for version, top, own in memory_groups(read_text(proc / "self" / "cgroup"), mount):
        limits, usage, inactive = _NAMES[version]
        for group in (own, *own.parents):
            limit, used = _number(top / group / limits), _number(top / group / usage)
            if limit is not None and used is not None and limit < _NO_LIMIT:
                yield max(0, limit - used + _stat(top / group / "memory.stat", inactive))


def _number(file: Path) -> int | None:
    text = read_text(file).strip()
    return int(text) if text.isascii() and text.isdecimal() else None


def _stat(file: Path, name: str) -> int:
    """Return one line of a group's statistics; 0 without it, which is the careful side."""
    for line in read_text(file).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdecimal():
            return int(value)
    return 0
