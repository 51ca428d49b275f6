"""Errors of the engine process.

EngineError(RuntimeError)
  EngineBootError       the engine did not become ready; `kind` says how the caller must react
  EngineNotRunning      a question was asked of an engine that is not up (any more)
  EngineLeftoverError   something of the boot survived `stop()`; the node is not clean

All arguments are positional to `super().__init__`, so every error pickles through Ray.
"""

from __future__ import annotations

import json
from enum import StrEnum

_MARK = "SPECPILOT_BOOT_ERROR "


class BootFailure(StrEnum):
    """How a boot failed, or how an engine ended that had come up."""

    EXITED = "exited"
    """The process ended, for a reason that none of the others names."""
    TIMEOUT = "timeout"
    """Not up within the deadline."""
    BOOT_STALLED = "boot_stalled"
    """Its log did not grow for longer than it may be silent."""
    NO_COMPLETION = "no_completion"
    """Healthy, but without one completion."""
    STARTUP_CHECK = "startup_check"
    """Its check at the start found less memory free than it is to take."""
    KV_CACHE = "kv_cache"
    """Too little memory was left for the KV cache."""
    OUT_OF_MEMORY = "out_of_memory"
    """An allocation failed before it was healthy."""
    OOM_FIRST_REQUEST = "oom_first_request"
    """An allocation failed in its first completion."""
    OOM_UNDER_LOAD = "oom_under_load"
    """An allocation failed after it was ready."""
    OOM_KILLED = "oom_killed"
    """The kernel's out-of-memory killer ended a process of it."""
    IDENTITY = "identity"
    """Another process answers on the port."""
    BAD_ARGUMENTS = "bad_arguments"
    """The engine refused its arguments or configuration: a retry cannot help."""


class EngineError(RuntimeError):
    """Root of everything that the engine supervisor raises."""


class EngineBootError(EngineError):
    """The engine did not become ready.

    Args:
        kind: How it failed.
        reason: What happened, one sentence.
        cause: The line of the engine's log that names the root cause, or "".
        tail: The last lines of the engine's log, or "".
    """

    def __init__(self, kind: BootFailure, reason: str, cause: str = "", tail: str = "") -> None:
        super().__init__(kind, reason, cause, tail)
        self.kind = BootFailure(kind)
        self.reason = reason
        self.cause = cause
        self.tail = tail

    def __str__(self) -> str:
        """Return reason and cause, a machine-readable line, and the log's tail."""
        # Ray Serve hands a constructor's exception on as text only (the deployment's status
        # message), so the text carries one line that `boot_error_from_text` reads back.
        facts = {"kind": self.kind.value, "reason": self.reason, "cause": self.cause}
        head = f"{self.reason}: {self.cause}" if self.cause else self.reason
        text = f"{head}\n{_MARK}{json.dumps(facts)}"
        return f"{text}\n--- end of the engine's log ---\n{self.tail}" if self.tail else text


class EngineNotRunning(EngineError):  # noqa: N818 -- names a state, as FileNotFoundError does
    """The engine process is not running.

    Args:
        boot_id: The boot that was asked.
        detail: What is known about its end.
    """

    def __init__(self, boot_id: str, detail: str) -> None:
        super().__init__(boot_id, detail)
        self.boot_id = boot_id
        self.detail = detail

    def __str__(self) -> str:
        return f"engine boot {self.boot_id} is not running: {self.detail}"


class EngineLeftoverError(EngineError):
    """Processes of a boot, or its port, survived the stop.

    Args:
        boot_id: The boot that was stopped.
        left: One text per survivor, with its process id.
    """

    def __init__(self, boot_id: str, left: tuple[str, ...]) -> None:
        super().__init__(boot_id, left)
        self.boot_id = boot_id
        self.left = left

    def __str__(self) -> str:
        return f"engine boot {self.boot_id} left behind: {'; '.join(self.left)}"


def boot_error_from_text(text: str) -> EngineBootError | None:
    """Return the boot error that a Serve status message carries.

    Args:
        text: `serve.status().applications[app].deployments["Engine"].message`.

    Returns:
        The error without its log tail, or None when the text carries none.
    """
    at = text.rfind(_MARK)
    if at < 0:
        return None
    try:
        facts, _ = json.JSONDecoder().raw_decode(text[at + len(_MARK) :])
        return EngineBootError(BootFailure(facts["kind"]), facts["reason"], facts["cause"])
    except (ValueError, KeyError):
        return None
