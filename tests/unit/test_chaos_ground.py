"""What chaos takes away from a site: a disk, and memory by the kernel itself; needs root."""

from __future__ import annotations

import contextlib
import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.chaos.disk import SIZE_MIB, SmallDisk
from infra.chaos.memory import MemoryGroup

HOLDER = """
import sys
held = bytearray(64 << 20)
print("up", flush=True)
for _ in sys.stdin:
    held += bytes(1 << 20)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    made = SmallDisk(tmp_path / "state")
    try:
        made.make()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system of its own: {error}")
    yield made
    made.remove()


@pytest.fixture
def group() -> Iterator[MemoryGroup]:
    made = MemoryGroup()
    try:
        made.make()
    except OSError as error:
        pytest.skip(f"no memory control group of its own: {error}")
    yield made
    made.remove()


def test_disk_that_is_full_takes_no_byte_more_until_it_is_free(disk: SmallDisk) -> None:
    file = disk.folder / "state.json"
    file.write_bytes(b"before")
    disk.fill()

    with pytest.raises(OSError, match="No space left") as caught:
        file.write_bytes(bytes(8192))  # its first page has room
    assert caught.value.errno == errno.ENOSPC
    disk.free()
    file.write_bytes(bytes(SIZE_MIB << 19))


def test_disk_that_is_removed_leaves_the_folder(disk: SmallDisk) -> None:
    (disk.folder / "state.json").write_bytes(b"gone with it")

    disk.remove()

    assert [*disk.folder.iterdir()] == []


@contextlib.contextmanager
def holder(group: MemoryGroup) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process in the group that holds memory and wants more with every line it is sent."""
    command = [*group.prefix, sys.executable, "-c", HOLDER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield process
        process.kill()


def test_kernel_kills_the_victim_and_the_group_counts_it(group: MemoryGroup) -> None:
    with holder(group) as spared, holder(group) as victim:
        for process in (spared, victim):
            assert process.stdin is not None
            # More than is read before the kill; the pipe holds it, so that both want memory.
            process.stdin.write(b"\n" * 4000)
            process.stdin.flush()

        assert group.press([victim.pid])

        assert victim.wait(timeout=10) == -9
        assert spared.poll() is None
    assert group.kills() == 1


def test_group_without_victims_that_want_memory_is_let_go(
    group: MemoryGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.chaos.memory.PRESS_S", 0.2)

    assert not group.press([])

    assert group.kills() == 0
