"""The file of an audit: what is appended is read back; limits, torn rows and strange files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from serve_apps.audit.records import (
    HEADER_BYTES,
    KINDS,
    ROW,
    RecordError,
    RecordHeader,
    RecordWriter,
    read_records,
    rows_of,
)


def header(**changes: int) -> RecordHeader:
    return RecordHeader(
        engine_version="0.32.0",
        rejection_sample_method="standard",
        draft_sample_method="probabilistic",
        **changes,  # type: ignore[arg-type]
    )


def rows(count: int, start: int = 0) -> NDArray[np.void]:
    made = np.zeros(count, ROW)
    made["kind"] = np.arange(count) % len(KINDS)
    made["x"], made["m"], made["step"] = 1.0, 0.25, start + np.arange(count)
    return made


def test_appended_rows_are_read_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "audit-1.rows"
    writer = RecordWriter(path, header())
    for start, count in ((0, 3), (3, 5)):
        writer.append(rows(count, start))
    read = read_records(path)
    assert read.header == header()
    assert read.rows["step"].tolist() == list(range(8))


def test_nothing_appended_is_no_file(tmp_path: Path) -> None:
    RecordWriter(tmp_path / "audit-1.rows", header())
    assert not list(tmp_path.iterdir())


def test_limit_stops_recording_and_the_header_says_so(tmp_path: Path) -> None:
    path = tmp_path / "audit-1.rows"
    writer = RecordWriter(path, header(limit_rows=10))
    for start in (0, 7, 14):
        writer.append(rows(7, start))
    assert writer.full
    read = read_records(path)
    assert read.header.truncated
    assert read.rows["step"].tolist() == list(range(10))
    assert path.stat().st_size == HEADER_BYTES + 10 * ROW.itemsize


def test_row_that_is_written_in_part_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "audit-1.rows"
    RecordWriter(path, header()).append(rows(4))
    path.write_bytes(path.read_bytes()[:-1])
    assert len(read_records(path).rows) == 3


@pytest.mark.parametrize("content", [b"", b"x" * 2000, b"[1]\n", b'{"format": "other"}\n'])
def test_strange_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "audit-1.rows"
    path.write_bytes(content)
    with pytest.raises(RecordError, match="header of an audit"):
        read_records(path)


def test_file_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "audit-1.rows"
    path.write_bytes(header().line().replace(b'"version": 1', b'"version": 9'))
    with pytest.raises(RecordError, match="version 9"):
        read_records(path)


def test_header_that_does_not_fit_is_refused() -> None:
    with pytest.raises(RecordError, match="at most"):
        RecordHeader(
            engine_version="0" * HEADER_BYTES,
            rejection_sample_method="standard",
            draft_sample_method="greedy",
        ).line()


@given(st.lists(st.lists(st.booleans(), min_size=len(KINDS), max_size=len(KINDS)), max_size=5))
def test_rows_of_keeps_every_observation_and_no_other(seen: list[list[bool]]) -> None:
    observed = np.full((len(seen), 2, len(KINDS)), np.nan, np.float32)
    for request, kinds in enumerate(seen):
        observed[request][:, kinds] = 0.5
    made = rows_of(observed, step=7, slots=range(100, 100 + len(seen)))
    expected = [
        (100 + r, k) for r, kinds in enumerate(seen) for k, is_in in enumerate(kinds) if is_in
    ]
    assert list(zip(made["row"].tolist(), made["kind"].tolist(), strict=True)) == expected
    assert set(made["step"].tolist()) <= {7}
