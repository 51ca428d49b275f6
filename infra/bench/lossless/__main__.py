"""False alarms, power and speed of the lossless test, in simulated texts and audits.

    python -m infra.bench.lossless [TABLE...] [--streams 10000] [--power-streams 40]

The seeds are fixed: the same call prints the same numbers, but for the seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence

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
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)}")
    parser.add_argument("--streams", type=int, default=10_000, help="that are lossless, of each")
    parser.add_argument("--power-streams", type=int, default=40, help="of each displacement")
    parser.add_argument("--texts", type=int, default=400, help="of each wrong temperature")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="that are timed")
    options = parser.parse_args(arguments)
    if unknown := set(options.tables) - set(TABLES):
        parser.error(f"no table {sorted(unknown)[0]!r}: there are {', '.join(TABLES)}")
    lines: dict[str, Callable[[], Iterator[str]]] = {
        "speed": lambda: speed_lines(options.tokens),
        "budget": budget_lines,
        "temperature": lambda: temperature_lines(options.texts),
        "power": lambda: power_lines(options.power_streams),
        "false-alarms": lambda: false_alarm_lines(options.streams),
    }
    for table in options.tables or TABLES:
        for line in lines[table]():
            print(line, flush=True)
        print(flush=True)


if __name__ == "__main__":
    main()
