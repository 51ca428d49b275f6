"""One GPU as NVML tells of it; what the board, driver or binding does not support is None.

NVML's memory calls are not made: on GB10 the GPU's memory is the host's, and the driver answers
them with Not Supported. The memory of single processes is told there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pynvml

from orchestrator.core.node_state import GpuProcess

THROTTLE_REASONS = {
    0x002: "ApplicationsClocksSetting",
    0x004: "SwPowerCap",
    0x008: "HwSlowdown",
    0x010: "SyncBoost",
    0x020: "SwThermalSlowdown",
    0x040: "HwThermalSlowdown",
    0x080: "HwPowerBrakeSlowdown",
    0x100: "DisplayClockSetting",
    0x200: "BoardLimit",
    0x400: "Reliability",
}
"""NVML's names by bit, without the prefix nvmlClocksEventReason. They are written out here since
the bits are part of NVML's ABI while the binding has named them twice and names no more than it
knew when it was made."""
_IDLE = 0x001
"""nvmlClocksEventReasonGpuIdle: nothing runs, so the clock may be low."""
_LOST: tuple[type[Exception], ...] = (
    pynvml.NVMLError_Uninitialized,
    pynvml.NVMLError_DriverNotLoaded,
    pynvml.NVMLError_GpuIsLost,
    pynvml.NVMLError_ResetRequired,
    pynvml.NVMLError_LibRmVersionMismatch,
)
"""Errors after which a handle is worth nothing and NVML has to be opened again."""
_MAX_INDEX_DIGITS = 4
"""A number that NVML's 32 bits do not hold would name another GPU."""
_NOT_AVAILABLE = 2**63
"""Process memory from here on is NVML's "not available" (all bits set) in an older binding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReadings:
    """What is known of one GPU at one moment; the fields mean what they do in ``NodeState``."""

    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    utilisation: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    processes: tuple[GpuProcess, ...] | None = None


class NvmlGpu:
    """One GPU behind NVML, which is opened at the first reading and kept: opening is slow.

    Readings may be taken from several threads. When the GPU or the driver is lost, a reading has no
    values and the next one opens NVML again.

    Args:
        gpu: Index in NVML's order (by PCI bus), or what CUDA_VISIBLE_DEVICES holds: indices or
            UUIDs, which may be shortened as CUDA allows. Of several the first counts; of none
            ("", "-1") there is no GPU to read. CUDA's own order can differ from NVML's, so on a
            machine with unlike GPUs name the UUID.
        process_name: Names a process where NVML does not.
        library: The functions of ``pynvml``; a function that it lacks counts as not supported.
    """

    def __init__(
        self,
        gpu: int | str = 0,
        *,
        process_name: Callable[[int], str | None],
        library: Any = pynvml,
    ) -> None:
        self._gpu = _first_gpu(gpu)
        self._process_name = process_name
        self._library = library
        self._lock = threading.Lock()
        self._is_open = False
        self._device: Any = None

    def read(self) -> GpuReadings:
        """Read the GPU; never raises for what NVML refuses to tell."""
        if self._gpu is None:
            return GpuReadings()
        with self._lock:
            try:
                return self._read(self._open(self._gpu))
            except _LOST:
                self._forget()
                return GpuReadings()
            except pynvml.NVMLError:  # no library, no driver, no such GPU
                return GpuReadings()

    def _open(self, gpu: int | str) -> Any:
        if not self._is_open:
            self._library.nvmlInit()
            self._is_open = True
        if self._device is None:
            self._device = self._find(gpu)
        return self._device

    def _forget(self) -> None:
        self._device = None
        if self._is_open:
            self._is_open = False
            self._ask("nvmlShutdown", lost_too=True)

    def _find(self, gpu: int | str) -> Any:
        nvml = self._library
        if isinstance(gpu, int):
            return nvml.nvmlDeviceGetHandleByIndex(gpu)
        try:
            return nvml.nvmlDeviceGetHandleByUUID(gpu)
        except (pynvml.NVMLError_NotFound, pynvml.NVMLError_InvalidArgument):
            for index in range(nvml.nvmlDeviceGetCount()):
                device = nvml.nvmlDeviceGetHandleByIndex(index)
                if nvml.nvmlDeviceGetUUID(device).startswith(gpu):
                    return device
            raise

    def _read(self, device: Any) -> GpuReadings:
        sm = pynvml.NVML_CLOCK_SM
        sensor = pynvml.NVML_TEMPERATURE_GPU
        power_mw = _number(self._ask("nvmlDeviceGetPowerUsage", device))
        return GpuReadings(
            sm_clock_mhz=_clock(self._ask("nvmlDeviceGetClockInfo", device, sm)),
            sm_clock_max_mhz=_clock(self._ask("nvmlDeviceGetMaxClockInfo", device, sm)),
            power_w=None if power_mw is None else power_mw / 1000,
            temperature_c=_number(self._ask("nvmlDeviceGetTemperature", device, sensor)),
            utilisation=_share(self._ask("nvmlDeviceGetUtilizationRates", device)),
            throttle_reasons=self._throttle_reasons(device),
            processes=self._processes(device),
        )

    def _throttle_reasons(self, device: Any) -> tuple[str, ...] | None:
        mask = self._ask("nvmlDeviceGetCurrentClocksEventReasons", device)
        if mask is None:  # the name until driver 535, and in older bindings the only one
            mask = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", device)
        return None if mask is None else throttle_names(mask)

    def _processes(self, device: Any) -> tuple[GpuProcess, ...] | None:
        """Return the processes with a compute or graphics context; None if compute is not told."""
        compute = self._ask("nvmlDeviceGetComputeRunningProcesses", device)
        if compute is None:
            return None
        graphics = self._ask("nvmlDeviceGetGraphicsRunningProcesses", device) or ()
        memory = _memory_by_pid([*compute, *graphics])
        return tuple(
            GpuProcess(pid=pid, name=self._name(pid), memory_bytes=memory[pid])
            for pid in sorted(memory)
        )

    def _name(self, pid: int) -> str | None:
        try:
            name = self._ask("nvmlSystemGetProcessName", pid)
        except UnicodeDecodeError:  # the binding decodes what NVML cuts off anywhere
            name = None
        return name or self._process_name(pid)

    def _ask(self, function: str, *args: Any, lost_too: bool = False) -> Any:
        """Call one function; None for whatever NVML or the binding does not support.

        Raises:
            NVMLError: The GPU or the driver is lost, unless ``lost_too``.
        """
        call = getattr(self._library, function, None)
        if call is None:
            return None
        try:
            return call(*args)
        except _LOST:
            if lost_too:
                return None
            raise
        except pynvml.NVMLError:
            return None


def throttle_names(mask: int) -> tuple[str, ...]:
    """Return NVML's names of the reasons in a bit mask, without idle; an unknown bit as 0x800."""
    bits = (1 << position for position in range(mask.bit_length()))
    return tuple(
        THROTTLE_REASONS.get(bit, f"0x{bit:x}") for bit in bits if mask & bit and bit != _IDLE
    )


def _memory_by_pid(processes: Iterable[Any]) -> dict[int, int | None]:
    """Return the larger figure of a process that has both kinds of context."""
    found: dict[int, int | None] = {}
    for process in processes:
        used = process.usedGpuMemory
        if used is not None and used >= _NOT_AVAILABLE:
            used = None
        known = [size for size in (used, found.get(process.pid)) if size is not None]
        found[process.pid] = max(known, default=None)
    return found


def _first_gpu(gpu: int | str) -> int | str | None:
    if isinstance(gpu, str):
        first = gpu.partition(",")[0].strip()
        if first.startswith(("GPU-", "MIG-")):
            return first
        gpu = int(first) if first.isdecimal() and len(first) <= _MAX_INDEX_DIGITS else -1
    return gpu if gpu >= 0 else None


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _clock(value: Any) -> float | None:
    # A clock of 0 MHz is how virtual GPUs say that they have none to tell.
    return float(value) if value else None


def _share(rates: Any) -> float | None:
    """Return NVML's percentage as a share; one outside 0 to 100 is no percentage."""
    return rates.gpu / 100 if rates is not None and 0 <= rates.gpu <= 100 else None
