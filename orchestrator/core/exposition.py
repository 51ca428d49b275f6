"""The engine's Prometheus counters: read by exact name, subtracted with suspicion."""

from __future__ import annotations

from orchestrator.core.types import CounterSnapshot


def parse_counters(text: str) -> CounterSnapshot:
    """Return the engine's counters, summed over its ``engine`` labels.

    ``_created`` twins are never added. A counter that is absent is None.

    Args:
        text: Prometheus text exposition.

    Raises:
        MeasurementError: The text is no exposition, or positions are missing between others.
    """
    raise NotImplementedError


def delta(before: CounterSnapshot, after: CounterSnapshot) -> CounterSnapshot:
    """Return ``after - before``; the gauge ``num_requests_running`` is None in it.

    Raises:
        MeasurementError: A counter went down, vanished or appeared, or the number of positions
            changed: the engine was restarted or is not the same one.
    """
    raise NotImplementedError
