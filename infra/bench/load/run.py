"""The benchmark: every tool through every cell, round after round, interleaved."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from infra.bench.load.cells import Load, only_start
from infra.bench.load.processes import Cost, Server, ToolError, run, serving
from infra.bench.load.reports import Report, ReportError
from infra.bench.load.tools import VENVS, Order, Tool
from infra.bench.load.truth import Errors, TruthError, compare

OVERHEAD_LIMIT_S = 120.0
"""What a tool may take to start and to write its report, on a busy machine."""
SLOWDOWN = 4.0
"""How much longer than planned a load may take before the tool is ended."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of one tool in one cell that gave figures."""

    tool: str
    load: Load
    round: int
    report: Report
    errors: Errors
    cost: Cost
    start_cpu_s: float | None
    """CPU seconds of the same tool at the same streams with a single request; None if unknown."""
    true_tokens: int

    @property
    def cpu_per_10k(self) -> float | None:
        """CPU seconds per 10,000 output tokens beyond those of the start; None if unknown."""
        if self.start_cpu_s is None or not self.true_tokens:
            return None
        return 10_000 * (self.cost.cpu_s - self.start_cpu_s) / self.true_tokens

    @property
    def loop_cpu_per_token(self) -> float | None:
        """The same for one token as the tool's process sees it, between start and end."""
        if self.report.loop_cpu_s is None or not self.true_tokens:
            return None
        return self.report.loop_cpu_s / self.true_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One run that gave none."""

    tool: str
    load: Load
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What one tool takes for a single request."""

    tool: str
    streams: int
    cost: Cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """All that was measured."""

    runs: tuple[Run, ...]
    failures: tuple[Failure, ...]
    starts: tuple[Start, ...]
    num_rounds: int


class Benchmark:
    """Runs the tools; one failure costs that run and nothing else.

    Args:
        tools: Those that can be run.
        cells: What they are asked for.
        say: Takes one line of progress.
    """

    def __init__(self, tools: Sequence[Tool], cells: Sequence[Load], say: Say) -> None:
        self._tools = tools
        self._cells = cells
        self._say = say
        self._runs: list[Run] = []
        self._failures: list[Failure] = []
        self._starts: dict[tuple[str, int], Cost] = {}

    def run(self, *, max_rounds: int, budget_s: float) -> Results:
        """Run rounds while another one of the same length fits into the budget, one at least."""
        until_s = time.monotonic() + budget_s
        self._measure_starts()
        num_rounds = 0
        while num_rounds < max_rounds:
            began_s = time.monotonic()
            self._round(num_rounds)
            num_rounds += 1
            now_s = time.monotonic()
            if num_rounds < max_rounds and now_s + (now_s - began_s) > until_s:
                self._say(f"no time for another round after {num_rounds}")
                break
        return Results(
            runs=tuple(self._runs),
            failures=tuple(self._failures),
            starts=tuple(
                Start(tool=tool, streams=streams, cost=cost)
                for (tool, streams), cost in self._starts.items()
            ),
            num_rounds=num_rounds,
        )

    def _measure_starts(self) -> None:
        """Run every tool at every number of streams with one request: imports, workers, exit."""
        by_streams = {cell.streams: cell for cell in self._cells}
        for cell in by_streams.values():
            with _folder() as folder, serving(cell, folder) as server:
                for tool in self._tools:
                    try:
                        with _folder() as place:
                            cost = self._once(tool, only_start(cell), server, place)
                    except ToolError as error:
                        self._say(f"{tool.name} at {cell.streams} streams, one request: {error}")
                        continue
                    self._starts[tool.name, cell.streams] = cost
                    self._say(
                        f"start   {cell.streams:>3} streams  {tool.name:12} "
                        f"{cost.wall_s:6.1f} s wall {cost.cpu_s:6.1f} s CPU"
                    )

    def _round(self, number: int) -> None:
        for cell in self._cells:
            order = list(self._tools)
            random.Random(f"{number}/{cell.key}").shuffle(order)
            with _folder() as folder, serving(cell, folder) as server:
                for tool in order:
                    self._measure(tool, cell, number, server)

    def _measure(self, tool: Tool, cell: Load, number: int, server: Server) -> None:
        where = f"round {number + 1} {cell.key:>6}  {tool.name:12}"
        try:
            with _folder() as place:
                cost = self._once(tool, cell, server, place)
                report = tool.read(place)
            rows = server.answered()
            errors = compare(report, rows, tokens_per_chunk=cell.tokens_per_chunk)
        except (ToolError, ReportError, TruthError) as error:
            server.answered()
            self._failures.append(Failure(tool=tool.name, load=cell, reason=str(error)))
            self._say(f"{where} FAILED: {error}")
            return
        start = self._starts.get((tool.name, cell.streams))
        result = Run(
            tool=tool.name,
            load=cell,
            round=number,
            report=report,
            errors=errors,
            cost=cost,
            start_cpu_s=None if start is None else start.cpu_s,
            true_tokens=sum(row.output_tokens for row in rows),
        )
        self._runs.append(result)
        self._say(
            f"{where} {cost.wall_s:6.1f} s wall {cost.cpu_s:6.1f} s CPU, tokens "
            f"{errors.tokens:+d}, TTFT p99 {1000 * errors.ttft_p99_s:+.2f} ms"
        )

    def _once(self, tool: Tool, load: Load, server: Server, folder: Path) -> Cost:
        server.answered()
        logs = VENVS / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        order = Order(load=load, url=server.url, folder=folder)
        return run(
            tool.command(order),
            folder=folder,
            log=logs / f"{tool.name.replace(' ', '-')}.log",
            environment=tool.environment,
            limit_s=OVERHEAD_LIMIT_S + SLOWDOWN * load.expected_s,
        )


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bench-load-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def of_cell(runs: Iterable[Run], load: Load, tool: str) -> list[Run]:
    """Return the runs of one tool in one cell."""
    return [item for item in runs if item.load == load and item.tool == tool]
