from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

import serve_apps
from serve_apps.engine import procfs
from serve_apps.engine.segments import read_kept, segments_file
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


# An engine whose first thread ends before the others, as that of a killed one may.
_SLOW_TO_END = """
import ctypes, os, threading, time
threading.Thread(target=lambda: (time.sleep(1.0), os._exit(7))).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""


class Boot:
    """Starts guards that carry one mark, and finds what they left."""

    def __init__(self, folder: Path = Path("/nonexistent")) -> None:
        self.folder = folder
        self.record = ""
        self.mark = f"{BOOT_ID_VARIABLE}={uuid.uuid4().hex}"
        name, value = self.mark.split("=")
        self.env = {**os.environ, name: value}

    def command(self, script: str, grace_s: float = 0.3) -> list[str]:
        shell = ["/bin/sh", "-c", script]
        told = [str(grace_s), self.mark, str(self.folder), self.record, *shell]
        return [sys.executable, "-I", "-S", "-c", _GUARD, _SOURCE, *told]

    def guard(
        self, script: str, *, stderr: int | BinaryIO = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        guard = subprocess.Popen(
            self.command(script),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
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


def test_guard_tells_the_status_of_an_engine_whose_threads_end_one_by_one(boot: Boot) -> None:
    guard = boot.guard(f"exec {sys.executable} -c {shlex.quote(_SLOW_TO_END)}")
    assert _until(lambda: not boot.members()[1:])
    assert _close(guard) == 7


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


# An engine that maps a shared file and closes it, as vLLM does; a child does the work.
_SHARING = """
import mmap, os, sys, time
kept = []
for name in sys.argv[1:]:
    with open(name, "w+b") as file:
        file.truncate(4096)
        kept.append(mmap.mmap(file.fileno(), 4096))
time.sleep(600)
"""


def _sharing(*paths: Path) -> str:
    return shlex.join([sys.executable, "-c", _SHARING, *map(str, paths)])


@pytest.fixture
def shared() -> Iterator[Callable[[], Path]]:
    """Name files in /dev/shm as Python names its own; all are gone afterwards."""
    made: list[Path] = []

    def name() -> Path:
        made.append(Path(f"/dev/shm/psm_{uuid.uuid4().hex[:8]}"))
        return made[-1]

    yield name
    for path in made:
        path.unlink(missing_ok=True)


def test_guard_removes_shared_memory_of_a_killed_engine_and_no_neighbours(
    boot: Boot, shared: Callable[[], Path], tmp_path: Path
) -> None:
    boot.record = str(tmp_path / "boot.json")
    mine, theirs, early = shared(), shared(), shared()
    early.touch()
    neighbour = subprocess.Popen([sys.executable, "-c", _SHARING, str(theirs)])
    guard = boot.guard(f"{_sharing(mine, early)} & wait")
    assert _until(lambda: len(read_kept(segments_file(boot.record))) == 1)
    assert theirs.exists()

    for pid in boot.members():
        if pid != guard.pid:
            os.kill(pid, signal.SIGKILL)
    guard.wait(20)

    assert not mine.exists()
    assert theirs.exists()
    assert early.exists()
    _close(guard)
    neighbour.kill()
    neighbour.wait()


def test_guard_leaves_shared_memory_that_a_neighbour_uses_and_keeps_the_record(
    boot: Boot, shared: Callable[[], Path], tmp_path: Path
) -> None:
    record = tmp_path / "boot.json"
    record.touch()
    boot.record = str(record)
    mine = shared()
    guard = boot.guard(_sharing(mine))
    assert _until(lambda: len(read_kept(segments_file(boot.record))) == 1)
    with mine.open("rb"):  # this process is the neighbour
        _close(guard)

        assert mine.exists()
        assert record.exists()


def test_guard_says_of_shared_memory_that_it_cannot_be_told_whose_it_is(
    boot: Boot, shared: Callable[[], Path], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    nobodys = shared()
    with log.open("wb") as sink:
        guard = boot.guard("sleep 610", stderr=sink)
        nobodys.touch()
        _close(guard)

    assert nobodys.exists()
    assert f"left behind: {nobodys}: whose it is cannot be told" in log.read_text()


def test_members_of_another_boot_are_left_alone(boot: Boot) -> None:
    other = Boot()
    mine, neighbour = boot.guard("sleep 608"), other.guard("sleep 609")
    _close(mine)
    assert other.members()
    _close(neighbour)
    assert not other.members()
