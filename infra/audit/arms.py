"""One arm under the audit: boot, load, and the verdict as soon as there is one."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from infra.audit.engine import Build, Engine, Rule, booted, loaded
from orchestrator.adapters.audit_folder import Rows, all_rows, observations
from orchestrator.core.lossless.judge import LosslessResult, LosslessSettings, LosslessTest
from serve_apps.audit.records import KINDS, RANK_BUCKETS, RECOVERED_RANK, attachment

POLL_S = 10.0
EVERY = 50
"""Rejections between two looks when it is asked after how many an arm was rejected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A build under a rule pair, sampled with one seed."""

    build: Build
    rule: Rule | None
    seed: int

    @property
    def name(self) -> str:
        """The rule pair in words."""
        return "no speculation" if self.rule is None else " + ".join(self.rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """When to stop without a verdict."""

    num_tokens: int
    seconds: float
    streams: int
    depth: int
    to_the_end: bool
    """Whether the budget is spent all the same when there is a verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the audit found in one arm."""

    arm: Arm
    result: LosslessResult
    num_rejections: int
    rejected_after: int | None
    """Rejections at the first look at which it was rejected, in looks of `EVERY`."""
    seconds: float


def audit(arm: Arm, budget: Budget, *, log: Path, keep: Path | None) -> Outcome:
    """Boot an arm with the audit and load it until it is judged or the budget is spent.

    Args:
        arm: What is audited.
        budget: When it ends without a verdict.
        log: What the engine prints is appended here.
        keep: A folder below which its records stay; None to throw them away.

    Raises:
        RuntimeError: The engine did not run, or the audit did not attach to it.
    """
    with ExitStack() as stack:
        started = time.monotonic()
        if keep is None:
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix="specpilot-audit-"))
            folder = Path(name)
        else:
            folder = keep / arm.build.version / arm.name.replace(" ", "") / str(arm.seed)
        with booted(arm.build, arm.rule, depth=budget.depth, log=log, records=folder) as engine:
            with loaded(engine, streams=budget.streams, seed=arm.seed):
                _watch(engine, folder, budget)
            num_tokens = generated(engine)
        attached = attachment(folder)
        if not attached.attached:
            raise RuntimeError(f"{arm.build.version}, {arm.name}: cannot attach: {attached.why}")
        rows = all_rows(folder)
    test = LosslessTest(LosslessSettings())
    test.update(observations(rows))
    return Outcome(
        arm=arm,
        result=test.result(num_tokens),
        num_rejections=int(_is_rejection(rows).sum()),
        rejected_after=rejected_after(rows),
        seconds=time.monotonic() - started,
    )


def _watch(engine: Engine, folder: Path, budget: Budget) -> None:
    """Wait for a verdict or the end of the budget."""
    test, taken, deadline = LosslessTest(LosslessSettings()), 0, time.monotonic() + budget.seconds
    while time.monotonic() < deadline:
        time.sleep(POLL_S)
        rows, num_tokens = all_rows(folder), generated(engine)
        test.update(observations(rows[taken:]))
        taken = len(rows)
        is_judged = test.result(num_tokens).kind != "cannot_tell" and not budget.to_the_end
        if num_tokens >= budget.num_tokens or is_judged:
            return


def generated(engine: Engine) -> int:
    """Return the tokens that the engine has generated since its boot."""
    return int(sum(counters.generation_tokens or 0 for counters in engine.counters().values()))


def rejected_after(rows: Rows) -> int | None:
    """Return after how many rejections an arm was rejected, at looks `EVERY` rejections apart.

    None if it never was, and of an arm that rejects no draft.
    """
    marks = np.flatnonzero(_is_rejection(rows))
    test, start = LosslessTest(LosslessSettings()), 0
    for count in range(EVERY, len(marks) + EVERY, EVERY):
        end = len(rows) if count >= len(marks) else int(marks[count])
        test.update(observations(rows[start:end]))
        start = end
        if test.p_value <= test.settings.alpha:
            return min(count, len(marks))
    return None


def _is_rejection(rows: Rows) -> NDArray[np.bool_]:
    of_kind: NDArray[np.bool_] = rows["kind"] == KINDS.index(RECOVERED_RANK + RANK_BUCKETS[0])
    return of_kind
