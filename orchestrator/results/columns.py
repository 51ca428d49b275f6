"""The schema of a row: one block of one boot, or one run. docs/decide.md has it as a table."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Literal

Kind = Literal["text", "count", "number"]
"""count: a whole number from 0. number: finite, from 0."""


COLUMNS: dict[str, Kind] = {
    "engine_build": "text",
    "num_speculative_tokens": "count",
    "draft_sample_method": "text",
    "rejection_sample_method": "text",
    "boot": "text",
    "node": "text",
    "streams": "count",
    "temperature": "number",
    "workload": "text",
    "tokens": "count",
    "seconds": "number",
    "tok_s": "number",
    "drafts": "count",
    "draft_tokens": "count",
    "accepted": "count",
    "accepted_per_pos": "text",
    "acceptance_length": "number",
    "acceptance_rate": "number",
    "engine_tokens": "number",
    "ttft_s": "number",
    "tpot_s": "number",
    "requests": "count",
    "failed": "count",
    "runs": "count",
    "config": "text",
    "note": "text",
}
"""Besides these: p0, p1, ... accepted drafts by position, as an alternative to the list."""

POSITION = re.compile(r"p(\d{1,2})")

_OFTEN = {
    "build": "engine_build",
    "version": "engine_build",
    "k": "num_speculative_tokens",
    "depth": "num_speculative_tokens",
    "draft": "draft_sample_method",
    "reject": "rejection_sample_method",
    "rejection": "rejection_sample_method",
    "t": "temperature",
    "temp": "temperature",
    "concurrency": "streams",
    "c": "streams",
    "output_tokens": "tokens",
    "duration_s": "seconds",
    "output_throughput": "tok_s",
    "num_drafts": "drafts",
    "num_draft_tokens": "draft_tokens",
    "num_accepted_tokens": "accepted",
    "num_accepted_tokens_per_pos": "accepted_per_pos",
    "generation_tokens": "engine_tokens",
    "num_requests": "requests",
}
"""What others call the columns. Asked about and not assumed: a c may be anything."""

ALIKE = 0.75
"""Similarity (difflib's ratio) from which an unknown name is taken for a slip of a known one."""


_NOT_KNOWN = ("", "-", "na", "n/a", "null", "none")
"""How tables write that a value is not known, in small letters; of a text also ``nan``."""


def near_match(name: str) -> str | None:
    """Return the known column that an unknown name may be meant as; None without one."""
    if name.lower() in _OFTEN:
        return _OFTEN[name.lower()]
    return similar(name, COLUMNS)


def similar(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is alike enough for a slip of the pen; None without one."""
    found = difflib.get_close_matches(name.lower(), known, n=1, cutoff=ALIKE)
    return found[0] if found else None


def is_known(name: str) -> bool:
    """Return whether a column of this name is read."""
    return name in COLUMNS or POSITION.fullmatch(name) is not None


def value_of(row: Mapping[str, object], name: str) -> tuple[object, str | None]:
    """Return a column's value by its kind, and what is wrong with it.

    Returns:
        The value, or None where the row has none (empty, ``-``, ``NA``, null, in small or capital
        letters; of a text also ``NaN``), and the fault or None.
    """
    raw = row.get(name)
    if isinstance(raw, str):
        raw = raw.strip()
    kind: Kind = COLUMNS.get(name, "count")
    if raw is None or (isinstance(raw, str) and raw.lower() in _NOT_KNOWN):
        return None, None
    if kind == "text":
        # Of a number it is an error of what made it; a version or a name of that kind is none.
        if str(raw).lower() == "nan":
            return None, None
        return _text(raw, name)
    return _number(raw, name, kind)


def step_of(value: float) -> float:
    """Return the unit of the last decimal that a number is written with, at most 1."""
    exponent = Decimal(repr(float(value))).normalize().as_tuple().exponent
    return 10.0 ** min(0, exponent) if isinstance(exponent, int) else 1.0


def _percent_hint(raw: str, name: str) -> str:
    """Return what to write for a number with a percent sign; empty without one."""
    if not raw.endswith("%"):
        return ""
    try:
        share = Decimal(raw[:-1].strip().replace(",", ".")) / 100
    except InvalidOperation:
        return ""
    if name == "acceptance_rate" and 0 <= share <= 1:
        return f": a share of 1 belongs there, {share.normalize():f}"
    return ": a percent sign does not belong there"


def _text(raw: object, name: str) -> tuple[object, str | None]:
    if isinstance(raw, list) and name == "accepted_per_pos":
        return raw, None
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        return None, f"{name} {str(raw)!a:.60} is no text"
    if not str(raw).isprintable():
        return None, f"{name} {str(raw)!a:.60} has characters that cannot be printed"
    return str(raw), None


def text_of(value: object) -> str:
    """Return a value as the text that a table would have; empty for null."""
    return "" if value is None else str(value).strip()


def is_same(name: str, value: object, asked: str) -> bool:
    """Return whether a row's value is the one that was asked for: numbers as numbers.

    Versions and names are texts: 0.30 is another engine build than 0.3.
    """
    if text_of(value) == asked:
        return True
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if COLUMNS.get(name, "text") == "text" and not (is_number and name not in COLUMNS):
        return False
    left, _ = value_of({"tok_s": value}, "tok_s")
    right, _ = value_of({"tok_s": asked}, "tok_s")
    return left is not None and left == right


def _number(raw: object, name: str, kind: Kind) -> tuple[float | None, str | None]:
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        return None, f"{name} {str(raw)!a:.60} is no number"
    try:
        value = float(raw)
    except OverflowError:
        return None, f"{name} has {len(str(raw))} digits"
    except ValueError:
        hint = ": is the point a comma?" if isinstance(raw, str) and "," in raw else ""
        return None, f"{name} {str(raw)!a:.60} is no number{_percent_hint(str(raw), name) or hint}"
    if not math.isfinite(value):
        return None, f"{name} is {raw!s:.20}: a value that is not known is left empty"
    if value < 0:
        return None, f"{name} {value:g} is negative"
    if kind == "count" and not value.is_integer():
        hint = ": a share where a count belongs?" if value < 1 else ""
        return None, f"{name} {value:g} is no whole number{hint}"
    return value, None
