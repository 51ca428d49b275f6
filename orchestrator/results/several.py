"""What of the options does not fit one of several files, and what to do that then works. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from orchestrator.core.lines import first_of
from orchestrator.core.types import Arm
from orchestrator.errors import ConfigError
from orchestrator.results.files import FileRows, ReadOptions
from orchestrator.results.observation import Observation

MOST_NAMED = 20
"""Faults, values and files that are named before the rest is counted."""
NEEDED = ("engine_build", "num_speculative_tokens", "streams", "temperature")


def check_options(read: Sequence[tuple[Path, FileRows]], options: ReadOptions) -> list[str]:
    """Return a sentence for each file that an option cannot apply to.

    Raises:
        ConfigError: No file has a column or a value that is asked for, or a row states otherwise
            what is given for all.
    """
    _check_columns(read)
    _check_left_out(read, options)
    _check_quarrels(read, options)
    return list(_not_applied(read, options))


def _check_columns(read: Sequence[tuple[Path, FileRows]]) -> None:
    first, *others = [file.lacking for _, file in read]
    for name in first:
        if all(name in lacking for lacking in others):
            path = read[0][0]
            names = dict.fromkeys(name for _, file in read for name in file.names)
            if others:
                problem, has = f"no file has a column '{name}'", "they have"
            else:
                problem, has = f"{path} has no column '{name}'", "it has"
            raise ConfigError("decide", problem, f"{has}: {', '.join(sorted(names))}")


def _check_left_out(read: Sequence[tuple[Path, FileRows]], options: ReadOptions) -> None:
    """Refuse values to leave out that no file has: a slip would leave the rows in."""
    for asked in options.left_out:
        if not all(asked in file.unmatched for _, file in read):
            continue
        there = dict.fromkeys(
            text or "(empty)"
            for _, file in read
            if asked[0] not in file.lacking
            for text in file.unmatched[asked]
        )
        raise ConfigError(
            "--leave-out",
            f"no row has the value '{asked[1]}' in {asked[0]}",
            f"there are: {first_of(list(there), MOST_NAMED)}",
        )


def _check_quarrels(read: Sequence[tuple[Path, FileRows]], options: ReadOptions) -> None:
    for _, file in read:
        for said in file.quarrels:
            given = f"--set {said.name}={said.given}"
            silent = [str(path) for path, other in read if said.name in other.filled]
            theirs = options.columns.get(said.name, said.name)
            column = theirs if theirs in file.names else said.name
            remedy = f"leave {given} out, or --ignore {column}"
            if silent:
                rows = first_of(silent, MOST_NAMED)
                remedy = (
                    f"leave {given} out and write {said.name} into the rows of {rows} "
                    "that do not say it"
                )
            raise ConfigError(
                "--set",
                f"{said.where} says {said.name} {said.stated!a:.60} and --set says '{said.given}'",
                remedy,
            )


def _not_applied(read: Sequence[tuple[Path, FileRows]], options: ReadOptions) -> Iterator[str]:
    for path, file in read:
        for name in dict.fromkeys(name for name, _ in options.left_out):
            if name in file.lacking:
                yield f"{path} has no column '{name}': no row of it is left out by that."
        for name, theirs in options.columns.items():
            if theirs in file.lacking and name not in (*file.names, *options.constants):
                yield f"{path} has no column '{theirs}', so its rows say no {name}."


def stated_values(observations: Sequence[Observation]) -> dict[str, list[str]]:
    """Return what rows say where it is needed, by column, each value once."""
    found: dict[str, dict[str, None]] = {name: {} for name in NEEDED}
    for item in observations:
        for name in NEEDED:
            holder = item.arm if name in Arm.__dataclass_fields__ else item.cell
            value = getattr(holder, name)
            found[name][value if isinstance(value, str) else f"{value:g}"] = None
    return {name: list(values) for name, values in found.items()}


def with_remedy(fault: str, path: Path, stated: Mapping[str, Sequence[str]]) -> str:
    """Return a fault of a value that is missing with what helps, where other rows state it."""
    name = next((name for name in NEEDED if fault.startswith(f"{name} is missing")), None)
    if name is None or not stated[name]:
        return fault
    values = stated[name]
    same = f", or give --set {name}={values[0]} if it is the same" if len(values) == 1 else ""
    others = first_of(values, MOST_NAMED)
    return f"{name} is missing and other rows say {others}: write it into {path}{same}"
