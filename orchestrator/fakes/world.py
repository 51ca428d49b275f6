"""A clock and a node that exist in memory only."""

from __future__ import annotations

import threading

from orchestrator.core.types import NodeState

GIB = 2**30


class FakeClock:
    """Virtual time: sleeping moves it and takes none; implements ``ports.Clock``."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s
        self._lock = threading.Lock()

    def monotonic(self) -> float:
        """Return the virtual seconds."""
        with self._lock:
            return self._now_s

    def sleep(self, seconds: float) -> None:
        """Move the time on; a negative time is none."""
        with self._lock:
            self._now_s += max(0.0, seconds)


class FakeNode:
    """A node in good order; implements ``ports.Node``.

    Args:
        node_id: Name of the node.
        kind: Kind of node.
        mem_available_bytes: What ``snapshot`` reports; may be changed between calls.
        sm_clock_mhz: What ``snapshot`` reports; None where the platform does not tell.
    """

    def __init__(
        self,
        node_id: str = "node-0",
        *,
        kind: str = "fake",
        mem_available_bytes: int | None = 100 * GIB,
        sm_clock_mhz: float | None = 2400.0,
    ) -> None:
        self._node_id = node_id
        self._kind = kind
        self.mem_available_bytes = mem_available_bytes
        self.sm_clock_mhz = sm_clock_mhz

    def snapshot(self) -> NodeState:
        """Return the node's state."""
        return NodeState(
            node_id=self._node_id,
            kind=self._kind,
            hostname=self._node_id,
            mem_available_bytes=self.mem_available_bytes,
            mem_total_bytes=128 * GIB,
            load_average_1m=0.5,
            sm_clock_mhz=self.sm_clock_mhz,
            power_w=40.0,
            temperature_c=55.0,
        )
