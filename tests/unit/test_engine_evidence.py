"""What ended a trial's engine: by its logs, its replica, Serve, Ray and the kernel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.adapters.engine_evidence import (
    EngineLogs,
    by_ray,
    ended_engine,
    failed_boot,
)
from orchestrator.core.failures import FailureKind
from serve_apps.engine.errors import BootFailure, EngineBootError
from serve_apps.engine.oomkills import OomKills

SERVING = "(APIServer pid=5) INFO 11-29 21:29:01 [launcher.py:46] Application startup complete.\n"
OOM = (
    SERVING + "(EngineCore pid=6) ERROR 11-29 21:30:01 [core.py:1512] torch.OutOfMemoryError: CUDA "
    "out of memory. Tried to allocate 2.00 GiB.\n"
)
CRASH = (
    SERVING + "(EngineCore pid=6) ERROR 11-29 21:30:01 [core.py:1512] RuntimeError: CUDA error: an "
    "illegal memory access was encountered\n"
)
KILLED = (
    SERVING + "(EngineCore pid=6) ERROR 11-29 21:30:01 [multiproc_executor.py:316] Worker proc W-0 "
    "died unexpectedly (exit code: -9), shutting down executor.\n"
)
# The raylet's words in Ray 2.60, as Serve repeats them by the repr of the error.
RAY_OOM = (
    "The deployment failed to start 1 times in a row. See controller logs for details. Error:\n"
    "OutOfMemoryError('1 worker(s) were killed due to the node running low on memory. Memory on "
    "the node was 113.76GB / 119.70GB (0.95), which exceeds the memory usage threshold of 0.95.')"
)


class Kernel:
    """A kernel's counter in a folder."""

    def __init__(self, tmp_path: Path) -> None:
        self._file = tmp_path / "proc" / "vmstat"
        self._file.parent.mkdir()
        self._file.write_text("oom_kill 1\n")
        self.kills = OomKills(self._file.parent)

    def strike(self) -> None:
        self._file.write_text("oom_kill 2\n")


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def told(kind: BootFailure, cause: str = "the cause") -> str:
    return f"Traceback:\n{EngineBootError(kind, 'it exited', cause, 'tail')}"


@pytest.mark.parametrize("kind", BootFailure)
def test_boot_that_failed_is_of_the_kind_that_its_supervisor_says(
    kernel: Kernel, kind: BootFailure
) -> None:
    kernel.strike()

    failure = failed_boot(told(kind), kernel.kills)

    assert (failure.kind, failure.reason, failure.cause) == (
        FailureKind(kind.value),
        "it exited",
        "the cause",
    )


def test_boot_that_rays_monitor_killed_is_not_the_engines_own_lack_of_memory(
    kernel: Kernel,
) -> None:
    failure = failed_boot(RAY_OOM, kernel.kills)

    assert failure.kind is FailureKind.RAY_OOM
    assert "running low on memory" in failure.cause
    assert "RAY_memory_monitor_refresh_ms=0" in failure.sentence


def test_replica_that_died_in_the_boot_without_a_word_is_the_kernels_if_it_counted(
    kernel: Kernel,
) -> None:
    died = "The actor died unexpectedly before finishing this task."
    assert failed_boot(died, kernel.kills).kind is FailureKind.NO_ANSWER

    kernel.strike()

    failure = failed_boot(died, kernel.kills)
    assert failure.kind is FailureKind.OOM_KILLED
    assert failure.cause == died


def test_word_of_the_replica_outdoes_the_log(kernel: Kernel) -> None:
    failure = ended_engine(told(BootFailure.OOM_KILLED), CRASH, kernel.kills)

    assert failure is not None
    assert failure.kind is FailureKind.OOM_KILLED


def test_replica_that_knows_no_reason_names_a_lost_engine(kernel: Kernel) -> None:
    failure = ended_engine(told(BootFailure.EXITED), CRASH, kernel.kills)

    assert failure is not None
    assert (failure.kind, failure.cause) == (FailureKind.ENGINE_LOST, "the cause")


@pytest.mark.parametrize("text", [SERVING, "", CRASH, KILLED])
def test_engine_without_evidence_is_nobodys_guess(kernel: Kernel, text: str) -> None:
    assert ended_engine(None, text, kernel.kills) is None


def test_log_alone_tells_out_of_memory_where_the_replica_is_gone(kernel: Kernel) -> None:
    failure = ended_engine(None, OOM, kernel.kills)

    assert failure is not None
    assert failure.kind is FailureKind.OOM_UNDER_LOAD
    assert failure.cause.startswith("torch.OutOfMemoryError")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (SERVING, FailureKind.OOM_KILLED),
        (KILLED, FailureKind.OOM_KILLED),
        (OOM, FailureKind.OOM_UNDER_LOAD),
        (CRASH, None),
    ],
)
def test_kernel_is_believed_where_the_log_names_no_other_cause(
    kernel: Kernel, text: str, kind: FailureKind | None
) -> None:
    kernel.strike()

    failure = ended_engine(None, text, kernel.kills)

    assert (None if failure is None else failure.kind) is kind


def test_rays_word_is_kept_as_the_cause() -> None:
    failure = by_ray("killed at 0.95")

    assert (failure.kind, failure.cause) == (FailureKind.RAY_OOM, "killed at 0.95")


def test_logs_of_a_trial_are_its_own_and_the_newest_is_last(tmp_path: Path) -> None:
    logs = EngineLogs(str(tmp_path / "trial-[a]-{boot_id}.log"))
    assert (logs.boot_ids(), logs.text(), logs.tail()) == ([], "", "")
    for age, name in enumerate(("trial-[a]-new", "trial-[a]-old", "trial-a-other", "trial-[a]b-x")):
        file = tmp_path / f"{name}.log"
        file.write_text(f"first of {name}\n" + "line\n" * 100)
        os.utime(file, (1000 - age, 1000 - age))

    assert logs.boot_ids() == ["old", "new"]
    assert logs.text().startswith("first of trial-[a]-new")
    assert logs.text("old").startswith("first of trial-[a]-old")
    assert logs.tail() == "\n".join(["line"] * 80)
