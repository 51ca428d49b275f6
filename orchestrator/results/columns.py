"""The schema of a row: one block of one boot, or one run. docs/decide.md has it as a table."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
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
        The value, or None where the row has none (empty, ``-``, ``NA``, null), and the fault or
        None.
    """
    raw = row.get(name)
    if isinstance(raw, str):
        raw = raw.strip()
    if raw is None or raw in ("", "-", "NA", "N/A", "null", "None"):
        return None, None
    kind: Kind = COLUMNS.get(name, "count")
    if kind == "text":
        return _text(raw, name)
    return _number(raw, name, kind)


def _text(raw: object, name: str) -> tuple[object, str | None]:
    if isinstance(raw, list) and name == "accepted_per_pos":
        return raw, None
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        return None, f"{name} {str(raw)!a:.60} is no text"
    if not str(raw).isprintable():
        return None, f"{name} {str(raw)!a:.60} has characters that cannot be printed"
    return str(raw), None


def _number(raw: object, name: str, kind: Kind) -> tuple[float | None, str | None]:
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        return None, f"{name} {str(raw)!a:.60} is no number"
    try:
        value = float(raw)
    except OverflowError:
        return None, f"{name} has {len(str(raw))} digits"
    except ValueError:
        hint = ": is the point a comma?" if isinstance(raw, str) and "," in raw else ""
        hint = ": write it without the sign" if isinstance(raw, str) and "%" in raw else hint
        return None, f"{name} {str(raw)!a:.60} is no number{hint}"
    if not math.isfinite(value):
        return None, f"{name} is {raw!s:.20}: a value that is not known is left empty"
    if value < 0:
        return None, f"{name} {value:g} is negative"
    if kind == "count" and not value.is_integer():
        hint = ": a share where a count belongs?" if value < 1 else ""
        return None, f"{name} {value:g} is no whole number{hint}"
    return value, None
