"""What an engine's log says: facts in force, and the root cause of a failed boot."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
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
_OUT_OF_MEMORY = (
    "OutOfMemoryError",
    "out of memory",
    "MemoryError",
    "bad_alloc",
    "Cannot allocate memory",
    "Not enough memory",
    "No available memory for the cache blocks",
    "larger than the available KV cache memory",
    "less than desired GPU memory utilization",
    "Free memory on device",
    "less than requested memory",
)
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
    text = "\n".join(line for line in text.splitlines() if not line.startswith(NOTE))
    lines = [_stripped(line) for line in text.splitlines()]
    for index in reversed(range(len(lines))):
        line = lines[index]
        if _ARGPARSE.match(line):
            return line
        if _EXCEPTION.match(line) and not any(phrase in line for phrase in _SECOND_HAND):
            return _with_details(lines, index)
    for raw in reversed(text.splitlines()):
        match = _PREFIX.match(raw)
        if match is not None and match["level"] in ("ERROR", "CRITICAL") and _stripped(raw):
            return _stripped(raw)
    return next((line for line in reversed(lines) if line.strip()), "")


def _with_details(lines: list[str], index: int) -> str:
    """Join an exception line that ends without saying why (pydantic) with its next line."""
    following = lines[index + 1].strip() if index + 1 < len(lines) else ""
    if "validation error" in lines[index] and following:
        return f"{lines[index]}: {following}"
    return lines[index]


def failure_kind(text: str, cause: str) -> BootFailure:
    """Return how the caller must react to an engine that exited before it was ready.

    Args:
        text: The log of this boot.
        cause: `root_cause(text)`.
    """
    if any(phrase in cause for phrase in _OUT_OF_MEMORY):
        return BootFailure.OUT_OF_MEMORY
    if ": error: " in cause or "ValidationError" in cause:
        return BootFailure.BAD_ARGUMENTS
    refused = any(cause.split(":")[0].endswith(name) for name in _REFUSALS)
    # Before the engine core starts only arguments and configuration have been looked at.
    if refused and _ENGINE_STARTS not in text:
        return BootFailure.BAD_ARGUMENTS
    return BootFailure.EXITED
