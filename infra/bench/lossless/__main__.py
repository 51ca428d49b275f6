"""False alarms, power and speed of the lossless test, in simulated texts and audits.

    python -m infra.bench.lossless [TABLE...] [--streams 10000] [--power-streams 40]

The seeds are fixed: the same call prints the same numbers, but for the seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from infra.bench.choice import Tables, print_tables
from infra.bench.lossless.tables import (
    budget_lines,
    false_alarm_lines,
    power_lines,
    speed_lines,
    temperature_lines,
)

TABLES = ("speed", "budget", "temperature", "power", "false-alarms")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables that were asked for, or all."""
    parser = argparse.ArgumentParser(prog="python -m infra.bench.lossless")
    parser.add_argument("--streams", type=int, default=10_000, help="that are lossless, of each")
    parser.add_argument("--power-streams", type=int, default=40, help="of each displacement")
    parser.add_argument("--texts", type=int, default=400, help="of each wrong temperature")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="that are timed")
    print_tables(parser, TABLES, _tables, arguments)


def _tables(options: argparse.Namespace) -> Tables:
    return {
        "speed": lambda: speed_lines(options.tokens),
        "budget": budget_lines,
        "temperature": lambda: temperature_lines(options.texts),
        "power": lambda: power_lines(options.power_streams),
        "false-alarms": lambda: false_alarm_lines(options.streams),
    }


if __name__ == "__main__":
    main()
