"""The schema of a row: one block of one boot, or one run. docs/decide.md has it as a table."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["text", "count", "number"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column that is read."""

    kind: Kind
    """count: a whole number from 0. number: finite, from 0."""
    meaning: str


COLUMNS: dict[str, Column] = {
    "engine_build": Column(kind="text", meaning="version of the engine, such as 0.32.0"),
    "num_speculative_tokens": Column(kind="count", meaning="draft depth; 0 is no speculation"),
    "draft_sample_method": Column(kind="text", meaning="greedy or probabilistic"),
    "rejection_sample_method": Column(kind="text", meaning="standard, block or synthetic"),
    "boot": Column(kind="text", meaning="which boot of the arm"),
    "node": Column(kind="text", meaning="which board"),
    "streams": Column(kind="count", meaning="concurrent requests"),
    "temperature": Column(kind="number", meaning="sampling temperature"),
    "workload": Column(kind="text", meaning="name of the prompts"),
    "tokens": Column(kind="count", meaning="output tokens of all streams"),
    "seconds": Column(kind="number", meaning="length of the window by wall"),
    "tok_s": Column(kind="number", meaning="output tokens / s of all streams, by wall"),
    "drafts": Column(kind="count", meaning="growth of the engine's num_drafts"),
    "draft_tokens": Column(kind="count", meaning="growth of num_draft_tokens"),
    "accepted": Column(kind="count", meaning="growth of num_accepted_tokens"),
    "accepted_per_pos": Column(kind="text", meaning="accepted drafts by position, a list"),
    "acceptance_length": Column(kind="number", meaning="tokens a step, bonus token counted"),
    "acceptance_rate": Column(kind="number", meaning="accepted / drafted tokens, 0 to 1"),
    "engine_tokens": Column(kind="number", meaning="growth of the engine's generation_tokens"),
    "ttft_s": Column(kind="number", meaning="median time to the first token"),
    "tpot_s": Column(kind="number", meaning="median time per output token"),
    "requests": Column(kind="count", meaning="requests that were made"),
    "failed": Column(kind="count", meaning="requests that failed"),
    "runs": Column(kind="count", meaning="runs that the row is the mean of; empty is one"),
    "config": Column(kind="text", meaning="somebody's own name of the arm; not used"),
    "note": Column(kind="text", meaning="free text; not used"),
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
    kind: Kind = "count" if name not in COLUMNS else COLUMNS[name].kind
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
