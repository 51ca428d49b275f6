"""The load client beside others, against one server with a known answer.

    python -m infra.bench.load [--quick] [--only vllm,aiperf] [--cells 16x1,16x4] [--write]

Makes an environment of its own for each tool below .bench at the first call, then runs every tool
in every cell and prints the tables. `--write` puts them into docs/bench-load.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from infra.bench.load.cells import Load, matrix
from infra.bench.load.machine import machine_lines
from infra.bench.load.processes import ToolError
from infra.bench.load.run import Benchmark
from infra.bench.load.table import report_lines
from infra.bench.load.tools import BARE, OURS, PROJECT, TOOLS, Tool
from infra.bench.load.venvs import ensure

DOCUMENT = PROJECT / "docs" / "bench-load.md"
FIRST, LAST = "<!-- last run -->", "<!-- end of last run -->"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and return the exit status: 1 when a run of ours failed."""
    options = _parse(arguments)
    cells = _chosen_cells(options.cells, quick=options.quick)
    tools = [tool for tool in _chosen_tools(options.only) if _is_there(tool)]
    load_before = os.getloadavg()[0]
    try:
        results = Benchmark(tools, cells, _say).run(
            max_rounds=1 if options.quick else options.rounds, budget_s=60 * options.minutes
        )
    except ToolError as error:
        _say(f"error: {error}")
        return 1
    names = [tool.name for tool in tools]
    lines = [
        *machine_lines(
            tools,
            num_rounds=results.num_rounds,
            load_before=load_before,
            load_after=os.getloadavg()[1],
        ),
        "",
        *report_lines(results, cells, names),
    ]
    _say("\n" + "\n".join(lines))
    if options.write:
        write_document(DOCUMENT, lines)
        _say(f"written to {DOCUMENT.relative_to(PROJECT)}")
    return int(any(failure.tool in (BARE, OURS) for failure in results.failures))


def write_document(path: Path, lines: Sequence[str]) -> None:
    """Replace what stands between the marks of the document.

    Raises:
        ValueError: The document lacks a mark.
    """
    text = path.read_text(encoding="utf-8")
    head, first, rest = text.partition(FIRST)
    _, last, tail = rest.partition(LAST)
    if not first or not last:
        raise ValueError(f"{path.name} lacks the marks {FIRST} and {LAST}")
    body = "\n".join(lines).strip()
    path.write_text(f"{head}{FIRST}\n\n{body}\n\n{LAST}{tail}", encoding="utf-8")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m infra.bench.load")
    parser.add_argument("--quick", action="store_true", help="few short requests, one round")
    parser.add_argument("--only", default="", help="tools, by name, with commas between")
    parser.add_argument("--cells", default="", help="cells such as 16x4, with commas between")
    parser.add_argument("--rounds", type=int, default=3, help="at most")
    parser.add_argument(
        "--minutes", type=float, default=24.0, help="no round starts that would end later"
    )
    parser.add_argument("--write", action="store_true", help="put the tables into the document")
    return parser.parse_args(arguments)


def _chosen_tools(only: str) -> list[Tool]:
    names = {tool.name for tool in TOOLS}
    wanted = _split(only) or sorted(names)
    if unknown := set(wanted) - names:
        sys.exit(f"error: --only: no tool {sorted(unknown)}; there are {sorted(names)}")
    return [tool for tool in TOOLS if tool.name in wanted]


def _chosen_cells(keys: str, *, quick: bool) -> list[Load]:
    cells = {cell.key: cell for cell in matrix(quick=quick)}
    wanted = _split(keys) or list(cells)
    if unknown := set(wanted) - cells.keys():
        sys.exit(f"error: --cells: no cell {sorted(unknown)}; there are {sorted(cells)}")
    return [cells[key] for key in cells if key in wanted]


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _is_there(tool: Tool) -> bool:
    reason = ensure(tool)
    if reason is not None:
        _say(f"{tool.name} is left out: {reason}")
    return reason is None


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
