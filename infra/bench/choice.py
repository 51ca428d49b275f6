"""The command line of a benchmark of several tables: all of them, or those that are named."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence

Tables = Mapping[str, Callable[[], Iterable[str]]]
"""What makes the lines of a table, by its name, in the order of printing."""


def print_tables(
    parser: argparse.ArgumentParser,
    names: Sequence[str],
    tables: Callable[[argparse.Namespace], Tables],
    arguments: Sequence[str] | None = None,
) -> None:
    """Print the tables that were asked for, or all, each as it is made.

    Args:
        parser: With the benchmark's own options.
        names: Of all tables.
        tables: Returns them by the options that were given.
        arguments: Of the command line; None for this process's.
    """
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(names)}")
    options = parser.parse_args(arguments)
    if unknown := set(options.tables) - set(names):
        parser.error(f"no table {sorted(unknown)[0]!r}: there are {', '.join(names)}")
    made = tables(options)
    for name in options.tables or names:
        for line in made[name]():
            print(line, flush=True)
        print(flush=True)
