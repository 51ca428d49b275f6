"""The engine's Prometheus counters: read by exact name, subtracted with suspicion."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from orchestrator.core.types import CounterSnapshot
from orchestrator.errors import MeasurementError

_FIELDS = {
    "vllm:generation_tokens_total": "generation_tokens",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:spec_decode_num_drafts_total": "num_drafts",
    "vllm:spec_decode_num_draft_tokens_total": "num_draft_tokens",
    "vllm:spec_decode_num_accepted_tokens_total": "num_accepted_tokens",
    "vllm:num_requests_running": "num_requests_running",
}
_GAUGE = "num_requests_running"
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


def parse_counters(text: str) -> CounterSnapshot:
    """Return the engine's counters, summed over its ``engine`` labels.

    ``_created`` twins are never added. A counter that is absent is None.

    Args:
        text: Prometheus text exposition.

    Raises:
        MeasurementError: The text is no exposition, or positions are missing between others.
    """
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == _PER_POSITION:
                    position = int(sample.labels["position"])
                    positions[position] = positions.get(position, 0.0) + sample.value
                elif sample.name in _FIELDS:
                    sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    except (ValueError, KeyError) as error:
        raise MeasurementError(f"the engine's metrics cannot be read: {error}") from error
    values = {field: sums.get(name) for name, field in _FIELDS.items()}
    return CounterSnapshot(**values, num_accepted_tokens_per_pos=_dense(positions))


def delta(before: CounterSnapshot, after: CounterSnapshot) -> CounterSnapshot:
    """Return ``after - before``; the gauge ``num_requests_running`` is None in it.

    Raises:
        MeasurementError: A counter went down, vanished or appeared, or the number of positions
            changed: the engine was restarted or is not the same one.
    """
    fields = [field for field in _FIELDS.values() if field != _GAUGE]
    values = {
        field: _difference(field, getattr(before, field), getattr(after, field)) for field in fields
    }
    return CounterSnapshot(
        generation_tokens=values.pop("generation_tokens"),
        prompt_tokens=values.pop("prompt_tokens"),
        **values,
        num_accepted_tokens_per_pos=_position_differences(
            before.num_accepted_tokens_per_pos, after.num_accepted_tokens_per_pos
        ),
    )


def _dense(positions: dict[int, float]) -> tuple[float, ...] | None:
    if not positions:
        return None
    if sorted(positions) != list(range(len(positions))):
        raise MeasurementError(f"draft positions {sorted(positions)} have gaps")
    return tuple(positions[index] for index in range(len(positions)))


def _difference(name: str, before: float | None, after: float | None) -> float | None:
    if before is None and after is None:
        return None
    if before is None or after is None:
        change = "appeared" if before is None else "vanished"
        raise MeasurementError(f"counter {name} {change} within the window")
    if after < before:
        raise MeasurementError(
            f"counter {name} fell from {before:g} to {after:g} within the window: "
            "the engine was restarted"
        )
    return after - before


def _position_differences(
    before: tuple[float, ...] | None, after: tuple[float, ...] | None
) -> tuple[float, ...] | None:
    if before is None and after is None:
        return None
    if before is None or after is None or len(before) != len(after):
        raise MeasurementError("the draft positions that the engine counts changed in the window")
    pairs = zip(before, after, strict=True)
    differences = [
        _difference(f"num_accepted_tokens_per_pos[{index}]", first, last)
        for index, (first, last) in enumerate(pairs)
    ]
    return tuple(value for value in differences if value is not None)
