"""What an engine's log says: facts in force, and the root cause of a failed boot."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

from serve_apps.engine.errors import BootFailure
from serve_apps.engine.segments import NOTE

_PREFIX = re.compile(
    r"^(?:\((?P<process>[\w.: ]+) pid=\d+\) ?)?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]+\] ?)?"
)
_EXCEPTION = re.compile(r"^(?:\w+\.)*(?P<name>[A-Z]\w*(?:Error|Exception|Exit|Unavailable))(?::|$)")
_ARGPARSE = re.compile(r"^(?:[\w.-]+(?: serve)?: error: |specpilot guard: (?!survived))")
# These only say that another process failed; its own traceback stands further up.
_SECOND_HAND = (
    "Engine core initialization failed",
    "EngineDeadError",
    "WorkerProc initialization failed",
    "Engine core proc",
    "please check the stack trace",
    "See root cause above",
    "KeyboardInterrupt",
    "SystemExit",
)
# By wheels 0.28.0 and 0.32.0: `request_memory` in v1/worker/utils.py, which 0.32.0 has for weights
# held outside, too, and v1/worker/cpu_worker.py.
_STARTUP_CHECK = (
    "less than desired GPU memory utilization",
    "less than the engine's budget after excluding",
    "less than requested memory",
)
# v1/core/kv_cache_utils.py of both.
_KV_CACHE = (
    "No available memory for the cache blocks",
    "larger than the available KV cache memory",
    "Cannot auto-fit max_model_len: not enough GPU memory",
)
# Allocators: torch on a GPU and on a CPU, Python, C++.
_OUT_OF_MEMORY = (
    "OutOfMemoryError",
    "out of memory",
    "MemoryError",
    "bad_alloc",
    "Cannot allocate memory",
    "Not enough memory",
)
# A process that was killed says nothing; vLLM's others say it of an engine core, worker or server
# (v1/utils.py, v1/executor/multiproc_executor.py).
_KILLED = re.compile(r"died (?:unexpectedly|with exit code -9)")
_SIGKILL_STATUS = 128 + signal.SIGKILL
_REFUSALS = ("ValueError", "NotImplementedError", "TypeError", "KeyError", "AssertionError")
_ENGINE_STARTS = "Initializing a V1 LLM engine"

_RUNNERS = (
    ("v2", "Using V2 Model Runner"),
    ("v1", "using the V1 model runner"),
    ("v1", "Using V1 Model Runner"),
)
_VERSION = re.compile(r"\bversion (\d+\.\d+[\w.+-]*)|LLM engine \(v(\d+\.\d+[\w.+-]*)\)")
_ARCHITECTURE = re.compile(r"Resolved architecture: (\w+)")
_KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
_KV_CONCURRENCY = re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x")
_SPECULATION = re.compile(r"SpeculativeConfig\(method='(\w+)'.*?num_spec_tokens=(\d+)\)")
_WEIGHTS = re.compile(r"Model loading took ([\d.]+) GiB")


_TAIL_BYTES = 64 * 1024


class BootLog:
    """The part of a log file that one boot wrote (a restarted replica appends to the same file)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._start = 0

    def open(self) -> BinaryIO:
        """Open the file for the engine to append to; the boot's part begins here."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self.path.open("ab")
        self._start = file.seek(0, os.SEEK_END)
        return file

    def num_bytes(self) -> int:
        """Return how much the boot has written."""
        try:
            return self.path.stat().st_size - self._start
        except FileNotFoundError:
            return 0

    def text(self, *, at_most: int | None = None) -> str:
        """Return what the boot wrote, or its last `at_most` bytes."""
        skip = 0 if at_most is None else max(0, self.num_bytes() - at_most)
        try:
            with self.path.open("rb") as file:
                file.seek(self._start + skip)
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def tail(self, lines: int) -> str:
        """Return the last lines."""
        return "\n".join(self.text(at_most=_TAIL_BYTES).splitlines()[-lines:])


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """Facts from the log; None where it does not say."""

    engine_version: str | None
    model_runner: str | None
    architectures: tuple[str, ...]
    """As resolved, in order: the target's, then the draft's where it has a model of its own."""
    kv_cache_tokens: int | None
    kv_max_concurrency: float | None
    weights_gib: float | None
    speculative_method: str | None
    num_speculative_tokens: int | None


def _last(pattern: re.Pattern[str], text: str) -> str | None:
    found = None
    for match in pattern.finditer(text):
        found = next(group for group in match.groups() if group is not None)
    return found


def parse_facts(text: str) -> LogFacts:
    """Return what the log of one boot says about the configuration in force."""
    tokens, concurrency = _last(_KV_TOKENS, text), _last(_KV_CONCURRENCY, text)
    weights = _last(_WEIGHTS, text)
    speculation = _SPECULATION.findall(text)
    # The last word counts: V2 can be announced by one process and given up by a later one.
    said = [(text.rfind(line), runner) for runner, line in _RUNNERS if line in text]
    return LogFacts(
        engine_version=_last(_VERSION, text),
        model_runner=max(said)[1] if said else None,
        architectures=tuple(_ARCHITECTURE.findall(text)),
        kv_cache_tokens=None if tokens is None else int(tokens.replace(",", "")),
        kv_max_concurrency=None if concurrency is None else float(concurrency),
        weights_gib=None if weights is None else float(weights),
        speculative_method=speculation[-1][0] if speculation else None,
        num_speculative_tokens=int(speculation[-1][1]) if speculation else None,
    )


def _stripped(line: str) -> str:
    return _PREFIX.sub("", line, count=1).rstrip()


def root_cause(text: str) -> str:
    """Return the line of the log that names the root cause of a failed boot, or "".

    The last exception line that does not merely report another process's failure; else the last
    line logged as an error; else the last line.
    """
    lines = map(_stripped, reversed(_own_lines(text)))
    return _error_line(text) or next((line for line in lines if line.strip()), "")


def names_error(text: str) -> bool:
    """Return whether the log has an exception of the engine's own, or a line logged as an error."""
    return bool(_error_line(text))


def _own_lines(text: str) -> list[str]:
    """Return the log's lines without those that its guard wrote."""
    return [line for line in text.splitlines() if not line.startswith(NOTE)]


def _error_line(text: str) -> str:
    own = _own_lines(text)
    lines = [_stripped(line) for line in own]
    for index in reversed(range(len(lines))):
        line = lines[index]
        if _ARGPARSE.match(line):
            return line
        if _EXCEPTION.match(line) and not any(phrase in line for phrase in _SECOND_HAND):
            return _with_details(lines, index)
    for raw in reversed(own):
        match = _PREFIX.match(raw)
        if match is not None and match["level"] in ("ERROR", "CRITICAL") and _stripped(raw):
            return _stripped(raw)
    return ""


def _with_details(lines: list[str], index: int) -> str:
    """Join an exception line that ends without saying why (pydantic) with its next line.

    Without the input that pydantic repeats there: it differs from boot to boot where objects are in
    it, and the same cause must have the same words.
    """
    following = lines[index + 1].strip() if index + 1 < len(lines) else ""
    following = following.partition(" [type=")[0]
    if "validation error" in lines[index] and following:
        return f"{lines[index]}: {following}"
    return lines[index]


class Phase(StrEnum):
    """How far a boot had come when its engine ended."""

    BOOT = "boot"
    FIRST_REQUEST = "first_request"
    """/health had said 200."""
    LOAD = "load"
    """The first completion had come."""


_OOM_OF_PHASE = {
    Phase.BOOT: BootFailure.OUT_OF_MEMORY,
    Phase.FIRST_REQUEST: BootFailure.OOM_FIRST_REQUEST,
    Phase.LOAD: BootFailure.OOM_UNDER_LOAD,
}


def is_killed(text: str, exit_status: int | None) -> bool:
    """Return whether a process of the engine ended by SIGKILL, by its status or by its log.

    Args:
        text: The log of this boot.
        exit_status: Of the API server; None where nobody knows it.
    """
    return exit_status == _SIGKILL_STATUS or _KILLED.search(text) is not None


def failure_kind(
    text: str, cause: str, *, phase: Phase = Phase.BOOT, is_oom_killed: bool = False
) -> BootFailure:
    """Return how an engine that ended by itself failed.

    Args:
        text: The log of this boot.
        cause: `root_cause(text)`.
        phase: How far it had come.
        is_oom_killed: Whether it was killed while the kernel's out-of-memory killer was at work.
    """
    if any(phrase in cause for phrase in _STARTUP_CHECK):
        return BootFailure.STARTUP_CHECK
    if any(phrase in cause for phrase in _KV_CACHE):
        return BootFailure.KV_CACHE
    if any(phrase in cause for phrase in _OUT_OF_MEMORY):
        return _OOM_OF_PHASE[phase]
    if is_oom_killed:
        return BootFailure.OOM_KILLED
    if phase is Phase.BOOT and _is_refusal(text, cause):
        return BootFailure.BAD_ARGUMENTS
    return BootFailure.EXITED


def _is_refusal(text: str, cause: str) -> bool:
    if ": error: " in cause or "ValidationError" in cause:
        return True
    # Before the engine core starts only arguments and configuration have been looked at.
    refused = any(cause.split(":")[0].endswith(name) for name in _REFUSALS)
    return refused and _ENGINE_STARTS not in text
