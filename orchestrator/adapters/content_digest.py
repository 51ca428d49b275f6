"""Digests of whole files, remembered, because a checkpoint takes minutes to read."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from pathlib import Path

from orchestrator.errors import ConfigError

# Reading 60 GB fills the page cache, and on unified memory the engine's own check then fails.
_LARGE_BYTES = 1 << 28
# A file can change twice within one tick of the file system's clock.
_SETTLED_S = 2.0
_SHA256 = re.compile(r"[0-9a-f]{64}")


class ContentDigests:
    """SHA-256 of files by their whole content.

    With a cache file, a file is read once: its digest is kept under its real path, size, inode,
    and times of modification and of status change, to the nanosecond. So a changed file is missed
    only where all of these stay: writes to the disk beneath the file system, a clock that was set
    back between two changes, or a network file system that reports stale attributes. Without a
    cache file nothing is missed, and every file is read every time.

    Args:
        cache: JSON file; made when missing, read anew when broken. Processes may share it.
    """

    def __init__(self, cache: Path | None) -> None:
        self._cache = cache

    def of(self, file: Path) -> str:
        """Return the digest of a file, 64 hex digits; links are followed.

        Raises:
            ConfigError: The file cannot be read, or changes while it is read.
        """
        try:
            real = file.resolve(strict=True)
            key = _key(real)
            known = self._read().get(key)
            if known is not None:
                return known
            found = _sha256(real)
            after = _key(real)
        except OSError as error:
            raise ConfigError(str(file), f"cannot be read ({error})", "repair the file") from error
        if after != key:
            raise ConfigError(
                str(file), "changes while it is read", "wait until the copy is complete"
            )
        if self._cache is not None and _is_settled(real):
            self._keep(key, found)
        return found

    def _read(self) -> dict[str, str]:
        if self._cache is None:
            return {}
        try:
            known = json.loads(self._cache.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        entries = known.items() if isinstance(known, dict) else ()
        return {key: v for key, v in entries if isinstance(v, str) and _SHA256.fullmatch(v)}

    def _keep(self, key: str, found: str) -> None:
        """Add a digest; of two writers one may lose its entry, and reads that file again."""
        assert self._cache is not None
        place = key.split("\0", 1)[0]
        others = {k: v for k, v in self._read().items() if k.split("\0", 1)[0] != place}
        pending = self._cache.with_name(f"{self._cache.name}.{os.getpid()}")
        try:
            self._cache.parent.mkdir(parents=True, exist_ok=True)
            pending.write_text(json.dumps({**others, key: found}, indent=0), encoding="utf-8")
            pending.replace(self._cache)
        except OSError:
            pending.unlink(missing_ok=True)  # a full or read-only disk costs time, not a trial


def _key(real: Path) -> str:
    told = real.stat()
    numbers = (told.st_size, told.st_ino, told.st_mtime_ns, told.st_ctime_ns)
    return "\0".join((str(real), *map(str, numbers)))


def _is_settled(real: Path) -> bool:
    told = real.stat()
    return time.time() - max(told.st_mtime, told.st_ctime) > _SETTLED_S


def _sha256(real: Path) -> str:
    with real.open("rb") as stream:
        seen = hashlib.file_digest(stream, "sha256").hexdigest()
        if hasattr(os, "posix_fadvise") and os.fstat(stream.fileno()).st_size >= _LARGE_BYTES:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return seen
