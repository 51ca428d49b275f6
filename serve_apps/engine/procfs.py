"""Which processes belong to a boot, read from /proc. Standard library only (the guard uses it)."""

import os
import signal
import time
from pathlib import Path

_PROC = Path("/proc")


def _stat(pid: int) -> tuple[str, int, int] | None:
    """Return state, parent and process group of a process, or None when it is gone."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The command name stands in brackets and may itself hold spaces and brackets.
    state, parent, group = text[text.rfind(")") + 2 :].split()[:3]
    return state, int(parent), int(group)


def _carries(pid: int, mark: bytes) -> bool:
    try:
        return mark in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _running() -> dict[int, tuple[int, int]]:
    """Return parent and group of every process that is not a zombie."""
    found = {}
    for entry in os.listdir(_PROC):  # noqa: PTH208 -- names only; Path objects cost more
        stat = _stat(int(entry)) if entry.isdigit() else None
        if stat is not None and stat[0] not in "ZX":
            found[int(entry)] = stat[1:]
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
    return stat is not None and stat[0] not in "ZX"


def describe(pid: int) -> str:
    """Return "pid: command line" of a process."""
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        words = []
    text = b" ".join(words).decode(errors="replace").strip()
    return f"{pid}: {text[:160] or '?'}"


def send(pids: list[int], number: int) -> None:
    """Send a signal to each process that is still there."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
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
