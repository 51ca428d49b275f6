"""Records of an audit: observations with their exact means, one file per engine process.

A file is one header line of JSON, padded to `HEADER_BYTES`, and then rows of `ROW` as they lie in
memory. Rows are only appended. The header is written again in place when recording stops at its
limit, so that a reader knows that the boot went on and the rows did not.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORMAT = "specpilot-audit"
FORMAT_VERSION = 1
HEADER_BYTES = 1024
ROW = np.dtype([("kind", "u1"), ("x", "<f4"), ("m", "<f4"), ("step", "<u4"), ("row", "<u2")])
"""kind: index into the header's kinds; x: what happened; m: its exact mean, both in [0, 1];
step: number of the engine's step, from 0; row: the request's slot in the engine."""

RANK_BUCKETS = ("1", "2-4", "5-16", "17-64", "65+")
BUCKET_ENDS = (1, 4, 16, 64)
"""Last rank of every bucket but the last; rank 1 is the likeliest token."""

FIRST_ACCEPTED = "first_accepted"
RECOVERED_IN_CANDIDATES = "recovered_in_candidates"
RECOVERED_RANK, EMITTED_RANK, BONUS_RANK = "recovered_rank_", "emitted_rank_", "bonus_rank_"
KINDS = (
    FIRST_ACCEPTED,
    RECOVERED_IN_CANDIDATES,
    *(f"{RECOVERED_RANK}{bucket}" for bucket in RANK_BUCKETS),
    *(f"{EMITTED_RANK}{bucket}" for bucket in RANK_BUCKETS),
    *(f"{BONUS_RANK}{bucket}" for bucket in RANK_BUCKETS),
)

DEFAULT_LIMIT_ROWS = 8_000_000
"""120 MB: about 600,000 steps of requests at 13 rows each."""


class RecordError(ValueError):
    """This file holds no records of an audit that this version reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordHeader:
    """What the rows of one file were taken from."""

    engine_version: str
    rejection_sample_method: str
    """standard, block, synthetic or fly, or none without speculation."""
    draft_sample_method: str
    """greedy or probabilistic, or none without speculation."""
    kinds: tuple[str, ...] = KINDS
    limit_rows: int = DEFAULT_LIMIT_ROWS
    truncated: bool = False
    """Whether recording stopped at `limit_rows` while the engine went on."""

    def line(self) -> bytes:
        """Return the header as it stands in the file, `HEADER_BYTES` long.

        Raises:
            RecordError: The header does not fit.
        """
        described = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "dtype": [list(field) for field in ROW.descr],
            **asdict(self),
        }
        text = json.dumps(described).encode()
        if len(text) >= HEADER_BYTES:
            raise RecordError(f"header of {len(text)} B, at most {HEADER_BYTES - 1} fit")
        return text.ljust(HEADER_BYTES - 1) + b"\n"


class RecordWriter:
    """Appends rows to one file up to the header's limit; opens the file with the first rows."""

    def __init__(self, path: Path, header: RecordHeader) -> None:
        self._path = path
        self._header = header
        self._left = header.limit_rows

    @property
    def full(self) -> bool:
        """Whether the limit is reached, so that nothing more is written."""
        return self._left <= 0

    def append(self, rows: NDArray[np.void]) -> None:
        """Write rows, or what of them the limit leaves room for.

        Args:
            rows: Of dtype `ROW`.
        """
        kept = rows[: max(self._left, 0)]
        if not self._path.exists():
            self._path.write_bytes(self._header.line())
        with self._path.open("ab") as file:
            file.write(kept.astype(ROW, copy=False).tobytes())
        self._left -= len(rows)
        if self.full and not self._header.truncated:
            self._header = replace(self._header, truncated=True)
            with self._path.open("r+b") as file:
                file.write(self._header.line())


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """One file's header and rows."""

    header: RecordHeader
    rows: NDArray[np.void]

    def by_kind(self) -> Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Return (x, m) of every kind that occurs, each in the order of the engine's steps."""
        parts = {}
        for code, kind in enumerate(self.header.kinds):
            of_kind = self.rows[self.rows["kind"] == code]
            if len(of_kind):
                parts[kind] = (of_kind["x"].astype(np.float64), of_kind["m"].astype(np.float64))
        return MappingProxyType(parts)


def read_records(path: Path) -> Records:
    """Read one file; a last row that is written only in part is left out.

    Raises:
        RecordError: The file is of another format or version.
        OSError: The file cannot be read.
    """
    content = path.read_bytes()
    line, body = content[:HEADER_BYTES], content[HEADER_BYTES:]
    described = _object(line)
    if described is None or described.get("format") != FORMAT:
        raise RecordError(f"{path}: does not begin with a header of an audit")
    if described.get("version") != FORMAT_VERSION:
        raise RecordError(f"{path}: version {described.get('version')}, not {FORMAT_VERSION}")
    known = {field.name for field in fields(RecordHeader)}
    values = {name: value for name, value in described.items() if name in known}
    try:
        header = RecordHeader(**{**values, "kinds": tuple(values["kinds"])})
    except (KeyError, TypeError) as fault:
        raise RecordError(f"{path}: its header lacks something: {fault}") from fault
    whole = len(body) // ROW.itemsize
    return Records(header=header, rows=np.frombuffer(body, ROW, count=whole))


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """Whether an audit attached to an engine."""

    attached: bool
    why: str
    """Why not, in one clause; empty where it attached."""


def write_note(path: Path, *, attached: bool, why: str) -> None:
    """Write down whether the audit attached in one process; a later note replaces an earlier."""
    path.write_text(json.dumps({"attached": attached, "why": why}), encoding="utf-8")


UNSEEN = (
    "no step of the V2 model runner was seen in this boot: another runner, or specpilot is not "
    "installed beside the engine"
)


def attachment(folder: Path) -> Attachment:
    """Return whether an audit attached in any process of the boot that wrote to a folder.

    Raises:
        RecordError: A note does not say whether.
        OSError: A note cannot be read.
    """
    notes = [_note(path) for path in sorted(folder.glob("audit-*.json"))]
    attached = next((note for note in notes if note.attached), None)
    return attached or next(iter(notes), Attachment(attached=False, why=UNSEEN))


def _note(path: Path) -> Attachment:
    told = _object(path.read_bytes())
    if told is None or not isinstance(told.get("attached"), bool):
        raise RecordError(f"{path}: does not say whether the audit attached")
    is_attached = bool(told["attached"])
    return Attachment(attached=is_attached, why="" if is_attached else str(told.get("why", "")))


def read_folder(folder: Path) -> tuple[Records, ...]:
    """Read every file of records of a boot, by name.

    Raises:
        RecordError: A file is of another format or version.
        OSError: A file cannot be read.
    """
    return tuple(read_records(path) for path in sorted(folder.glob("audit-*.rows")))


def rows_of(observed: NDArray[np.float32], *, step: int, slots: Iterable[int]) -> NDArray[np.void]:
    """Turn one step's observations into rows.

    Args:
        observed: [num_requests, 2, len(KINDS)], x and m as `nulls` returns them; NaN where a kind
            was not observed.
        step: Number of the step.
        slots: The request's slot in the engine, by row.

    Returns:
        Of dtype `ROW`, by request and kind.
    """
    seen, kinds = np.nonzero(~np.isnan(observed[:, 0]))
    rows = np.empty(len(seen), ROW)
    rows["kind"] = kinds
    rows["x"] = observed[seen, 0, kinds]
    rows["m"] = observed[seen, 1, kinds]
    rows["step"] = step
    rows["row"] = np.asarray(tuple(slots), np.uint16)[seen]
    return rows
