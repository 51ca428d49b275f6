"""Files to raw rows and raw records. Nothing of their meaning is known here but the format."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.errors import ConfigError

_SPACE = re.compile(r"\s*")
FACTS_FILE = "engine_facts.json"
"""Lies beside a trial's blocks.json and says which arm it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """One row of a table, or one record of a program of ours."""

    where: str
    """File and line, or file and number, for messages."""
    values: Mapping[str, object]
    facts: Mapping[str, object] | None = None
    """What the engine said of itself, of a block of a trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How a file's own names become the schema's."""

    columns: Mapping[str, str] = field(default_factory=dict)
    """The file's name by the schema's."""
    constants: Mapping[str, str] = field(default_factory=dict)
    """What all rows have in common and the file does not say, by the schema's name."""
    left_out: Sequence[tuple[str, str]] = ()
    """Rows that do not count, by the file's column and the value in it."""
    ignored: Sequence[str] = ()
    """Columns that are not read although they look like one that is."""


def read_raw(path: Path, options: ReadOptions) -> tuple[list[Raw], int]:
    """Return the rows of a file, and how many were left out as asked.

    CSV when the name ends in .csv or .tsv; else JSON: lines, one array, or one object after the
    other. Lines of a table that begin with # are comments.

    Raises:
        ConfigError: It cannot be read, is broken, or lacks a column that was named.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "decide FILE", f"{path} cannot be read ({error})", "name a readable file"
        ) from error
    if path.suffix in (".csv", ".tsv"):
        rows = list(_table(path, text))
    else:
        facts = _facts(path)
        rows = [Raw(where=w, values=v, facts=facts) for w, v in _objects(path, text)]
    if not rows:
        raise ConfigError("decide FILE", f"{path} holds no row", "give a file with results")
    _check_columns(path, rows, options)
    kept = [row for row in rows if not _is_left_out(row, options)]
    return [_renamed(row, options) for row in kept], len(rows) - len(kept)


def _table(path: Path, text: str) -> Iterator[Raw]:
    lines = text.splitlines()
    numbered = [(n, line) for n, line in enumerate(lines, 1) if line.strip()]
    numbered = [(n, line) for n, line in numbered if not line.startswith("#")]
    # A quoted field may hold the end of a line; then the number is that of the row's last line.
    reader = csv.DictReader(
        io.StringIO("\n".join(line for _, line in numbered)),
        delimiter="\t" if path.suffix == ".tsv" else ",",
    )
    for row in reader:
        where = f"{path.name} line {numbered[reader.line_num - 1][0]}"
        if None in row:
            raise ConfigError("decide FILE", f"{where} has more fields than the header", "mend it")
        yield Raw(where=where, values={key.strip(): value for key, value in row.items()})


def _objects(path: Path, text: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    decoder = json.JSONDecoder()
    position, number = _after_space(text, 0), 0
    while position < len(text):
        try:
            value, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            line = text.count("\n", 0, position) + 1
            raise ConfigError(
                "decide FILE", f"{path.name} line {line} is not JSON ({error})", "mend it"
            ) from error
        position = _after_space(text, end)
        for item in value if isinstance(value, list) else [value]:
            number += 1
            where = f"{path.name} record {number}"
            if not isinstance(item, dict):
                raise ConfigError("decide FILE", f"{where} is no object", "give one a row")
            yield where, item


def _after_space(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    return position if found is None else found.end()


def _facts(path: Path) -> Mapping[str, object] | None:
    beside = path.with_name(FACTS_FILE)
    if not beside.is_file():
        return None
    try:
        found = json.loads(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError("decide FILE", f"{beside} cannot be read ({error})", "mend it") from error
    return found if isinstance(found, dict) else None


def _check_columns(path: Path, rows: Sequence[Raw], options: ReadOptions) -> None:
    names = {name for row in rows for name in row.values}
    names.discard("")
    wanted = [*options.columns.values(), *options.ignored, *(n for n, _ in options.left_out)]
    for name in wanted:
        if name not in names:
            raise ConfigError(
                "decide", f"{path} has no column '{name}'", f"it has: {', '.join(sorted(names))}"
            )


def _is_left_out(row: Raw, options: ReadOptions) -> bool:
    return any(str(row.values.get(name) or "") == value for name, value in options.left_out)


def _renamed(row: Raw, options: ReadOptions) -> Raw:
    old = {theirs: ours for ours, theirs in options.columns.items()}
    values = {
        old.get(name, name): value
        for name, value in row.values.items()
        if name not in options.ignored
    }
    for name, value in options.constants.items():
        if values.get(name) in (None, ""):
            values[name] = value
    return Raw(where=row.where, values=values, facts=row.facts)
