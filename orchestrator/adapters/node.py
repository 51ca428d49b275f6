"""The machine under a trial, as Linux and NVML describe it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.core.types import NodeState

KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReadings:
    """What NVML tells of the first GPU; None for what the board does not support."""

    sm_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None


class LocalNode:
    """The node that this process runs on; implements ``ports.Node``.

    Args:
        node_id: Ray's id of the node, or another stable name.
        kind: Kind of node from the configuration, for example ``gb10``.
        proc: Where the kernel's process file system is.
        read_gpu: Reads the GPU; replaced where there is no NVML to ask.
    """

    def __init__(
        self,
        node_id: str,
        *,
        kind: str,
        proc: Path = Path("/proc"),
        read_gpu: Callable[[], GpuReadings] | None = None,
    ) -> None:
        self._node_id = node_id
        self._kind = kind
        self._proc = proc
        self._read_gpu = read_gpu or read_nvml

    def snapshot(self) -> NodeState:
        """Read the node's state; a value that the platform lacks is None."""
        memory = parse_meminfo(_read_text(self._proc / "meminfo"))
        gpu = self._read_gpu()
        return NodeState(
            node_id=self._node_id,
            kind=self._kind,
            hostname=socket.gethostname(),
            mem_available_bytes=memory.get("MemAvailable"),
            mem_total_bytes=memory.get("MemTotal"),
            load_average_1m=_first_number(_read_text(self._proc / "loadavg")),
            sm_clock_mhz=gpu.sm_clock_mhz,
            power_w=gpu.power_w,
            temperature_c=gpu.temperature_c,
        )


def parse_meminfo(text: str) -> dict[str, int]:
    """Return the sizes in ``/proc/meminfo`` in bytes, by the kernel's names.

    MemAvailable counts the reclaimable page cache and MemFree does not; the engine's own check
    looks at free memory, so a caller may need both.
    """
    sizes: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        number, _, unit = value.strip().partition(" ")
        if number.isdigit():
            sizes[name.strip()] = int(number) * (KIB if unit == "kB" else 1)
    return sizes


def read_nvml() -> GpuReadings:
    """Ask NVML for the first GPU; all values are None where there is no NVML or no GPU.

    On GB10 the memory calls of NVML are not supported (the memory is the host's), so they are not
    made; each of the others may be missing on its own.
    """
    try:
        # Optional: nodes without a GPU have no NVML bindings, and only this function needs them.
        import pynvml  # noqa: PLC0415
    except ImportError:
        return GpuReadings()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return GpuReadings()
    try:
        return _read_first_gpu(pynvml)
    finally:
        pynvml.nvmlShutdown()


def _read_first_gpu(nvml: Any) -> GpuReadings:
    def ask(call: Callable[[], float]) -> float | None:
        try:
            return float(call())
        except nvml.NVMLError:
            return None

    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
    except nvml.NVMLError:
        return GpuReadings()
    power_mw = ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    return GpuReadings(
        sm_clock_mhz=ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        power_w=None if power_mw is None else power_mw / 1000,
        temperature_c=ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
    )


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _first_number(text: str) -> float | None:
    try:
        return float(text.split()[0])
    except (IndexError, ValueError):
        return None
