"""What fell into the window of a load: tokens, gaps and times, from the requests' records."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

import numpy as np

from orchestrator.core.types import (
    LoadResult,
    Quantiles,
    RequestFault,
    RequestRecord,
    Span,
    TokenAudit,
)

_CUT = frozenset({RequestFault.CONNECTION, RequestFault.STALLED, RequestFault.BROKEN})
"""Faults of a request that the engine may have gone on with unheard."""


def tokens_at(record: RequestRecord, moment_s: float) -> float:
    """Return the output tokens of an answer that had arrived by a moment of the load's clock.

    Where the server counts along (``chunk_tokens``) the number is exact. Otherwise the answer's
    tokens are spread evenly over its chunks, which is right on average and in the sum of a whole
    answer. 0 for an answer whose tokens nobody counted.
    """
    if record.output_tokens is None:
        return 0.0
    elapsed_s = moment_s - record.started_s
    if record.e2e_s is not None and elapsed_s >= record.e2e_s:
        return float(record.output_tokens)
    arrived = bisect_right(record.chunk_times_s, elapsed_s)
    if arrived == 0:
        return 0.0
    if record.chunk_tokens is not None:
        return float(record.chunk_tokens[arrived - 1])
    return record.output_tokens * arrived / len(record.chunk_times_s)


def tokens_between(records: Iterable[RequestRecord], span: Span) -> float:
    """Return the output tokens that arrived after the span's start and up to its end."""
    return sum(tokens_at(r, span.end_s) - tokens_at(r, span.start_s) for r in records)


def audit(
    result: LoadResult, *, engine_window: float | None, engine_total: float | None
) -> TokenAudit:
    """Return both sides' counts of output tokens.

    Args:
        result: The load.
        engine_window: Growth of the engine's counter over the window; None without counters.
        engine_total: The same between the two idle moments.
    """
    records, window = result.records, result.window
    edges = [span for span in (result.opening, result.closing) if span is not None]
    return TokenAudit(
        client_total=sum(r.output_tokens or 0 for r in records),
        engine_total=engine_total,
        unknown_total=sum(_unheard(record) for record in records),
        client_window=0 if window is None else round(tokens_between(records, window)),
        engine_window=engine_window,
        edge_tokens=round(sum(_at_edge(record, span) for span in edges for record in records)),
    )


def started_within(records: Iterable[RequestRecord], span: Span) -> list[RequestRecord]:
    """Return the requests that started in the span."""
    return [r for r in records if span.start_s <= r.started_s < span.end_s]


def ended_within(records: Iterable[RequestRecord], span: Span) -> list[RequestRecord]:
    """Return the requests that succeeded and whose answer was complete in the span."""
    return [
        r
        for r in records
        if r.e2e_s is not None and span.start_s <= r.started_s + r.e2e_s < span.end_s
    ]


def chunk_gaps(records: Iterable[RequestRecord], span: Span) -> Quantiles | None:
    """Return the gaps between chunks of one answer, of chunks that arrived in the span.

    A chunk holds what one engine step gave, so a gap is a step's time and never a token's.

    Returns:
        Quantiles in seconds; None when no answer had two chunks in the span.
    """
    gaps: list[float] = []
    for record in records:
        times = np.asarray(record.chunk_times_s) + record.started_s
        inside = times[(times >= span.start_s) & (times < span.end_s)]
        gaps.extend(np.diff(inside).tolist())
    return quantiles(gaps)


def quantiles(values: Sequence[float]) -> Quantiles | None:
    """Return the quantiles of a sample; None without values."""
    if not values:
        return None
    p50, p95, p99 = (float(value) for value in np.quantile(values, (0.5, 0.95, 0.99)))
    return Quantiles(p50=p50, p95=p95, p99=p99, num_values=len(values))


def _unheard(record: RequestRecord) -> int:
    """Return the most tokens that the engine may have generated beyond those counted."""
    if record.fault in _CUT:
        return max(0, (record.max_tokens or 0) - (record.output_tokens or 0))
    if record.fault is None and record.output_tokens is None:
        return record.max_tokens or 0
    return 0


def _at_edge(record: RequestRecord, span: Span) -> float:
    """Return the tokens that arrived while an edge was observed, or were under way just then.

    An engine counts a step's tokens before their chunk arrives, so the next chunk belongs to them.
    """
    following = bisect_right(record.chunk_times_s, span.end_s - record.started_s)
    later_s = span.end_s
    if record.started_s <= span.end_s and following < len(record.chunk_times_s):
        later_s = record.started_s + record.chunk_times_s[following]
    return tokens_at(record, later_s) - tokens_at(record, span.start_s)
