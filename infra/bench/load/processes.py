"""Processes of the benchmark: the server, and a tool with the CPU time of all its children."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from infra.bench.load.cells import MODEL, Load
from infra.bench.load.tools import PROJECT
from infra.bench.load.truth import Answered, read_truth

START_TIMEOUT_S = 30.0
POLL_S = 0.02


class ToolError(Exception):
    """A tool or the server did not do what it was started for; the text says what happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one run of a tool took."""

    cpu_s: float
    """User and system time of the process and of all its children that it waited for."""
    wall_s: float


class Server:
    """A running server; hands out the truth about the requests since the last question."""

    def __init__(self, url: str, truth: Path) -> None:
        self.url = url
        self._truth = truth
        self._read = 0

    def answered(self) -> list[Answered]:
        """Return what was answered since the last call."""
        text = self._truth.read_text(encoding="utf-8")
        new, self._read = text[self._read :], len(text)
        return read_truth(new)


@contextmanager
def serving(load: Load, folder: Path) -> Iterator[Server]:
    """Run the server for one cell.

    Raises:
        ToolError: It does not start.
    """
    truth = folder / "truth.jsonl"
    command = [
        sys.executable, "-m", "infra.bench.load.server", "--model", MODEL,
        "--ttft-ms", f"{1000 * load.ttft_s:g}", "--stagger-ms", f"{1000 * load.stagger_s:g}",
        "--gap-ms", f"{1000 * load.gap_s:g}", "--tokens-per-chunk", str(load.tokens_per_chunk),
        "--truth", str(truth),
    ]  # fmt: skip
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, cwd=PROJECT, start_new_session=True
        )
    try:
        yield Server(_address(process, folder / "server.log"), truth)
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        line = process.stdout.readline().decode() if selector.select(START_TIMEOUT_S) else ""
    if not line.startswith("listening on "):
        raise ToolError(f"the server did not start: {tail(log)}")
    return line.removeprefix("listening on ").strip()


def run(
    command: list[str], *, folder: Path, log: Path, environment: Mapping[str, str], limit_s: float
) -> Cost:
    """Run one tool to its end in a group of its own.

    Raises:
        ToolError: It cannot be started, ends badly or takes longer than ``limit_s``.
    """
    env = {**os.environ, "PYTHONPATH": str(PROJECT), **environment}
    started_s = time.monotonic()
    with log.open("wb") as sink:
        try:
            process = subprocess.Popen(
                command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=sink,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise ToolError(f"cannot be started: {error}") from error
    try:
        cpu_s = _wait(process, started_s + limit_s)
    except TimeoutError as error:
        raise ToolError(f"no end within {limit_s:.0f} s; its last words: {tail(log)}") from error
    finally:
        # Also ends what the tool may have left behind.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode != 0:
        raise ToolError(f"ended with {process.returncode}; its last words: {tail(log)}")
    return Cost(cpu_s=cpu_s, wall_s=time.monotonic() - started_s)


def _wait(process: subprocess.Popen[bytes], until_s: float) -> float:
    """Return the CPU seconds of the process and the children it waited for.

    Raises:
        TimeoutError: It was still running; it is ended.
    """
    is_late = False
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            # Popen has not waited itself and must not try.
            process.returncode = os.waitstatus_to_exitcode(status)
            if is_late:
                raise TimeoutError
            return usage.ru_utime + usage.ru_stime
        if not is_late and time.monotonic() > until_s:
            is_late = True
            os.killpg(process.pid, signal.SIGKILL)
        time.sleep(POLL_S)


def tail(log: Path, *, num_chars: int = 400) -> str:
    """Return the end of a log on one line."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return " ".join(text.split())[-num_chars:] or "none"
