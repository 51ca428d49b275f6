"""Progress of a boot by its log, and the kernel's count of what it killed for memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve_apps.engine.boot_watch import LogWatch
from serve_apps.engine.enginelog import BootLog
from serve_apps.engine.errors import BootFailure
from serve_apps.engine.oomkills import OomKills, oom_kills
from serve_apps.engine.spec import EngineSpec


def watched(tmp_path: Path) -> tuple[Path, LogWatch]:
    log = BootLog(tmp_path / "engine.log")
    log.open().close()
    spec = EngineSpec(
        model="/m",
        served_model_name="served",
        log_path=str(log.path),
        boot_timeout_s=100.0,
        boot_silence_s=10.0,
    )
    return log.path, LogWatch(log, spec, 1000.0)


def test_silent_boot_is_stalled_after_its_limit_and_not_before(tmp_path: Path) -> None:
    path, watch = watched(tmp_path)
    path.write_text("compiling\n")
    assert watch.look(1004.0).idle_s == 0.0
    assert watch.fault(watch.look(1014.0)) is None

    fault = watch.fault(watch.look(1014.5))

    assert fault is not None
    kind, reason, cause = fault
    assert kind is BootFailure.BOOT_STALLED
    assert reason == "its log has not grown for 10 s"
    assert cause == "last line: compiling"


def test_boot_whose_log_grows_is_given_up_at_its_deadline_only(tmp_path: Path) -> None:
    """F15: progress by log growth before any kill."""
    path, watch = watched(tmp_path)
    for second in range(0, 100, 9):
        with path.open("a") as file:
            file.write("loading\n")
        assert watch.fault(watch.look(1000.0 + second)) is None

    fault = watch.fault(watch.look(1100.5))

    assert fault is not None
    assert fault[0] is BootFailure.TIMEOUT
    assert "no answer within 100 s" in fault[1]


def write(place: Path, name: str, text: str) -> None:
    place.mkdir(parents=True, exist_ok=True)
    (place / name).write_text(text)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    write(tmp_path / "proc", "vmstat", "oom_kill_other 5\noom_kill 7\nnr_free 3\n")
    return tmp_path / "proc"


def test_kills_are_those_of_the_own_group(proc: Path) -> None:
    write(proc / "self", "cgroup", "0::/pod/engine\n")
    group = proc.parent / "sys/fs/cgroup/pod/engine"
    write(group, "memory.events", "low 0\noom 4\noom_kill 2\noom_group_kill 9\n")

    assert oom_kills(proc) == 2


@pytest.mark.parametrize("place", ["", "docker/abc"], ids=["own mount", "path of the host"])
def test_kills_of_version_1_are_found(proc: Path, place: str) -> None:
    write(proc / "self", "cgroup", "5:cpu:/x\n4:memory:/docker/abc\n0::/\n")
    group = proc.parent / "sys/fs/cgroup/memory" / place
    write(group, "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")

    assert oom_kills(proc) == 3


def test_kills_without_a_group_are_the_machines(proc: Path) -> None:
    assert oom_kills(proc) == 7
    write(proc / "self", "cgroup", "0::/\n")
    assert oom_kills(proc) == 7


def test_kernel_that_does_not_count_says_nothing(tmp_path: Path) -> None:
    assert oom_kills(tmp_path / "proc") is None
    assert not OomKills(tmp_path / "proc").have_risen()


def test_kills_have_risen_when_there_was_one_since(proc: Path) -> None:
    kills = OomKills(proc)
    assert not kills.have_risen()

    write(proc, "vmstat", "oom_kill 8\n")

    assert kills.have_risen()
