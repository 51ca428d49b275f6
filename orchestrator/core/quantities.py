"""What is reported of a cell of one boot, under the names that every report and tracker uses."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.core.formulas import (
    acceptance_length,
    acceptance_rate,
    output_throughput,
    pooled,
    quantile,
    step_time_s,
    stream_seconds,
)
from orchestrator.core.types import Block


def quantities(blocks: Sequence[Block], *, speculates: bool) -> dict[str, float | None]:
    """Return the quantities of blocks of one cell in one boot, taken as one window.

    Args:
        blocks: One or more; whether they are valid is not asked.
        speculates: Whether the engine drafts; without it a step emits one token a stream.

    Returns:
        By name, with its unit; None where a quantity is not known.
    """
    counters = pooled([block.counters for block in blocks])
    output_tokens = sum(block.output_tokens for block in blocks)
    ttft_s = [value for block in blocks for value in block.ttft_s]
    tpot_s = [value for block in blocks for value in block.tpot_s]
    return {
        "output_throughput": output_throughput(
            output_tokens, sum(block.duration_s for block in blocks)
        ),
        "acceptance_length": acceptance_length(counters) if speculates else None,
        "acceptance_rate": acceptance_rate(counters) if speculates else None,
        "step_time_s": step_time_s(
            counters,
            busy_s=stream_seconds(blocks),
            output_tokens=output_tokens,
            speculates=speculates,
        ),
        "ttft_p50_s": quantile(ttft_s, 0.5),
        "ttft_p95_s": quantile(ttft_s, 0.95),
        "tpot_p50_s": quantile(tpot_s, 0.5),
    }
