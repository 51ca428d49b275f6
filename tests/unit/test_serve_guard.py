from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import serve_apps
from serve_apps.engine import procfs
from serve_apps.engine.spec import BOOT_ID_VARIABLE

_SOURCE = str(Path(serve_apps.__file__).parents[1])
_GUARD = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from serve_apps.engine.guard import main; sys.exit(main(sys.argv[2:]))"
)
# A supervisor that starts a guard as EngineProcess does, tells its id, and then only waits.
_SUPERVISOR = """
import subprocess, sys, time
guard = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         start_new_session=True)
guard.stdout.readline()
print(guard.pid, flush=True)
time.sleep(600)
"""
# An engine whose core ignores SIGTERM, and with a helper that left the process group.
_STUBBORN = "trap '' TERM; setsid sleep 601 & sleep 602 & sleep 603; sleep 604"


class Boot:
    """Starts guards that carry one mark, and finds what they left."""

    def __init__(self, folder: Path = Path("/nonexistent")) -> None:
        self.folder = folder
        self.mark = f"{BOOT_ID_VARIABLE}={uuid.uuid4().hex}"
        name, value = self.mark.split("=")
        self.env = {**os.environ, name: value}

    def command(self, script: str, grace_s: float = 0.3) -> list[str]:
        shell = ["/bin/sh", "-c", script]
        told = [str(grace_s), self.mark, str(self.folder), *shell]
        return [sys.executable, "-I", "-S", "-c", _GUARD, _SOURCE, *told]

    def guard(self, script: str) -> subprocess.Popen[bytes]:
        guard = subprocess.Popen(
            self.command(script),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self.env,
            start_new_session=True,
        )
        assert guard.stdout is not None
        with guard.stdout:
            guard.stdout.readline()
        return guard

    def members(self) -> list[int]:
        return procfs.members(None, self.mark)


@pytest.fixture
def boot(tmp_path: Path) -> Iterator[Boot]:
    found = Boot(tmp_path / "sockets")
    (found.folder / "below").mkdir(parents=True)
    (found.folder / "below" / "file").touch()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(found.folder / "core"))
    yield found
    assert not procfs.end(None, found.mark, grace_s=0.1)


def _until(what: Callable[[], bool], within_s: float = 15.0) -> bool:
    deadline = time.monotonic() + within_s
    while not what() and time.monotonic() < deadline:
        time.sleep(0.02)
    return what()


def _close(guard: subprocess.Popen[bytes]) -> int:
    assert guard.stdin is not None
    guard.stdin.close()
    return guard.wait(20)


def test_guard_pipe_closed_ends_even_a_stubborn_engine_and_its_helpers(boot: Boot) -> None:
    guard = boot.guard(_STUBBORN)
    assert _until(lambda: len(boot.members()) >= 5)
    assert _close(guard) == 128 + signal.SIGKILL
    assert not boot.members()
    assert not boot.folder.exists()


def test_guard_supervisor_killed_leaves_nothing(boot: Boot) -> None:
    supervisor = subprocess.Popen(
        [sys.executable, "-c", _SUPERVISOR, *boot.command(_STUBBORN)],
        stdout=subprocess.PIPE,
        env=boot.env,
    )
    assert supervisor.stdout is not None
    with supervisor.stdout as out:
        out.readline()
    assert _until(lambda: len(boot.members()) >= 5)
    supervisor.kill()
    supervisor.wait(10)
    assert _until(lambda: not boot.members())
    assert _until(lambda: not boot.folder.exists())


def test_guard_engine_ends_by_itself_gives_its_status_and_ends_the_rest(boot: Boot) -> None:
    guard = boot.guard("sleep 605 & exit 7")
    assert guard.wait(20) == 7
    assert not boot.members()
    assert not boot.folder.exists()
    _close(guard)


def test_guard_sigterm_ends_the_engine(boot: Boot) -> None:
    guard = boot.guard("sleep 606")
    guard.terminate()
    assert guard.wait(20) == 128 + signal.SIGTERM
    _close(guard)


def test_guard_killed_itself_takes_the_engine_with_it(boot: Boot) -> None:
    guard = boot.guard("exec sleep 607")
    guard.kill()
    guard.wait(10)
    assert _until(lambda: not boot.members())
    _close(guard)


def test_guard_missing_interpreter_is_told_by_status(boot: Boot) -> None:
    guard = boot.guard("exec /no/such/file")
    assert guard.wait(20) == 127
    _close(guard)


def test_members_of_another_boot_are_left_alone(boot: Boot) -> None:
    other = Boot()
    mine, neighbour = boot.guard("sleep 608"), other.guard("sleep 609")
    _close(mine)
    assert other.members()
    _close(neighbour)
    assert not other.members()
