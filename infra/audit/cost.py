"""What the audit costs: the same arm with and without it, loaded at the same time."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from infra.audit.arms import Arm, Budget
from infra.audit.engine import Engine, booted, loaded
from infra.bench.cpu_steps import cpu_seconds
from orchestrator.core.exposition import delta
from orchestrator.core.types import CounterSnapshot

WARM_UP_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """One engine's figures over the window."""

    window_s: float
    cpu_s: float
    counters: CounterSnapshot

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second of wall time."""
        return (self.counters.generation_tokens or 0.0) / self.window_s

    @property
    def cpu_ms_per_token(self) -> float:
        """CPU time of all processes of the engine per generated token."""
        return 1000 * self.cpu_s / (self.counters.generation_tokens or float("nan"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The same arm with the audit and without."""

    plain: Speed
    audited: Speed

    @property
    def throughput(self) -> float:
        """Share of throughput that the audit costs; both engines had the same machine at once."""
        return 1 - self.audited.tokens_per_s / self.plain.tokens_per_s

    @property
    def cpu(self) -> float:
        """Share by which the CPU time of a token grows."""
        return self.audited.cpu_ms_per_token / self.plain.cpu_ms_per_token - 1


def measure(arm: Arm, budget: Budget, *, seconds: float, log: Path) -> Cost:
    """Boot an arm twice, once with the audit, load both alike, and compare one window."""
    with tempfile.TemporaryDirectory(prefix="specpilot-audit-") as name, ExitStack() as stack:
        engines = [
            stack.enter_context(
                booted(arm.build, arm.rule, depth=budget.depth, log=log, records=records)
            )
            for records in (None, Path(name))
        ]
        for engine in engines:
            stack.enter_context(loaded(engine, streams=budget.streams, seed=arm.seed))
        time.sleep(WARM_UP_S)
        plain, audited = window(engines, seconds)
    return Cost(plain=plain, audited=audited)


def window(engines: list[Engine], seconds: float) -> list[Speed]:
    """Return every engine's figures over one window."""
    before = [(e.counters(), cpu_seconds(e.group), time.monotonic()) for e in engines]
    time.sleep(seconds)
    after = [(e.counters(), cpu_seconds(e.group), time.monotonic()) for e in engines]
    return [
        Speed(window_s=t1 - t0, cpu_s=used1 - used0, counters=delta(c0, c1))
        for (c0, used0, t0), (c1, used1, t1) in zip(before, after, strict=True)
    ]
