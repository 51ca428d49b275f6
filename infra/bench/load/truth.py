"""The known answer, and how far a report is from it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from infra.bench.load.reports import Figure, Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What the server did for one request; moments in seconds of the monotonic clock."""

    request_id: str | None
    received_s: float
    sent_s: tuple[float, ...]
    """[num_chunks] just before each chunk with tokens was written."""
    output_tokens: int

    @property
    def ttft_s(self) -> float:
        """From the request's arrival to the first token."""
        return self.sent_s[0] - self.received_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """A report against the known answer; None where one side has no figure."""

    requests: int
    """Requests reported minus requests answered."""
    tokens: int
    """Output tokens reported minus output tokens sent."""
    throughput: float
    """Share of the true one."""
    ttft_p50_s: float
    """Quantile reported minus the server's own quantile."""
    ttft_p99_s: float
    ttft_each_p99_s: float | None
    """99th percentile of the absolute error of single requests."""
    chunk_gap: float | None
    """Share of the true mean."""
    token_time: float | None


class TruthError(Exception):
    """The server has nothing to hold a report against."""


def read_truth(lines: str) -> list[Answered]:
    """Return the requests of the server's file that got at least one token, in its order."""
    rows = [json.loads(line) for line in lines.splitlines() if line.strip()]
    return [
        Answered(
            request_id=row["request_id"],
            received_s=row["received_s"],
            sent_s=tuple(row["chunk_sent_s"]),
            output_tokens=row["output_tokens"],
        )
        for row in rows
        if row["chunk_sent_s"]
    ]


def compare(report: Report, rows: Sequence[Answered], *, tokens_per_chunk: int) -> Errors:
    """Return the errors of a report.

    Quantiles of the first token are compared over the requests that the report names, where it
    names them: a client may leave those out that it does not count.

    Raises:
        TruthError: The server answered nothing, or none of the requests that the report names.
    """
    if not rows:
        raise TruthError("the server answered no request")
    known = {row.request_id: row for row in rows if row.request_id is not None}
    by_id = report.ttft_by_id
    named = [] if by_id is None else [known[name] for name in by_id if name in known]
    if by_id and not named:
        raise TruthError("the server knows none of the requests that the report names")
    ttft = [row.ttft_s for row in (named or rows)]
    each = [abs(by_id[row.request_id] - row.ttft_s) for row in named if by_id and row.request_id]
    return Errors(
        requests=report.num_requests - len(rows),
        tokens=report.output_tokens - sum(row.output_tokens for row in rows),
        throughput=report.output_throughput / _throughput(report, rows, tokens_per_chunk) - 1,
        ttft_p50_s=report.ttft_p50_s - _quantile(ttft, 0.5),
        ttft_p99_s=report.ttft_p99_s - _quantile(ttft, 0.99),
        ttft_each_p99_s=_quantile(each, 0.99) if each else None,
        chunk_gap=_share(report.chunk_gap, _chunk_gaps(rows)),
        token_time=_share(report.token_time, _token_times(rows)),
    )


def _throughput(report: Report, rows: Sequence[Answered], tokens_per_chunk: int) -> float:
    """Return the tokens / s that left the server, over the report's window or the whole run."""
    if report.window is None:
        start_s = min(row.received_s for row in rows)
        end_s = max(row.sent_s[-1] for row in rows)
        return sum(row.output_tokens for row in rows) / (end_s - start_s)
    start_s, end_s = report.window
    tokens = sum(_sent_between(row, start_s, end_s, tokens_per_chunk) for row in rows)
    if not tokens:
        raise TruthError("the server sent nothing in the report's window")
    return tokens / (end_s - start_s)


def _sent_between(row: Answered, start_s: float, end_s: float, tokens_per_chunk: int) -> int:
    total = 0
    for index, sent_s in enumerate(row.sent_s):
        if start_s < sent_s <= end_s:
            total += min(tokens_per_chunk, row.output_tokens - index * tokens_per_chunk)
    return total


def _chunk_gaps(rows: Iterable[Answered]) -> list[float]:
    return [float(gap) for row in rows for gap in np.diff(row.sent_s)]


def _token_times(rows: Iterable[Answered]) -> list[float]:
    return [
        (row.sent_s[-1] - row.sent_s[0]) / (row.output_tokens - 1)
        for row in rows
        if row.output_tokens > 1
    ]


def _share(figure: Figure | None, true: Sequence[float]) -> float | None:
    if figure is None or not true:
        return None
    mean = float(np.mean(true))
    return figure.value_s / mean - 1 if mean > 0 else None


def _quantile(values: Sequence[float], share: float) -> float:
    return float(np.quantile(values, share))
