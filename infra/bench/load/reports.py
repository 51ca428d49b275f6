"""What each client says: its own output, read into one form. Pure but for the reading."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A mean in seconds under the name that the tool gives it."""

    name: str
    value_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a client claims of one run; what it does not claim is None."""

    num_requests: int
    """Those that succeeded."""
    output_tokens: int
    output_throughput: float
    """Tokens / s."""
    ttft_p50_s: float
    ttft_p99_s: float
    ttft_by_id: Mapping[str, float] | None = None
    """Seconds by X-Request-Id, where the tool sends one and tells."""
    chunk_gap: Figure | None = None
    """Between chunks of one answer."""
    token_time: Figure | None = None
    """(last token - first token) / (tokens - 1)."""
    window: tuple[float, float] | None = None
    """Stretch of the machine's monotonic clock that the throughput is of; None: the whole run."""
    loop_cpu_s: float | None = None
    """CPU of the process between the start and the end of the load, as the process sees it."""


class ReportError(Exception):
    """A tool ended well and said nothing that can be read."""


def read_report(path: Path) -> Report:
    """Read the report of a client of ours, which writes the fields of ``Report``.

    Raises:
        ReportError: The file is missing or something else.
    """
    item = _load(path)
    try:
        for name in ("chunk_gap", "token_time"):
            item[name] = None if item[name] is None else Figure(**item[name])
        item["window"] = None if item["window"] is None else tuple(item["window"])
        return Report(**item)
    except (KeyError, TypeError) as error:
        raise ReportError(f"{path.name} is no report: {error!r}") from error


def read_vllm(path: Path, *, id_prefix: str) -> Report:
    """Read what ``vllm bench serve --save-result --save-detailed`` wrote.

    Args:
        path: The result file.
        id_prefix: What the tool was told to put before the index of a request.

    Raises:
        ReportError: The file is missing or lacks a figure.
    """
    item = _load(path)
    try:
        return Report(
            num_requests=item["completed"],
            output_tokens=item["total_output_tokens"],
            output_throughput=item["output_throughput"],
            ttft_p50_s=item["p50_ttft_ms"] / 1000,
            ttft_p99_s=item["p99_ttft_ms"] / 1000,
            ttft_by_id={
                f"{id_prefix}{index}": ttft
                for index, (ttft, error) in enumerate(
                    zip(item["ttfts"], item["errors"], strict=True)
                )
                if not error
            },
            chunk_gap=Figure(name="ITL", value_s=item["mean_itl_ms"] / 1000),
            token_time=Figure(name="TPOT", value_s=item["mean_tpot_ms"] / 1000),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ReportError(f"{path.name} lacks a figure: {error!r}") from error


def read_guidellm(path: Path) -> Report:
    """Read the JSON output of ``guidellm run``.

    Its ITL is a time per token, and its TPOT is the whole latency by all tokens, the wait for the
    first included; it has no figure for the gap between chunks.

    Raises:
        ReportError: The file is missing or lacks a figure.
    """
    item = _load(path)
    try:
        metrics = item["benchmarks"][0]["metrics"]
        ttft = metrics["time_to_first_token_ms"]["successful"]["percentiles"]
        return Report(
            num_requests=metrics["request_totals"]["successful"],
            output_tokens=round(metrics["output_token_count"]["successful"]["total_sum"]),
            # The column "Server Throughput: Output Tokens Per Sec" of its console.
            output_throughput=metrics["output_tokens_per_second"]["successful"]["mean"],
            ttft_p50_s=ttft["p50"] / 1000,
            ttft_p99_s=ttft["p99"] / 1000,
            token_time=Figure(
                name="ITL", value_s=metrics["inter_token_latency_ms"]["successful"]["mean"] / 1000
            ),
        )
    except (KeyError, IndexError, TypeError) as error:
        raise ReportError(f"{path.name} lacks a figure: {error!r}") from error


def read_aiperf(summary: Path, records: Path) -> Report:
    """Read the summary and the records of ``aiperf profile``.

    Raises:
        ReportError: A file is missing or lacks a figure.
    """
    item = _load(summary)
    try:
        ttft, gap = item["time_to_first_token"], item.get("inter_chunk_latency")
        per_token = item.get("inter_token_latency")
        return Report(
            num_requests=round(item["request_count"]["avg"]),
            output_tokens=round(item["total_output_tokens"]["avg"]),
            output_throughput=item["output_token_throughput"]["avg"],
            ttft_p50_s=ttft["p50"] / 1000,
            ttft_p99_s=ttft["p99"] / 1000,
            ttft_by_id=_aiperf_ttft(records.read_text(encoding="utf-8")),
            chunk_gap=None if gap is None else Figure(name="ICL", value_s=gap["avg"] / 1000),
            token_time=(
                None if per_token is None else Figure(name="ITL", value_s=per_token["avg"] / 1000)
            ),
        )
    except (KeyError, TypeError, OSError, ValueError) as error:
        raise ReportError(f"{summary.name} lacks a figure: {error!r}") from error


def _aiperf_ttft(lines: str) -> dict[str, float]:
    rows = [json.loads(line) for line in lines.splitlines() if line.strip()]
    return {
        row["metadata"]["x_request_id"]: row["metrics"]["time_to_first_token"]["value"] / 1000
        for row in rows
        if "time_to_first_token" in row["metrics"]
    }


def _load(path: Path) -> dict[str, Any]:
    try:
        item = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ReportError(f"{path.name} cannot be read: {error}") from error
    if not isinstance(item, dict):
        raise ReportError(f"{path.name} is no JSON object")
    return item
