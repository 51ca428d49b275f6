"""Which processes belong to a boot, read from /proc. Standard library only (the guard uses it)."""

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

KILL_S = 5.0
"""How long the killed may take to be gone."""
_POLL_S = 0.05
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


def ancestors(pid: int) -> list[int]:
    """Return a process's parents, the nearest first."""
    found: list[int] = []
    while (above := parent(pid)) is not None and above > 0:
        found.append(above)
        pid = above
    return found


def session(pid: int) -> int | None:
    """Return the session of a running process, None for a zombie or one that is gone."""
    stat = _stat(pid)
    return None if stat is None or stat[0] in _ENDED else int(stat[3])


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


def command_line(pid: int) -> str:
    """Return a process's words with a space between; empty when it is gone."""
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        words = []
    return b" ".join(words).decode(errors="replace").strip()


def describe(pid: int) -> str:
    """Return "pid: command line" of a process."""
    return f"{pid}: {command_line(pid)[:160] or '?'}"


def end(group: int | None, mark: str | None, *, grace_s: float) -> list[str]:
    """End the processes of a boot; see ``end_all``.

    Args:
        group: Process group of the boot, or None.
        mark: "NAME=value" of the boot's environment variable, or None.
        grace_s: From SIGTERM to SIGKILL.
    """
    return end_all(lambda: map(identity, members(group, mark)), grace_s=grace_s)


def end_all(look: Callable[[], Iterable[str | None]], *, grace_s: float) -> list[str]:
    """End processes: SIGTERM, a grace period, SIGKILL.

    Args:
        look: Returns the identities of those that are to end and still run.
        grace_s: From SIGTERM to SIGKILL.

    Returns:
        Which still run ``KILL_S`` afterwards, by ``describe``.
    """
    left = [found for found in look() if found]
    _send(left, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        left = [found for found in look() if found]
    return kill_all(look) if left else []


def kill_all(look: Callable[[], Iterable[str | None]]) -> list[str]:
    """SIGKILL processes until none is left, at most for ``KILL_S``.

    Args:
        look: Returns the identities of those that are to end and still run.

    Returns:
        Which still run afterwards, by ``describe``.
    """
    deadline = time.monotonic() + KILL_S
    while (left := [found for found in look() if found]) and time.monotonic() < deadline:
        _send(left, signal.SIGKILL)  # again each time: a member may have forked meanwhile
        time.sleep(_POLL_S)
    return [describe(_pid(found)) for found in left]


def _pid(process: str) -> int:
    return int(process.partition(":")[0])


def _send(processes: list[str], number: int) -> None:
    """Send a signal to these very processes; what has got the id of one meanwhile gets none."""
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            handle = os.pidfd_open(_pid(process))
            try:
                if identity(_pid(process)) == process:
                    signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)
