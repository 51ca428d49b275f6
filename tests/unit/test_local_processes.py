"""The processes of a local cluster are found and ended, and nobody else's."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.local.processes import (
    TAG,
    PortInUseError,
    Server,
    end_group,
    end_members,
    kill_all_but,
    members,
    reap,
    require_free,
    start_server,
    tagged,
)
from serve_apps.engine import procfs

SLEEP = "import time; time.sleep(600)"
UNTAGGED_CHILD = f"""
import os, subprocess, sys, time
env = {{k: v for k, v in os.environ.items() if k != {TAG!r}}}
child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}], env=env)
print(child.pid, flush=True)
time.sleep(600)
"""


def start(code: str, tag: str, folder: Path) -> Server:
    env = {**os.environ, TAG: tag}
    return start_server(
        "server", [sys.executable, "-c", code], env=env, log=folder / "log", cwd=folder
    )


@pytest.fixture
def neighbour() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", SLEEP], env={**os.environ, TAG: "theirs"})
    yield process
    process.kill()
    process.wait()


def wait_for(path: Path) -> str:
    deadline = time.monotonic() + 20
    while not path.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return path.read_text()


def test_members_without_the_tag_are_found_by_their_session_and_ended(
    tmp_path: Path, neighbour: subprocess.Popen[bytes]
) -> None:
    server = start(UNTAGGED_CHILD, "ours", tmp_path)
    child = int(wait_for(tmp_path / "log"))

    assert tagged("ours") == [server.process.pid]
    assert members("ours") == sorted([server.process.pid, child])

    session = frozenset({os.getsid(child)})

    assert end_members("ours", grace_s=10) == []
    reap([server])
    assert members("ours", session) == []
    assert neighbour.poll() is None


def test_member_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1); {SLEEP}"
    server = start(code, "stubborn", tmp_path)
    wait_for(tmp_path / "log")

    assert end_members("stubborn", grace_s=0.5) == []
    reap([server])
    assert server.process.returncode == -9


def test_all_but_one_session_are_killed_at_once(tmp_path: Path) -> None:
    code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1); {SLEEP}"
    spared, other = (start(code, "power", tmp_path) for _ in range(2))
    wait_for(tmp_path / "log")

    assert kill_all_but("power", spared.process.pid) == []
    assert members("power") == [spared.process.pid]
    assert other.process.wait() == -signal.SIGKILL
    assert end_members("power", grace_s=0.1) == []
    reap([spared])


def test_group_is_ended_with_its_leader(tmp_path: Path) -> None:
    server = start(UNTAGGED_CHILD, "group", tmp_path)
    child = int(wait_for(tmp_path / "log"))

    end_group(server.process, grace_s=10)

    assert server.process.returncode == -signal.SIGTERM
    assert not procfs.is_alive(child)


def test_port_in_use_names_the_address_and_the_key() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(PortInUseError, match=rf"127.0.0.1:{port}.*HTTP_PORT=PORT"):
            require_free("127.0.0.1", port, "HTTP_PORT")
