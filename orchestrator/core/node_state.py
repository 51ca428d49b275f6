"""What is known of a node, and whether it can be measured on: frozen records."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """One process that holds GPU memory."""

    pid: int
    name: str | None
    memory_bytes: int | None
    """None where the driver does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """What is known of a node at one moment; None where the platform does not tell."""

    node_id: str
    kind: str
    hostname: str
    mem_available_bytes: int | None
    mem_total_bytes: int | None
    load_average_1m: float | None
    num_cores: int | None = None
    """CPU cores that are online; the load average is held against them."""
    mem_free_bytes: int | None = None
    page_cache_bytes: int | None = None
    swap_used_bytes: int | None = None
    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    utilisation: float | None = None
    """Share of the last sample period in which a kernel ran, 0 to 1."""
    throttle_reasons: tuple[str, ...] | None = None
    """NVML's names of what slows the clock, without those of an idle GPU; None: not told."""
    gpu_processes: tuple[GpuProcess, ...] | None = None


class Fitness(StrEnum):
    """Whether a node can be measured on."""

    FIT = "fit"
    DEGRADED = "degraded"
    """Numbers count, with a doubt that is shown."""
    UNFIT = "unfit"
    """Numbers do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVerdict:
    """A judgement of node states with its reason."""

    fitness: Fitness
    reason: str
    """One sentence; empty when fit."""
