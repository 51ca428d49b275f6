"""The machine under a trial, as Linux and NVML describe it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from orchestrator.adapters import cgroup, procfs
from orchestrator.adapters.nvml import GpuReadings, NvmlGpu
from orchestrator.core.node_state import NodeState


class LocalNode:
    """The node that this process runs on; implements ``ports.Node``.

    Keep one a process: it holds NVML open from the first snapshot on. Snapshots may be taken from
    several threads.

    Args:
        node_id: Ray's id of the node, or another stable name.
        kind: Kind of node from the configuration, for example ``gb10``.
        gpu: Which GPU, by index or as CUDA_VISIBLE_DEVICES names it; see ``NvmlGpu``.
        proc: Where the kernel's process file system is, beside ``sys``.
        read_gpu: Reads the GPU instead of NVML.
    """

    def __init__(
        self,
        node_id: str,
        *,
        kind: str,
        gpu: int | str = 0,
        proc: Path = Path("/proc"),
        read_gpu: Callable[[], GpuReadings] | None = None,
    ) -> None:
        self._node_id = node_id
        self._kind = kind
        self._proc = proc
        name = partial(procfs.process_name, proc=proc)
        self._read_gpu = read_gpu or NvmlGpu(gpu, process_name=name).read

    def snapshot(self) -> NodeState:
        """Read the node's state; a value that the platform lacks is None."""
        memory = self._memory()
        gpu = self._read_gpu()
        return NodeState(
            node_id=self._node_id,
            kind=self._kind,
            hostname=socket.gethostname(),
            mem_available_bytes=self._available(memory),
            mem_total_bytes=memory.get("MemTotal"),
            load_average_1m=procfs.parse_load_average(procfs.read_text(self._proc / "loadavg")),
            num_cores=procfs.count_cores(procfs.read_text(self._proc / "stat")),
            mem_free_bytes=memory.get("MemFree"),
            page_cache_bytes=procfs.page_cache_bytes(memory),
            swap_used_bytes=procfs.swap_used_bytes(memory),
            sm_clock_mhz=gpu.sm_clock_mhz,
            sm_clock_max_mhz=gpu.sm_clock_max_mhz,
            power_w=gpu.power_w,
            temperature_c=gpu.temperature_c,
            utilisation=gpu.utilisation,
            throttle_reasons=gpu.throttle_reasons,
            gpu_processes=gpu.processes,
        )

    def memory_available(self) -> int | None:
        """Return the available memory alone, which takes well under a millisecond."""
        return self._available(self._memory())

    def _memory(self) -> dict[str, int]:
        return procfs.parse_meminfo(procfs.read_text(self._proc / "meminfo"))

    def _available(self, memory: Mapping[str, int]) -> int | None:
        # Inside a container the kernel still tells of the whole machine.
        rooms = (memory.get("MemAvailable"), cgroup.memory_available(self._proc))
        return min((room for room in rooms if room is not None), default=None)
