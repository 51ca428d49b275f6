"""What an audit wrote on this node, as the judge of losslessness takes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from orchestrator.core.lossless.observations import Observations
from serve_apps.audit.records import KINDS, ROW, read_folder

Rows = NDArray[np.void]


def all_rows(folder: Path) -> Rows:
    """Return the rows of a boot, of all its processes that sampled.

    Raises:
        RecordError: A file is of another format or version.
        OSError: A file cannot be read.
    """
    parts = [records.rows for records in read_folder(folder)]
    return np.concatenate(parts) if parts else np.empty(0, ROW)


def observations(rows: Rows) -> Mapping[str, Observations]:
    """Return rows by kind, in the order in which they were written."""
    return {
        kind: Observations(x=of_kind["x"], m=of_kind["m"])
        for code, kind in enumerate(KINDS)
        if len(of_kind := rows[rows["kind"] == code])
    }


def is_truncated(folder: Path) -> bool:
    """Return whether recording stopped at its limit while the engine went on.

    Raises:
        RecordError: A file is of another format or version.
        OSError: A file cannot be read.
    """
    return any(records.header.truncated for records in read_folder(folder))
