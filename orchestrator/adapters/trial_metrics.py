"""The metrics that a block and a boot leave in the tracker, by name. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.core.formulas import (
    acceptance_length,
    acceptance_rate,
    acceptance_rate_per_position,
    output_throughput,
    pooled,
    quantile,
    step_time_s,
    stream_seconds,
)
from orchestrator.core.types import Block, Boot, Cell, CounterSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value of one metric."""

    key: str
    value: float
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One block, or several blocks of one cell in one boot taken as one window."""

    duration_s: float
    busy_s: float | None
    counters: CounterSnapshot
    output_tokens: int
    ttft_s: tuple[float, ...]
    tpot_s: tuple[float, ...]


def block_points(block: Block) -> list[Point]:
    """Return the metrics of one block; the step is its index within the boot.

    Whether the arm speculates is what the counters show.
    """
    values: dict[str, float | None] = {
        "streams": float(block.cell.streams),
        "temperature": block.cell.temperature,
        "valid": float(block.is_valid),
        "num_requests": float(block.num_requests),
        "num_failed": float(block.num_failed),
        "num_refused": float(block.num_refused),
        "effective_concurrency": block.effective_concurrency,
        "output_tokens": float(block.output_tokens),
        "duration_s": block.duration_s,
        "cached_share": _share(block.cached_tokens, block.prompt_tokens),
    }
    answers = sum(block.finish_reasons.values())
    for reason, count in block.finish_reasons.items():
        values[f"finish_{reason}"] = count / answers
    if block.is_valid:
        values |= _window_values(_pool([block]), speculates=block.counters.num_drafts is not None)
        if block.chunk_gap_s is not None:
            values["chunk_gap_p50_s"] = block.chunk_gap_s.p50
            values["chunk_gap_p99_s"] = block.chunk_gap_s.p99
    return _finite({f"block/{name}": value for name, value in values.items()}, step=block.index)


def boot_points(boot: Boot) -> list[Point]:
    """Return the summary metrics of one boot: by cell, by position, and the engine's facts.

    Blocks that are invalid take no part.
    """
    speculates = not boot.arm.is_baseline
    points: list[Point] = []
    for cell, blocks in _by_cell(boot.blocks).items():
        window = _pool(blocks)
        values = _window_values(window, speculates=speculates)
        by_cell = {f"{cell.key}/{name}": value for name, value in values.items()}
        by_streams = {f"{name}/t{cell.temperature:g}": value for name, value in values.items()}
        points += _finite(by_cell) + _finite(by_streams, step=cell.streams)
    return points + _position_points(boot.blocks) + _fact_points(boot)


def _window_values(window: Window, *, speculates: bool) -> dict[str, float | None]:
    return {
        "output_throughput": output_throughput(window.output_tokens, window.duration_s),
        "acceptance_length": acceptance_length(window.counters) if speculates else None,
        "acceptance_rate": acceptance_rate(window.counters) if speculates else None,
        "step_time_s": step_time_s(
            window.counters,
            busy_s=window.busy_s,
            output_tokens=window.output_tokens,
            speculates=speculates,
        ),
        "ttft_p50_s": quantile(window.ttft_s, 0.5),
        "ttft_p95_s": quantile(window.ttft_s, 0.95),
        "tpot_p50_s": quantile(window.tpot_s, 0.5),
    }


def _position_points(blocks: Sequence[Block]) -> list[Point]:
    valid = [block for block in blocks if block.is_valid]
    if not valid:
        return []
    rates = acceptance_rate_per_position(_pool(valid).counters)
    return _finite({f"accept/pos_{i}": rate for i, rate in enumerate(rates or ())})


def _fact_points(boot: Boot) -> list[Point]:
    if boot.facts is None:
        return []
    facts = boot.facts
    values: dict[str, float | None] = {
        "kv_cache_tokens": facts.kv_cache_tokens,
        "kv_max_concurrency": facts.kv_max_concurrency,
        "boot_time_s": facts.boot_time_s,
        "weights_bytes": facts.weights_bytes,
    }
    return _finite(values)


def _share(part: int | None, whole: int | None) -> float | None:
    return None if part is None or not whole else part / whole


def _finite(values: Mapping[str, float | None], *, step: int = 0) -> list[Point]:
    """Drop what is unknown: MLflow would store NaN, and infinity as 1.8e308."""
    return [
        Point(key=key, value=float(value), step=step)
        for key, value in values.items()
        if value is not None and math.isfinite(value)
    ]


def _by_cell(blocks: Iterable[Block]) -> dict[Cell, list[Block]]:
    cells: dict[Cell, list[Block]] = {}
    for block in blocks:
        if block.is_valid:
            cells.setdefault(block.cell, []).append(block)
    return cells


def _pool(blocks: Sequence[Block]) -> Window:
    return Window(
        duration_s=sum(block.duration_s for block in blocks),
        busy_s=stream_seconds(blocks),
        counters=pooled([block.counters for block in blocks]),
        output_tokens=sum(block.output_tokens for block in blocks),
        ttft_s=tuple(value for block in blocks for value in block.ttft_s),
        tpot_s=tuple(value for block in blocks for value in block.tpot_s),
    )
