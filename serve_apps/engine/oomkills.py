"""How often the kernel's out-of-memory killer has struck, by its own counters."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

_PROC = Path("/proc")


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
    for line in _text(proc / "self" / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            found = _of_group(mount, path, "memory.events")
        elif "memory" in controllers.split(","):
            found = _of_group(mount / "memory", path, "memory.oom_control")
        else:
            continue
        if found is not None:
            return found
    return _counter(proc / "vmstat")


def _of_group(mount: Path, path: str, name: str) -> int | None:
    own = PurePosixPath("/", path).relative_to("/")
    # A container may be told its path on the host, where its own mount has no such folder.
    found = _counter(mount / own / name)
    return _counter(mount / name) if found is None else found


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
