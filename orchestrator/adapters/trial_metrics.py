"""The metrics that a block and a boot leave in the tracker, by name. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.core.codec import from_plain
from orchestrator.core.formulas import acceptance_rate_per_position, pooled
from orchestrator.core.lossless.judge import LosslessResult
from orchestrator.core.proof import finding
from orchestrator.core.proof_findings import (
    AuditFinding,
    CanaryFinding,
    GreedyFinding,
    TaskFinding,
    TextFinding,
)
from orchestrator.core.quantities import quantities
from orchestrator.core.types import Block, Boot, Cell, ProofPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value of one metric."""

    key: str
    value: float
    step: int = 0


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
        values |= quantities([block], speculates=block.counters.num_drafts is not None)
        if block.chunk_gap_s is not None:
            values["chunk_gap_p50_s"] = block.chunk_gap_s.p50
            values["chunk_gap_p99_s"] = block.chunk_gap_s.p99
    return _finite({f"block/{name}": value for name, value in values.items()}, step=block.index)


def boot_points(boot: Boot) -> list[Point]:
    """Return the summary metrics of one boot: by cell, by position, its proof, its engine.

    Blocks that are invalid take no part.
    """
    speculates = not boot.arm.is_baseline
    points: list[Point] = []
    for cell, blocks in _by_cell(boot.blocks).items():
        values = quantities(blocks, speculates=speculates)
        by_cell = {f"{cell.key}/{name}": value for name, value in values.items()}
        points += _finite(by_cell)
        if not cell.is_open_loop:  # its concurrency is an outcome, and no axis to draw over
            by_streams = {f"{name}/t{cell.temperature:g}": value for name, value in values.items()}
            points += _finite(by_streams, step=cell.streams)
    shown = _finite(_proof_values(boot))
    return points + _position_points(boot.blocks) + _fact_points(boot) + shown


def _position_points(blocks: Sequence[Block]) -> list[Point]:
    valid = [block for block in blocks if block.is_valid]
    if not valid:
        return []
    rates = acceptance_rate_per_position(pooled([block.counters for block in valid]))
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


def _proof_values(boot: Boot) -> dict[str, float | None]:
    """Return the numbers of a proof boot by name; none of another boot."""
    values: dict[str, float | None] = {}
    if (record := finding(boot, ProofPart.TEXT)) is not None:
        text = from_plain(TextFinding, record)
        values |= _result_values("text", text.result)
        values["lossless/numeric_floor"] = text.floor
    if (record := finding(boot, ProofPart.AUDIT)) is not None:
        audit = from_plain(AuditFinding, record).result
        values["lossless/audit_attached"] = float(audit is not None)
        values |= {} if audit is None else _result_values("audit", audit)
    if (record := finding(boot, ProofPart.GREEDY)) is not None:
        counted = from_plain(GreedyFinding, record).agreement
        values["lossless/greedy_tokens"] = float(counted.num_tokens)
        values["lossless/greedy_disagreements"] = float(counted.num_disagreements)
    if (record := finding(boot, ProofPart.CANARIES)) is not None:
        for item in from_plain(CanaryFinding, record).results:
            values[f"canary/{item.name}"] = None if item.passed is None else float(item.passed)
    if (record := finding(boot, ProofPart.TASKS)) is not None:
        for score in from_plain(TaskFinding, record).scores:
            values[f"task/{score.task}"] = score.rate
    return values


def _result_values(name: str, result: LosslessResult) -> dict[str, float | None]:
    values = {
        "p_value": result.p_value,
        "tokens": float(result.num_tokens),
        "displacement": result.displacement,
        "seen": result.seen,
    }
    return {f"lossless/{name}_{key}": value for key, value in values.items()}


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
