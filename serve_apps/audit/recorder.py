"""The recorder inside the engine: from tensors on the device to rows in the file.

Observations are small, [num_requests, 2, kinds], and are copied to the host without waiting for
them: a step's rows are written when the copy is there, one step later on a GPU.
"""

# mypy: disable-error-code="import-untyped,import-not-found"

import atexit
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from serve_apps.audit.nulls import (
    Tensor,
    Verification,
    observe_sampling,
    observe_verification,
)
from serve_apps.audit.records import RecordHeader, RecordWriter, rows_of, write_note

MAX_PENDING = 64
"""Steps whose copies may be under way; each holds a few kB of pinned memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is recorded, as the engine says it at its first step."""

    engine_version: str
    rejection_sample_method: str
    draft_sample_method: str
    duplicate: bool
    """Whether another process records the same tokens."""
    fault: str | None
    """Why nothing can be recorded, in one clause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copy:
    step: int
    slots: Any
    observed: Tensor
    arrived: Any
    """A CUDA event, or None where the copy is complete."""


class Recorder:
    """Takes a step's observations between `begin` and `end`; writes one file per process."""

    def __init__(self, folder: Path, *, limit_rows: int) -> None:
        self._folder = folder
        self._limit_rows = limit_rows
        self._writer: RecordWriter | None = None
        self._stopped = False
        self._step = 0
        self._parts: list[Tensor] = []
        self._pending: deque[_Copy] = deque()
        self.recording = False
        """Whether a step is open."""

    def begin(self, ask: Callable[[], Source]) -> bool:
        """Open a step.

        Args:
            ask: What to record of; called at the first step.

        Returns:
            Whether the step is recorded: not after a fault or at the limit of rows.
        """
        if self._writer is None and not self._stopped:
            self._open(ask())
        self._parts = []
        self.recording = not self._stopped
        return self.recording

    def add_verification(self, given: Verification) -> None:
        """Observe requests of the open step whose drafts were verified."""
        self._parts.append(observe_verification(given))

    def add_sampling(self, logits: Tensor, tokens: Tensor, temperature: Tensor) -> None:
        """Observe requests of the open step whose tokens were drawn without drafts."""
        self._parts.append(observe_sampling(logits, tokens, temperature))

    def end(self, slots: Any, *, num_sampled: Tensor) -> None:
        """Close the step and write what has arrived.

        Args:
            slots: [num_requests], the engine's slot of every request.
            num_sampled: [num_requests]; 0 for a prompt that is not read to its end, whose token
                the engine throws away.
        """
        if not self.recording:
            return
        self.recording = False
        if self._parts:
            observed = torch.cat(self._parts)
            kept = (num_sampled > 0)[:, None, None]
            observed = torch.where(kept, observed, torch.full_like(observed, float("nan")))
            self._pending.append(_to_host(self._step, np.array(slots), observed))
        self._parts = []
        self._step += 1
        self._write_arrived(wait=len(self._pending) > MAX_PENDING)

    def refuse(self, why: str) -> None:
        """Stop for good and write down why."""
        self.recording, self._stopped, self._parts = False, True, []
        self._note(attached=False, why=why)

    def flush(self) -> None:
        """Write every step that ended."""
        self._write_arrived(wait=True)

    def _open(self, source: Source) -> None:
        if source.fault is not None or source.duplicate:
            self._stopped = True
            if source.fault is not None:
                self._note(attached=False, why=source.fault)
            return
        header = RecordHeader(
            engine_version=source.engine_version,
            rejection_sample_method=source.rejection_sample_method,
            draft_sample_method=source.draft_sample_method,
            limit_rows=self._limit_rows,
        )
        self._writer = RecordWriter(_free_path(self._folder), header)
        self._note(attached=True, why="")
        atexit.register(self.flush)

    def _note(self, *, attached: bool, why: str) -> None:
        write_note(self._folder / f"audit-{os.getpid()}.json", attached=attached, why=why)

    def _write_arrived(self, *, wait: bool) -> None:
        while self._pending:
            copy = self._pending[0]
            if copy.arrived is not None and not copy.arrived.query():
                if not wait:
                    return
                copy.arrived.synchronize()
            self._pending.popleft()
            assert self._writer is not None
            if not self._writer.full:
                rows = rows_of(copy.observed.numpy(), step=copy.step, slots=copy.slots)
                self._writer.append(rows)
                self._stopped = self._stopped or self._writer.full


def _free_path(folder: Path) -> Path:
    """Return a file that no earlier process of the same number has written."""
    names = (
        f"audit-{os.getpid()}{suffix}.rows" for suffix in chain([""], (f"-{n}" for n in count(2)))
    )
    return next(path for name in names if not (path := folder / name).exists())


def _to_host(step: int, slots: Any, observed: Tensor) -> _Copy:
    if observed.device.type != "cuda":
        return _Copy(step=step, slots=slots, observed=observed.cpu(), arrived=None)
    target = torch.empty(observed.shape, dtype=observed.dtype, pin_memory=True)
    target.copy_(observed, non_blocking=True)
    arrived: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()
    return _Copy(step=step, slots=slots, observed=target, arrived=arrived)
