"""Which processes belong to a boot, read from /proc. Standard library only (the guard uses it)."""

import os
import signal
import time
from pathlib import Path

_PROC = Path("/proc")
_OURS = b"SPECPILOT_"
_ENDED = "ZX"


def _stat(pid: int) -> list[str] | None:
    """Return what follows a process's name in its ``stat``, or None when it is gone.

    State, parent and process group come first; the 20th is the start in clock ticks.
    """
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The command name stands in brackets and may itself hold spaces and brackets.
    return text[text.rfind(")") + 2 :].split()


def _environ(pid: int) -> list[bytes]:
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def marks(pid: int) -> dict[str, str]:
    """Return our variables in the environment that a process was started with, by name."""
    ours = [entry.decode(errors="replace") for entry in _environ(pid) if entry.startswith(_OURS)]
    return dict(entry.split("=", 1) for entry in ours if "=" in entry)


def _carries(pid: int, mark: bytes) -> bool:
    return mark in _environ(pid)


def identity(pid: int) -> str | None:
    """Return "pid:start" of a running process, which no later process of the id has; else None.

    The start is in clock ticks since the machine booted.
    """
    stat = _stat(pid)
    return None if stat is None or stat[0] in _ENDED else f"{pid}:{stat[19]}"


def parent(pid: int) -> int | None:
    """Return the parent of a process, None when it is gone."""
    stat = _stat(pid)
    return None if stat is None else int(stat[1])


def owner(pid: int) -> tuple[int, str] | None:
    """Return the user and the process id namespace of a process; None when they are not told."""
    folder = _PROC / str(pid)
    try:
        return folder.stat().st_uid, str((folder / "ns" / "pid").readlink())
    except OSError:
        return None


def pids() -> list[int]:
    """Return the ids of all processes."""
    return [int(entry) for entry in os.listdir(_PROC) if entry.isdigit()]  # noqa: PTH208 -- names only; Path objects cost more


def _running() -> dict[int, tuple[int, int]]:
    """Return parent and group of every process that is not a zombie."""
    found = {}
    for pid in pids():
        stat = _stat(pid)
        if stat is not None and stat[0] not in _ENDED:
            found[pid] = (int(stat[1]), int(stat[2]))
    return found


def members(group: int | None, mark: str | None) -> list[int]:
    """Return the running processes of a boot, without the calling one.

    A process belongs to it by its process group, by `mark` in the environment it was started with,
    or by a parent that belongs to it.

    Args:
        group: Process group of the boot, or None.
        mark: "NAME=value" of the boot's environment variable, or None.
    """
    running = _running()
    found = {
        pid
        for pid, (_, its_group) in running.items()
        if its_group == group or (mark is not None and _carries(pid, mark.encode()))
    }
    grew = True
    while grew:
        children = {pid for pid, (parent, _) in running.items() if parent in found} - found
        found |= children
        grew = bool(children)
    return sorted(found - {os.getpid()})


def is_alive(pid: int) -> bool:
    """Return whether a process runs (a zombie does not)."""
    stat = _stat(pid)
    return stat is not None and stat[0] not in _ENDED


def describe(pid: int) -> str:
    """Return "pid: command line" of a process."""
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        words = []
    text = b" ".join(words).decode(errors="replace").strip()
    return f"{pid}: {text[:160] or '?'}"


def send(pids: list[int], number: int) -> None:
    """Send a signal to each process that is still there and may be sent one."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def end(group: int | None, mark: str | None, *, grace_s: float, kill_s: float = 5.0) -> list[str]:
    """End the processes of a boot: SIGTERM, a grace period, SIGKILL.

    Args:
        group: Process group of the boot, or None.
        mark: "NAME=value" of the boot's environment variable, or None.
        grace_s: From SIGTERM to SIGKILL.
        kill_s: How long to wait for the killed to be gone.

    Returns:
        What still runs afterwards.
    """
    left = members(group, mark)
    send(left, signal.SIGTERM)
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, kill_s)):
        deadline = time.monotonic() + wait_s
        while left and time.monotonic() < deadline:
            if number == signal.SIGKILL:
                send(left, number)  # again each time: a member may have forked meanwhile
            time.sleep(0.05)
            left = members(group, mark)
    return [describe(pid) for pid in left]
