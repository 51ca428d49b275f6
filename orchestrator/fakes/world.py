"""A clock and a node that exist in memory only."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from orchestrator.core.node_state import NodeState

GIB = 2**30

_EPOCH_S = 1767225600.0


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

    def utc_s(self) -> float:
        """Return the virtual seconds after the start of 2026."""
        return _EPOCH_S + self.monotonic()


def fake_node_state(node_id: str = "node-0", *, kind: str = "fake") -> NodeState:
    """Return the state of a GB10 in good order under load; vary it with ``dataclasses.replace``."""
    return NodeState(
        node_id=node_id,
        kind=kind,
        hostname=node_id,
        mem_available_bytes=100 * GIB,
        mem_total_bytes=120 * GIB,
        load_average_1m=0.5,
        num_cores=20,
        mem_free_bytes=96 * GIB,
        page_cache_bytes=5 * GIB,
        swap_used_bytes=0,
        sm_clock_mhz=2400.0,
        sm_clock_max_mhz=3003.0,
        power_w=40.0,
        temperature_c=55.0,
        utilisation=0.96,
        throttle_reasons=(),
        gpu_processes=(),
    )


class FakeNode:
    """A node in memory, by default in good order; implements ``ports.Node``.

    Args:
        node_id: Name of the node.
        kind: Kind of node.
        script: States of the coming snapshots, one each; after the last, ``state`` is reported.
    """

    def __init__(
        self, node_id: str = "node-0", *, kind: str = "fake", script: Sequence[NodeState] = ()
    ) -> None:
        self.state = fake_node_state(node_id, kind=kind)
        """What ``snapshot`` reports from now on; may be replaced between calls."""
        self.num_snapshots = 0
        """How often the node was read."""
        self._script = list(script)
        self._lock = threading.Lock()

    def snapshot(self) -> NodeState:
        """Return the next state of the script, else ``state``."""
        with self._lock:
            self.num_snapshots += 1
            return self._script.pop(0) if self._script else self.state

    def memory_available(self) -> int | None:
        """Return that of ``state``; the script is of the snapshots alone."""
        return self.state.mem_available_bytes
