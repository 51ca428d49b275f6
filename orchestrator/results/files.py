"""Files to raw rows and raw records. Nothing of their meaning is known here but the format."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.core.space import CAPABILITIES
from orchestrator.errors import ConfigError
from orchestrator.results.columns import is_same, text_of, value_of

_SPACE = re.compile(r"\s*")
SEPARATORS = {";": "semicolons", "\t": "tabs", ",": "commas", "|": "bars"}
"""What separates columns elsewhere, in words."""
_JSON_NAMES = (".json", ".jsonl", ".ndjson")
_TABLE_NAMES = (".csv", ".tsv")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarrel:
    """A value that is given for all rows, and a row that says otherwise."""

    name: str
    given: str
    stated: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRows:
    """The rows of one file, and what of the options does not fit it."""

    rows: tuple[Raw, ...]
    num_left_out: int
    names: tuple[str, ...]
    """Columns or keys of the file, by its own names."""
    lacking: tuple[str, ...]
    """Columns that the options name and the file does not have."""
    unmatched: Mapping[tuple[str, str], Sequence[str]]
    """What was to be left out and is in no row, each with the values that are there instead."""
    quarrels: tuple[Quarrel, ...]
    """One a name at most."""
    filled: frozenset[str]
    """What is given for all rows and some row of this file does not say itself."""


def read_raw(path: Path, options: ReadOptions) -> FileRows:
    """Return the rows of a file.

    What is in it says whether it is JSON (lines, one array, or one object after the other) or a
    table with a header. Lines of a table that begin with # are comments.

    Raises:
        ConfigError: It cannot be read, is broken, or has a column beside one that is to be read as
            it.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "decide FILE", f"{path} cannot be read ({error})", "name a readable file"
        ) from error
    if _is_json(path, text):
        facts = _facts(path)
        rows = [Raw(where=w, values=v, facts=facts) for w, v in _objects(path, text)]
    else:
        rows = list(_table(path, text))
    if not rows:
        raise ConfigError("decide FILE", f"{path} holds no row", "give a file with results")
    names = _names(path, rows, options)
    ours = {theirs: name for name, theirs in options.columns.items()}
    matches = [
        [is_same(ours.get(name, name), row.values.get(name), value) for row in rows]
        for name, value in options.left_out
    ]
    unmatched = {
        asked: list(dict.fromkeys(text_of(row.values.get(asked[0])) for row in rows))
        for asked, matched in zip(options.left_out, matches, strict=True)
        if not any(matched)
    }
    kept = [row for index, row in enumerate(rows) if not any(m[index] for m in matches)]
    wanted = [*options.columns.values(), *options.ignored, *(n for n, _ in options.left_out)]
    quarrels: dict[str, Quarrel] = {}
    filled: set[str] = set()
    renamed = tuple(_renamed(row, options, quarrels, filled) for row in kept)
    return FileRows(
        rows=renamed,
        num_left_out=len(rows) - len(kept),
        names=names,
        lacking=tuple(name for name in dict.fromkeys(wanted) if name not in names),
        unmatched=unmatched,
        quarrels=tuple(quarrels.values()),
        filled=frozenset(filled),
    )


def _is_json(path: Path, text: str) -> bool:
    begin = _after_space(text, 0)
    return text[begin : begin + 1] in ("{", "[") or path.suffix in _JSON_NAMES


def _table(path: Path, text: str) -> Iterator[Raw]:
    lines = _Lines(text)
    header_line = lines.first()
    has_tabs = "\t" in header_line and (path.suffix == ".tsv" or "," not in header_line)
    # Not lenient: a quote that is never closed would take all rows after it for one field.
    reader = csv.reader(lines, delimiter="\t" if has_tabs else ",", strict=True)
    try:
        header = _header(path, next(reader, []))
        lines.is_within_row = False
        for row in reader:
            where = f"{path} line {lines.number}"
            lines.is_within_row = False
            if len(row) > len(header):
                problem = f"{where} has more fields than the header"
                raise ConfigError("decide FILE", problem, "mend it")
            cells: list[str | None] = [*row, *[None] * (len(header) - len(row))]
            yield Raw(where=where, values=dict(zip(header, cells, strict=True)))
    except csv.Error as error:
        where = f"{path} line {lines.number}"
        raise ConfigError("decide FILE", f"{where} is no CSV ({error})", "mend it") from error


class _Lines:
    """The lines of a table without comments and empty ones, which a quoted field may hold."""

    def __init__(self, text: str) -> None:
        # Not splitlines(), which also splits at characters that end no row.
        self._lines = text.split("\n")
        self.number = 0
        """Of the line that was read last, from 1: of a row of several the last."""
        self.is_within_row = False
        """Whether the next line goes on with a row; whoever reads says when one is complete."""

    def first(self) -> str:
        """Return the line with the header; empty without one."""
        return next((line for line in self._lines if not _is_beside(line)), "")

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        while self.number < len(self._lines):
            line = self._lines[self.number]
            self.number += 1
            if self.is_within_row or not _is_beside(line):
                self.is_within_row = True
                return f"{line}\n"
        raise StopIteration


def _is_beside(line: str) -> bool:
    return not line.strip() or line.startswith("#")


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
            "separate by commas or tabs, with points in numbers",
        )
    if len(names) == 1 and path.suffix not in _TABLE_NAMES:
        raise ConfigError(
            "decide FILE",
            f"{path} is neither JSON nor a table: its first line is {names[0]!a:.60}",
            "begin a table with its columns' names, separated by commas",
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
                "decide FILE", f"{path} line {line} is not JSON ({error})", "mend it"
            ) from error
        position = _after_space(text, end)
        for item in value if isinstance(value, list) else [value]:
            number += 1
            where = f"{path} record {number}"
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


def _names(path: Path, rows: Sequence[Raw], options: ReadOptions) -> tuple[str, ...]:
    """Return the names of the columns or keys, in order.

    Raises:
        ConfigError: One cannot be printed, or two would be read as one.
    """
    names = {name for row in rows for name in row.values}
    names.discard("")
    strange = next((name for name in sorted(names) if not name.isprintable()), None)
    if strange is not None:
        problem = f"{path} has a column {strange!a:.60}, which cannot be printed"
        raise ConfigError("decide FILE", problem, "name it otherwise")
    for name, theirs in options.columns.items():
        is_read = name in names and name not in (*options.ignored, *options.columns.values())
        if is_read and theirs in names:
            raise ConfigError(
                "--column",
                f"{path} has the columns '{theirs}' and '{name}', and both would be {name}",
                f"leave --column {name}={theirs} out, or --ignore {name}",
            )
    return tuple(sorted(names))


def _renamed(row: Raw, options: ReadOptions, quarrels: dict[str, Quarrel], filled: set[str]) -> Raw:
    """Return the row by the schema's names, with what is given for all rows where it says none.

    A value that it states otherwise is left as it is, and the first of each name noted. A row
    without speculation is given no rule, for it cannot have one.
    """
    old = {theirs: ours for ours, theirs in options.columns.items()}
    values = {
        old.get(name, name): value
        for name, value in row.values.items()
        if name not in options.ignored
    }
    constants = dict(options.constants)
    depth = constants.get("num_speculative_tokens", "")
    if value_of({"num_speculative_tokens": depth, **values}, "num_speculative_tokens")[0] == 0:
        constants = {name: value for name, value in constants.items() if name not in CAPABILITIES}
    for name, value in constants.items():
        stated, fault = value_of(values, name)
        if stated is None and fault is None:
            values[name] = value
            filled.add(name)
        elif not is_same(name, values[name], value) and name not in quarrels:
            said = text_of(values[name])
            quarrels[name] = Quarrel(name=name, given=value, stated=said, where=row.where)
    return Raw(where=row.where, values=values, facts=row.facts)
