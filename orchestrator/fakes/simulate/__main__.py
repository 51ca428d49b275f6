"""``python -m orchestrator.fakes.simulate calibrate``: how well the article's world fits."""

from __future__ import annotations

import argparse
import sys

from orchestrator.fakes.simulate.calibrate import NUM_RUNS, report


def main() -> None:
    """Print the calibration."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.fakes.simulate")
    parser.add_argument("command", choices=["calibrate"])
    parser.add_argument("--runs", type=int, default=NUM_RUNS, help="simulated runs of each row")
    arguments = parser.parse_args()
    if arguments.runs < 2:
        parser.error("--runs: one run has no spread; give 2 or more")
    for line in report(num_runs=arguments.runs):
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
