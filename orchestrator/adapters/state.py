"""Where a node keeps what outlives one process."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path

from orchestrator.adapters.content_digest import ContentDigests


class Folder(StrEnum):
    """The folders below the state folder; ``clean`` and a new driver find them by these names."""

    BOOTS = "boots"
    STUDIES = "studies"
    TUNE = "tune"
    AUDIT = "audit"
    LOGS = "logs"
    CACHE = "cache"
    WATCH = "watch"


def state_dir() -> Path:
    """Return the folder for logs, caches and Tune's state, on every node the same; absolute."""
    given = os.environ.get("SPECPILOT_STATE_DIR")
    # By its letters alone: a link may lead elsewhere on another node.
    return Path(os.path.normpath(Path(given).absolute())) if given else Path.home() / ".specpilot"


def boots_dir() -> Path:
    """Return the folder with a record for each boot of a trial that runs, or died, on this node."""
    return (state_dir() / Folder.BOOTS).absolute()


def tune_dir() -> Path:
    """Return the folder with Tune's own folder for each study."""
    return state_dir() / Folder.TUNE


def content_digests() -> ContentDigests:
    """Return the digests of files with this node's memory of them: weights are read once."""
    return ContentDigests(state_dir() / "digests.json")
