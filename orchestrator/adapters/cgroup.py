"""The memory limit of a container; ``/proc/meminfo`` tells of the whole machine inside of one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from orchestrator.adapters.procfs import read_text

# Version 1 writes the largest number of whole pages where there is no limit.
_NO_LIMIT = 1 << 60
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


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
    for line in read_text(proc / "self" / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            # A hybrid machine has version 2 in a folder of its own, without memory in it.
            yield from _of_groups(mount, path, _V2)
        elif "memory" in controllers.split(","):
            yield from _of_groups(mount / "memory", path, _V1)


def _of_groups(mount: Path, path: str, names: tuple[str, str, str]) -> Iterator[int]:
    # A container may be told its path on the host, where its own mount has no such folder.
    own = PurePosixPath("/", path)
    for group in (own, *own.parents):
        folder = mount / group.relative_to("/")
        limit, used = _number(folder / names[0]), _number(folder / names[1])
        if limit is not None and used is not None and limit < _NO_LIMIT:
            yield max(0, limit - used + _stat(folder / "memory.stat", names[2]))


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
