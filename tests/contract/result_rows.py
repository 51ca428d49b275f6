"""Rows of results for the tests of ``decide``: CSV files whose truth is known."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path

from orchestrator.results.files import Raw

Row = dict[str, object]


def make_row(**changes: object) -> Row:
    """Return a sound row: 3 tokens a step, steps of 90 ms, one stream for 270 s."""
    return {
        "engine_build": "0.32.0",
        "num_speculative_tokens": 7,
        "draft_sample_method": "probabilistic",
        "rejection_sample_method": "block",
        "boot": "a",
        "node": "n1",
        "streams": 1,
        "temperature": 0.7,
        "workload": "code",
        "tokens": 9000,
        "seconds": 270.0,
        "drafts": 3000,
        "draft_tokens": 21000,
        "accepted": 6000,
        **changes,
    }


def plain_row(**changes: object) -> Row:
    """Return a row without speculation: 82 ms a token."""
    none = dict.fromkeys(
        ("draft_sample_method", "rejection_sample_method", "drafts", "draft_tokens", "accepted"), ""
    )
    row = make_row(**none, num_speculative_tokens=0, tokens=3000, seconds=246.0)
    return {**row, **changes}


def study_rows(*, num_boots: int = 4, gain: float = 1.0) -> list[Row]:
    """Return boots of the plain arm and of a speculating one; ``gain`` divides its step times."""
    rows: list[Row] = []
    for boot in range(num_boots):
        luck = 1 + 0.01 * (boot % 3) + 1e-5 * boot
        for block in range(2):
            shift = 10 * (2 * boot + block)
            rows.append(plain_row(boot=f"p{boot}", seconds=246.0 * luck + block))
            rows.append(
                make_row(
                    boot=f"s{boot}",
                    seconds=270.0 * luck / gain + block,
                    drafts=3000 - shift,
                    draft_tokens=7 * (3000 - shift),
                    accepted=6000 + shift,
                )
            )
    return rows


def to_csv(rows: Iterable[Mapping[str, object]]) -> str:
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_csv(path: Path, rows: Iterable[Mapping[str, object]]) -> Path:
    path.write_text(to_csv(rows), encoding="utf-8")
    return path


def as_raw(row: Mapping[str, object], where: str = "rows.csv line 2") -> Raw:
    """Return a row as the reader of CSV gives it: all text."""
    return Raw(where=where, values={name: str(value) for name, value in row.items()})
