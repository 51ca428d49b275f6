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
from orchestrator.results.columns import COLUMNS, value_of

_SPACE = re.compile(r"\s*")
SEPARATORS = {";": "semicolons", "\t": "tabs", ",": "commas", "|": "bars"}
"""What separates columns elsewhere, in words."""
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


def read_raw(
    path: Path, options: ReadOptions
) -> tuple[list[Raw], int, dict[tuple[str, str], list[str]]]:
    """Return the rows of a file, how many were left out as asked, and which values no row has.

    These last by what was asked for, each with the values that the column has instead.

    CSV when the name ends in .csv or .tsv; else JSON: lines, one array, or one object after the
    other. Lines of a table that begin with # are comments.

    Raises:
        ConfigError: It cannot be read, is broken, lacks a column that was named, or says otherwise
            what is given for all rows or read from another column.
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
    ours = {theirs: name for name, theirs in options.columns.items()}
    matches = [
        [_is_same(ours.get(name, name), row.values.get(name), value) for row in rows]
        for name, value in options.left_out
    ]
    unmatched = {
        asked: list(dict.fromkeys(_text(row.values.get(asked[0])) for row in rows))
        for asked, matched in zip(options.left_out, matches, strict=True)
        if not any(matched)
    }
    kept = [row for index, row in enumerate(rows) if not any(m[index] for m in matches)]
    return [_renamed(row, options) for row in kept], len(rows) - len(kept), unmatched


def _table(path: Path, text: str) -> Iterator[Raw]:
    # Not splitlines(), which also splits at characters that end no row.
    numbered = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    numbered = [(n, line) for n, line in numbered if not line.startswith("#")]
    # A quoted field may hold the end of a line; then the number is that of the row's last line.
    reader = csv.reader(
        io.StringIO("\n".join(line for _, line in numbered)),
        delimiter="\t" if path.suffix == ".tsv" else ",",
    )
    try:
        header = _header(path, next(reader, []))
        for row in reader:
            where = f"{path.name} line {numbered[reader.line_num - 1][0]}"
            if len(row) > len(header):
                problem = f"{where} has more fields than the header"
                raise ConfigError("decide FILE", problem, "mend it")
            cells: list[str | None] = [*row, *[None] * (len(header) - len(row))]
            yield Raw(where=where, values=dict(zip(header, cells, strict=True)))
    except csv.Error as error:
        where = f"{path.name} line {numbered[reader.line_num - 1][0]}"
        raise ConfigError("decide FILE", f"{where} is no CSV ({error})", "mend it") from error


def _header(path: Path, fields: Sequence[str]) -> list[str]:
    """Return the names of the columns.

    Raises:
        ConfigError: A name stands there twice, so one would hide the other, or there is one only,
            in which another separator stands.
    """
    names = [field.strip() for field in fields]
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError("decide FILE", f"{path} has the column '{twice}' twice", "name each once")
    found = [sign for sign in SEPARATORS if len(names) == 1 and sign in names[0]]
    if found:
        raise ConfigError(
            "decide FILE",
            f"{path} has one column, with {SEPARATORS[found[0]]} in its name",
            "separate by commas, with points in numbers, or by tabs in a .tsv",
        )
    return names


def _objects(path: Path, text: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    decoder = json.JSONDecoder(object_pairs_hook=_once)
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


def _once(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    """Return an object's keys and values.

    Raises:
        ValueError: A key stands there twice, so one value would hide the other.
    """
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!a:.60} stands there twice")
        found[key] = value
    return found


def _after_space(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    return position if found is None else found.end()


def _facts(path: Path) -> Mapping[str, object] | None:
    beside = path.with_name(FACTS_FILE)
    if not beside.is_file():
        return None
    try:
        found = json.loads(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError("decide FILE", f"{beside} cannot be read ({error})", "mend it") from error
    return found if isinstance(found, dict) else None


def _check_columns(path: Path, rows: Sequence[Raw], options: ReadOptions) -> None:
    names = {name for row in rows for name in row.values}
    names.discard("")
    strange = next((name for name in sorted(names) if not name.isprintable()), None)
    if strange is not None:
        problem = f"{path} has a column {strange!a:.60}, which cannot be printed"
        raise ConfigError("decide FILE", problem, "name it otherwise")
    wanted = [*options.columns.values(), *options.ignored, *(n for n, _ in options.left_out)]
    for name in wanted:
        if name not in names:
            raise ConfigError(
                "decide", f"{path} has no column '{name}'", f"it has: {', '.join(sorted(names))}"
            )
    for name, theirs in options.columns.items():
        if name in names and name not in (theirs, *options.ignored, *options.columns.values()):
            raise ConfigError(
                "--column",
                f"{path} has the columns '{theirs}' and '{name}', and both would be {name}",
                f"leave --column {name}={theirs} out, or --ignore {name}",
            )


def _text(value: object) -> str:
    return "" if value is None else str(value).strip()


def _is_same(name: str, value: object, asked: str) -> bool:
    """Return whether a row's value is the one that was asked for: numbers as numbers.

    Versions and names are texts: 0.30 is another engine build than 0.3.
    """
    if _text(value) == asked:
        return True
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if COLUMNS.get(name, "text") == "text" and not (is_number and name not in COLUMNS):
        return False
    left, _ = value_of({"tok_s": value}, "tok_s")
    right, _ = value_of({"tok_s": asked}, "tok_s")
    return left is not None and left == right


def _renamed(row: Raw, options: ReadOptions) -> Raw:
    old = {theirs: ours for ours, theirs in options.columns.items()}
    values = {
        old.get(name, name): value
        for name, value in row.values.items()
        if name not in options.ignored
    }
    for name, value in options.constants.items():
        stated, fault = value_of(values, name)
        if stated is None and fault is None:
            values[name] = value
        elif not _is_same(name, values[name], value):
            raise ConfigError(
                "--set",
                f"{row.where} says {name} {_text(values[name])!a:.60} and --set says '{value}'",
                f"leave --set {name}={value} out, or --ignore {name}",
            )
    return Raw(where=row.where, values=values, facts=row.facts)
