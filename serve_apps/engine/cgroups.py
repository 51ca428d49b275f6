"""The control groups of a process, as ``/proc/self/cgroup`` lists them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def memory_groups(listed: str, mount: Path) -> Iterator[tuple[int, Path, PurePosixPath]]:
    """Yield version, mount and path of each control group that counts the process's memory.

    A hybrid machine has version 2 in a folder of its own, without memory in it. A container may be
    told its path on the host, where its own mount has no such folder: then the mount is its group.

    Args:
        listed: Text of ``/proc/self/cgroup``.
        mount: Where control groups are: ``/sys/fs/cgroup``.
    """
    for line in listed.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        group = PurePosixPath("/", path).relative_to("/")
        if number == "0" and not controllers:
            yield 2, mount, group
        elif "memory" in controllers.split(","):
            yield 1, mount / "memory", group
