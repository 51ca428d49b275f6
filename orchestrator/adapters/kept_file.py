"""A state on this node's disk that is whole or not there, in a folder that one process holds."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from orchestrator.core.secrecy import redact_text, redact_texts


def locked(folder: Path) -> int:
    """Return a descriptor that holds the folder; the kernel frees it with the process.

    Raises:
        BlockingIOError: Somebody else holds it.
    """
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


class KeptFile:
    """A state that is written again and again, with most of it as it was.

    Args:
        path: Its first line names the form and has the digest of the second, the state.
        form: Name and version of what is in the state.
    """

    def __init__(self, path: Path, form: str) -> None:
        self.path = path
        self._form = form
        self._judged: dict[str, str] = {}

    def write(self, state: Mapping[str, Any], *, folder: int) -> None:
        """Put the state in the place of the last one: after a crash there is one or the other.

        Args:
            state: Plain JSON; of its texts, secrets are left out, as in reasons that an engine
                gave.
            folder: Descriptor of the file's folder, as ``locked`` returns it.

        Raises:
            OSError: It cannot be written.
        """
        body = json.dumps(self._redacted(state)).encode()
        head = json.dumps({"format": self._form, "sha256": sha256(body).hexdigest()}).encode()
        pending = self.path.with_suffix(".new")
        with pending.open("wb") as stream:
            stream.write(head + b"\n" + body)
            stream.flush()
            os.fsync(stream.fileno())
        pending.replace(self.path)
        os.fsync(folder)  # the name, too

    def _redacted(self, state: Mapping[str, Any]) -> object:
        """Return the state without secrets; a text that was in the last one is not judged again."""
        before, now = self._judged, dict[str, str]()

        def redacted(text: str) -> str:
            if text not in now:
                now[text] = before[text] if text in before else redact_text(text)
            return now[text]

        told, self._judged = redact_texts(state, redacted), now
        return told

    def read(self) -> dict[str, Any]:
        """Return the state in the file.

        Raises:
            OSError: It cannot be read.
            ValueError: It is damaged, or of another version; the text goes on after the file's
                name.
        """
        if not stat.S_ISREG(self.path.stat().st_mode):
            raise ValueError("is no file")
        head, _, body = self.path.read_bytes().partition(b"\n")
        try:
            told = json.loads(head)
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict) or "format" not in told:
            raise ValueError("is damaged: its first line is no head")
        if told["format"] != self._form:
            raise ValueError(
                f"was written by another version, as {told['format']} and not {self._form}"
            )
        if told.get("sha256") != sha256(body).hexdigest():
            raise ValueError("is damaged: it is not whole, or was changed")
        try:
            state = json.loads(body)
        except (ValueError, RecursionError):
            state = None
        if not isinstance(state, dict):
            raise ValueError("is damaged: it holds no state")
        return state
