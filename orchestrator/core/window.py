"""What fell into the window of a load: tokens, gaps and times, from the requests' records."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence

import numpy as np

from orchestrator.core.requests import LoadResult, RequestFault, RequestRecord, Span
from orchestrator.core.types import CounterSnapshot, Quantiles, TokenAudit

FAREWELL_S = 0.25
"""How long an engine may go on for a client that has gone."""

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
    result: LoadResult, *, window_counters: CounterSnapshot, total_counters: CounterSnapshot
) -> TokenAudit:
    """Return both sides' counts of tokens.

    Args:
        result: The load.
        window_counters: Growth of the engine's counters over the window; None without counters.
        total_counters: The same between the two idle moments.
    """
    records, window = result.records, result.window
    rate = _fastest(records)
    prompts = [r.prompt_tokens for r in records if r.prompt_tokens is not None]
    is_sent = [r for r in records if r.fault is not RequestFault.REFUSED]
    edges = [span for span in (result.opening, result.closing) if span is not None]
    return TokenAudit(
        client_total=sum(r.output_tokens or 0 for r in records),
        engine_total=total_counters.generation_tokens,
        unknown_total=sum(_unheard(record, rate) for record in records),
        client_window=0 if window is None else round(tokens_between(records, window)),
        engine_window=window_counters.generation_tokens,
        edge_tokens=round(sum(_at_edge(record, span) for span in edges for record in records)),
        client_prompts=sum(prompts) if prompts else None,
        engine_prompts=total_counters.prompt_tokens,
        unknown_prompts=max(prompts, default=0) * sum(r.prompt_tokens is None for r in is_sent),
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


def concurrency(records: Iterable[RequestRecord], span: Span) -> float | None:
    """Return the mean of the requests that were being answered in the span.

    A request that failed counts until its last chunk: a stream that hangs or waits to ask again
    loads nothing. None for an empty span.
    """
    if span.duration_s <= 0:
        return None
    busy_s = 0.0
    for record in records:
        last_s = record.chunk_times_s[-1] if record.chunk_times_s else 0.0
        end_s = record.started_s + (last_s if record.e2e_s is None else record.e2e_s)
        busy_s += max(0.0, min(end_s, span.end_s) - max(record.started_s, span.start_s))
    return busy_s / span.duration_s


def _fastest(records: Iterable[RequestRecord]) -> float | None:
    """Return the highest tokens / s of an answer; None without one."""
    rates = [r.output_tokens / r.e2e_s for r in records if r.output_tokens and r.e2e_s]
    return max(rates, default=None)


def _unheard(record: RequestRecord, rate: float | None) -> int:
    """Return the most tokens that the engine may have generated beyond those counted.

    An engine cannot have generated faster than for the fastest answer, for as long as nothing was
    heard of it and a little more, until it saw that the client had gone.
    """
    most = max(0, (record.max_tokens or 0) - (record.output_tokens or 0))
    if record.fault is None:
        return most if record.output_tokens is None else 0
    if record.fault not in _CUT:
        return 0
    if record.ended_s is None or rate is None:
        return most
    last_s = record.chunk_times_s[-1] if record.chunk_times_s else 0.0
    return min(most, math.ceil(rate * (record.ended_s - last_s + FAREWELL_S)))


def _at_edge(record: RequestRecord, span: Span) -> float:
    """Return the tokens that arrived while an edge was observed, or were under way just then.

    An engine counts a step's tokens before their chunk arrives, so the next chunk belongs to them.
    """
    following = bisect_right(record.chunk_times_s, span.end_s - record.started_s)
    later_s = span.end_s
    if record.started_s <= span.end_s and following < len(record.chunk_times_s):
        later_s = record.started_s + record.chunk_times_s[following]
    return tokens_at(record, later_s) - tokens_at(record, span.start_s)
