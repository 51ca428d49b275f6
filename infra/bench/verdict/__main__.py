"""How often verdicts and races are right, in simulated studies.

    python -m infra.bench.verdict coverage [--simulations 1000] [--processes 2]
    python -m infra.bench.verdict nodes [--simulations 1000] [--studies 500] [--processes 2]
    python -m infra.bench.verdict replay
    python -m infra.bench.verdict race [--studies 500] [--processes 2]

The seeds are fixed: the same call prints the same numbers.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from itertools import chain

from infra.bench.verdict import race, replay
from infra.bench.verdict.coverage import (
    BLOCKS_PER_CELL,
    SPREADS,
    Case,
    bias_lines,
    coverage,
    coverage_lines,
    summary_lines,
)
from infra.bench.verdict.nodes import choice_lines, node_lines, order_lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one of the tables."""
    parser = argparse.ArgumentParser(prog="python -m infra.bench.verdict")
    parser.add_argument("table", choices=["coverage", "nodes", "replay", "race"])
    parser.add_argument("--simulations", type=int, default=1000, help="of each row")
    parser.add_argument("--studies", type=int, default=500, help="of each world, or row of races")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(arguments)
    if min(options.simulations, options.studies, options.processes) < 1:
        parser.error("--simulations, --studies and --processes are numbers from 1")
    for line in _lines(options):
        print(line, flush=True)


def _lines(options: argparse.Namespace) -> Iterator[str]:
    if options.table == "race":
        return race.report(num_studies=options.studies, num_processes=options.processes)
    if options.table == "nodes":
        return chain(
            order_lines(options.studies, options.processes),
            choice_lines(options.simulations, options.processes),
            node_lines(options.simulations),
        )
    if options.table == "replay":
        return replay.report()
    return _coverage_lines(options.simulations, options.processes)


def _coverage_lines(num_simulations: int, num_processes: int) -> Iterator[str]:
    found = {}
    for case in (Case(boot_cv=cv, blocks_per_cell=n) for n in BLOCKS_PER_CELL for cv in SPREADS):
        begun_s = time.monotonic()
        found[case] = coverage(case, num_simulations=num_simulations, num_processes=num_processes)
        yield from coverage_lines(case, found[case])
        yield from bias_lines(found[case])
        yield f"{time.monotonic() - begun_s:.0f} s\n"
    yield from summary_lines(found)


if __name__ == "__main__":
    main()
