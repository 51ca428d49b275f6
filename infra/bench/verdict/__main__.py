"""How often the verdict's intervals hold what is true, in simulated studies.

    python -m infra.bench.verdict coverage [--simulations 1000] [--processes 2]
    python -m infra.bench.verdict nodes
    python -m infra.bench.verdict replay
    python -m infra.bench.verdict race [--studies 500] [--processes 2]

The seeds are fixed: the same call prints the same numbers.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

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
from infra.bench.verdict.nodes import node_lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one of the tables."""
    parser = argparse.ArgumentParser(prog="python -m infra.bench.verdict")
    parser.add_argument("table", choices=["coverage", "nodes", "replay", "race"])
    parser.add_argument("--simulations", type=int, default=1000, help="of each row")
    parser.add_argument("--studies", type=int, default=500, help="of each world of the race")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(arguments)
    if options.table == "race":
        for line in race.report(num_studies=options.studies, num_processes=options.processes):
            _say(line)
        return
    if options.table == "nodes":
        for line in node_lines(options.simulations):
            _say(line)
        return
    if options.table == "replay":
        for line in replay.report():
            _say(line)
        return
    found = {}
    for case in (Case(boot_cv=cv, blocks_per_cell=n) for n in BLOCKS_PER_CELL for cv in SPREADS):
        begun_s = time.monotonic()
        found[case] = coverage(
            case, num_simulations=options.simulations, num_processes=options.processes
        )
        for line in [*coverage_lines(case, found[case]), *bias_lines(found[case])]:
            _say(line)
        _say(f"{time.monotonic() - begun_s:.0f} s\n")
    for line in summary_lines(found):
        _say(line)


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
