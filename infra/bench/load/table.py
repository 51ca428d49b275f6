"""Results as text: one table a cell, and in which figures others are better. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from infra.bench.load.cells import Load
from infra.bench.load.run import Results, Run, of_cell
from infra.bench.load.tools import BARE, OURS

ENOUGH_TOKENS = 3_000
"""Fewest tokens of a run whose CPU beyond that of the start can be told from noise."""
TTFT_LIMIT_S = 0.001
CPU_LIMIT = 1.5
DECIDING_STREAMS = 16
"""Where the first token has to be within its limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One figure of the table."""

    head: str
    value: Callable[[Run], float | None]
    show: Callable[[float], str]
    is_compared: bool = True
    """Whether the nearer to zero the better."""


def _ms(value: float) -> str:
    return f"{1000 * value:+.2f}"


def _percent(value: float) -> str:
    return f"{100 * value:+.2f} %"


def _cpu(item: Run) -> float | None:
    return item.cpu_per_10k if item.true_tokens >= ENOUGH_TOKENS else None


COLUMNS = (
    Column(head="requests", value=lambda r: r.errors.requests, show=lambda v: f"{v:+.0f}"),
    Column(head="tokens", value=lambda r: r.errors.tokens, show=lambda v: f"{v:+.0f}"),
    Column(head="tokens/s", value=lambda r: r.errors.throughput, show=_percent),
    Column(head="TTFT p50 ms", value=lambda r: r.errors.ttft_p50_s, show=_ms),
    Column(head="TTFT p99 ms", value=lambda r: r.errors.ttft_p99_s, show=_ms),
    Column(
        head="TTFT each p99 ms",
        value=lambda r: r.errors.ttft_each_p99_s,
        show=lambda v: f"{1000 * v:.2f}",
    ),
    Column(head="chunk gap", value=lambda r: r.errors.chunk_gap, show=_percent),
    Column(head="time per token", value=lambda r: r.errors.token_time, show=_percent),
    Column(head="CPU s / 10k tokens", value=_cpu, show=lambda v: f"{v:.2f}"),
)


def middle(runs: Iterable[Run], column: Column) -> float | None:
    """Return the median over the rounds; None where no round has the figure."""
    values = [value for item in runs if (value := column.value(item)) is not None]
    return median(values) if values else None


def cell_table(results: Results, cell: Load, tools: Sequence[str]) -> list[str]:
    """Return the table of one cell, in Markdown; tools without a run are left out."""
    rows = [["", *(column.head for column in COLUMNS)]]
    for tool in tools:
        runs = of_cell(results.runs, cell, tool)
        if runs:
            rows.append([tool, *(_shown(middle(runs, column), column) for column in COLUMNS)])
    return aligned(rows)


def _shown(value: float | None, column: Column) -> str:
    return "-" if value is None else column.show(value)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table whose columns line up; the first is aligned left."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines = [
        "| "
        + " | ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        + " |"
        for row in rows
    ]
    rule = ["-" * widths[0], *(f"{'-' * (width - 1)}:" for width in widths[1:])]
    return [lines[0], "| " + " | ".join(rule) + " |", *lines[1:]]


def cpu_ratio(results: Results, cell: Load) -> tuple[float, int] | None:
    """Return our CPU per token by the bare loop's, and of how many pairs it is the median.

    Both are taken inside the process round its loop, and paired within a round.
    """
    bare = {item.round: item.loop_cpu_per_token for item in of_cell(results.runs, cell, BARE)}
    pairs = [
        mine / floor
        for item in of_cell(results.runs, cell, OURS)
        if (mine := item.loop_cpu_per_token) and (floor := bare.get(item.round))
    ]
    return (median(pairs), len(pairs)) if pairs else None


def findings(results: Results, cells: Sequence[Load]) -> list[str]:
    """Return what was asked of our client, each with its figure and whether it holds."""
    lines: list[str] = []
    for cell in cells:
        runs = of_cell(results.runs, cell, OURS)
        if not runs:
            continue
        is_exact = all(item.errors.tokens == 0 and item.errors.requests == 0 for item in runs)
        parts = [f"tokens {'exact' if is_exact else 'NOT EXACT'}"]
        if cell.streams == DECIDING_STREAMS:
            worst = median(abs(item.errors.ttft_p99_s) for item in runs)
            verdict = "within" if worst <= TTFT_LIMIT_S else "NOT WITHIN"
            parts.append(f"TTFT p99 {1000 * worst:.2f} ms off, {verdict} 1 ms")
        ratio = cpu_ratio(results, cell)
        if ratio is not None:
            verdict = "within" if ratio[0] <= CPU_LIMIT else "NOT WITHIN"
            parts.append(f"CPU {ratio[0]:.2f} x bare loop, {verdict} {CPU_LIMIT:g} x")
        lines.append(f"- {title(cell)}: {'; '.join(parts)}.")
    return lines


def worse(results: Results, cells: Sequence[Load], tools: Sequence[str]) -> list[str]:
    """Return every figure in which another tool, the bare loop included, is nearer the truth."""
    lines: list[str] = []
    for cell in cells:
        mine = of_cell(results.runs, cell, OURS)
        for column in COLUMNS:
            own = middle(mine, column)
            if own is None:
                continue
            better = [
                f"{tool} {column.show(other)}"
                for tool in tools
                if tool != OURS
                and (other := middle(of_cell(results.runs, cell, tool), column)) is not None
                and column.show(abs(other)) != column.show(abs(own))
                and abs(other) < abs(own)
            ]
            if better:
                lines.append(
                    f"- {title(cell)}, {column.head}: {OURS} {column.show(own)}, "
                    f"{', '.join(better)}"
                )
    return lines


def starts_table(results: Results, tools: Sequence[str]) -> list[str]:
    """Return what each tool takes for one request, by streams."""
    streams = sorted({start.streams for start in results.starts})
    rows = [["", *(f"{number} at a time: wall s / CPU s" for number in streams)]]
    known = {(start.tool, start.streams): start.cost for start in results.starts}
    for tool in tools:
        costs = [known.get((tool, number)) for number in streams]
        shown = ["-" if c is None else f"{c.wall_s:.1f} / {c.cpu_s:.1f}" for c in costs]
        rows.append([tool, *shown])
    return aligned(rows)


def failure_lines(results: Results) -> list[str]:
    """Return one line for each run that gave no figures."""
    return [f"- {f.tool}, {title(f.load)}: {f.reason}" for f in results.failures]


def names_line(results: Results, tools: Sequence[str]) -> str:
    """Return what each tool calls the two figures of the pace."""
    parts: list[str] = []
    for tool in tools:
        report = next((item.report for item in results.runs if item.tool == tool), None)
        if report is None:
            continue
        gap = "none" if report.chunk_gap is None else report.chunk_gap.name
        pace = "none" if report.token_time is None else report.token_time.name
        parts.append(f"{tool}: {gap} / {pace}")
    return "Chunk gap / time per token are called: " + "; ".join(parts) + "."


def title(cell: Load) -> str:
    """Return a cell's name for people."""
    plural = "s" if cell.streams > 1 else ""
    tokens = "s" if cell.tokens_per_chunk > 1 else ""
    return f"{cell.streams} stream{plural}, {cell.tokens_per_chunk} token{tokens} a chunk"


def report_lines(results: Results, cells: Sequence[Load], tools: Sequence[str]) -> list[str]:
    """Return the whole result, in Markdown."""
    lines: list[str] = []
    for cell in cells:
        lines += [
            f"### {title(cell)}",
            "",
            f"{cell.num_requests} requests of {cell.output_tokens} tokens, "
            f"{1000 * cell.gap_s:g} ms between chunks.",
            "",
            *cell_table(results, cell, tools),
            "",
        ]
    lines += [names_line(results, tools), ""]
    lines += ["### Start: one request", "", *starts_table(results, tools), ""]
    lines += ["### What is asked of specpilot", "", *findings(results, cells), ""]
    better = worse(results, cells, tools) or ["- nowhere"]
    lines += ["### Where another is nearer the known answer, or cheaper", "", *better, ""]
    failed = failure_lines(results)
    if failed:
        lines += ["### Runs without a result", "", *failed, ""]
    return lines
