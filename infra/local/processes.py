"""Start servers as process groups that can be found and ended by our own tag."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from serve_apps.engine import procfs
from serve_apps.engine.sockets import is_port_free

TAG = "SPECPILOT_LOCAL_ID"
"""Environment variable that every process of one local cluster carries."""


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
    return sorted(pid for pid in _others() if procfs.marks(pid).get(TAG) == tag)


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
    theirs = (sessions | _sessions(own)) - {os.getsid(0)}
    return sorted({*own, *(pid for pid in _others() if procfs.session(pid) in theirs)})


def end_members(tag: str, *, grace_s: float = 15.0) -> list[str]:
    """End all processes of one local cluster; return those that survived SIGKILL, described.

    SIGTERM first, so that engine guards and servers can clean up, then SIGKILL by id.
    """
    sessions = _sessions(tagged(tag))
    return procfs.end_all(lambda: map(procfs.identity, members(tag, sessions)), grace_s=grace_s)


def kill_all_but(tag: str, spared: int) -> list[str]:
    """SIGKILL a cluster's processes but those of one session; return who survived, described.

    Args:
        tag: The cluster's tag.
        spared: Leader of that session.
    """
    sessions = frozenset(_sessions(tagged(tag)) - {spared})

    def look() -> Iterator[str | None]:
        for pid in members(tag, sessions):
            if procfs.session(pid) != spared:
                yield procfs.identity(pid)

    return procfs.kill_all(look)


def end_group(leader: subprocess.Popen[bytes], *, grace_s: float = 20.0) -> None:
    """End the process group that a child of this process leads, and collect its exit status."""
    procfs.end(leader.pid, None, grace_s=grace_s)
    leader.wait()


def _others() -> list[int]:
    return [pid for pid in procfs.pids() if pid != os.getpid()]


def _sessions(pids: Sequence[int]) -> set[int]:
    return {found for found in map(procfs.session, pids) if found is not None}


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
    if not is_port_free(port, host):
        raise PortInUseError(
            f"{host}:{port}: the port is in use; free it or choose another with {key}=PORT"
        )


def tail(path: Path, lines: int = 15) -> str:
    """Return the last lines of a log; empty when there is none."""
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
