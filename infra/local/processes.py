"""Start servers as process groups that can be found and ended by our own tag."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

TAG = "SPECPILOT_LOCAL_ID"
"""Environment variable that every process of one local cluster carries."""


NO_SESSION = -1
HANG_UPS = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end what runs a local cluster as Ctrl-C does."""


class StartError(Exception):
    """A server of the local cluster did not come up."""


class PortInUseError(StartError):
    """Somebody else listens on a port that was asked for."""


class StateDirError(StartError):
    """The folder for the cluster's state cannot be written, or another cluster uses it."""


@dataclass(slots=True)
class Server:
    """One server process and the group that it leads."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self.process.poll() is None


def start_server(
    name: str, command: Sequence[str], *, env: Mapping[str, str], log: Path, cwd: Path
) -> Server:
    """Start a command as the leader of its own session, its output going to ``log``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as sink:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )
    return Server(name=name, process=process, log=log)


def tagged(tag: str) -> list[int]:
    """Return the ids of the processes, this one excepted, whose environment carries the tag."""
    needle = f"{TAG}={tag}".encode()
    return sorted(pid for pid in _pids() if needle in _read(pid, "environ").split(b"\0"))


def members(tag: str, sessions: AbstractSet[int] = frozenset()) -> list[int]:
    """Return the processes of one local cluster.

    Some of Ray's processes write their title over their environment, so that the tag cannot be
    read there; they are found by the session of one that carries it. Sessions are made for the
    cluster's servers alone.

    Args:
        tag: The cluster's tag.
        sessions: Sessions known to be the cluster's, whoever of them is still alive.
    """
    own = tagged(tag)
    theirs = (sessions | {_session(pid) for pid in own}) - {os.getsid(0), NO_SESSION}
    return sorted({*own, *(pid for pid in _pids() if _session(pid) in theirs)})


def end_members(tag: str, *, grace_s: float = 15.0) -> list[int]:
    """End all processes of one local cluster; return those that survived SIGKILL.

    SIGTERM first, so that engine guards and servers can clean up, then SIGKILL by id.
    """
    sessions = frozenset(_session(pid) for pid in tagged(tag))
    for sent in (signal.SIGTERM, signal.SIGKILL):
        for pid in members(tag, sessions):
            try:
                os.kill(pid, sent)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + grace_s
        while members(tag, sessions) and time.monotonic() < deadline:
            time.sleep(0.1)
        if not members(tag, sessions):
            break
    return members(tag, sessions)


def kill_all_but(tag: str, spared: int) -> None:
    """SIGKILL a cluster's processes until none is left but those of one session.

    Args:
        tag: The cluster's tag.
        spared: Leader of that session.
    """
    sessions = frozenset(_session(pid) for pid in tagged(tag)) - {spared}
    while found := [
        pid for pid in members(tag, sessions) if _session(pid) not in {spared, NO_SESSION}
    ]:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def _pids() -> list[int]:
    names = (entry.name for entry in Path("/proc").iterdir())
    return [int(name) for name in names if name.isdigit() and int(name) != os.getpid()]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _session(pid: int) -> int:
    """Return the session of a living process; NO_SESSION for a zombie or one that is gone."""
    # After the name, which is in brackets and may hold anything: state, parent, group, session.
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return NO_SESSION if len(fields) < 4 or fields[0] == b"Z" else int(fields[3])


def reap(servers: Sequence[Server]) -> None:
    """Collect the exit statuses of ended servers, so that none stays a zombie."""
    for server in servers:
        try:
            server.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            server.process.kill()
            server.process.wait()


def require_free(host: str, port: int, key: str) -> None:
    """Check that nobody listens on a port.

    Raises:
        PortInUseError: Somebody does; the text names the address and the key to change.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PortInUseError(
                f"{host}:{port}: the port is in use; free it or choose another with {key}=PORT"
            ) from error


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that was free a moment ago."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def tail(path: Path, lines: int = 15) -> str:
    """Return the last lines of a log; empty when there is none."""
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


def take_interrupts() -> None:
    """Have Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt in this process."""
    # A shell starts a command in the background with SIGINT ignored; nohup asks for no SIGHUP.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in HANG_UPS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


def ignore_interrupts() -> None:
    """Leave the end of a cluster alone: a second Ctrl-C would keep what the first began to end."""
    for number in (signal.SIGINT, *HANG_UPS):
        signal.signal(number, signal.SIG_IGN)
