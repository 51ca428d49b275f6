"""API keys of clients: read where the router runs, and nowhere else."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path

logger = logging.getLogger(__name__)

OPEN = "open"
"""Source of a router that asks for no key."""
FILE, VARIABLE = "file:", "env:"
REREAD_S = 5.0
"""A change of the file is in force after so long at the latest."""
MIN_KEY_LENGTH = 16
"""A shorter one could be found by trying."""
_KEY = re.compile(r"[\x21-\x7e]+")
_COMMENT = re.compile(r"(^|\s)#.*")


class KeysError(Exception):
    """The keys cannot be read; the text never holds one."""


class KeyRing:
    """The keys that open the router.

    The declaration names only where they are, so that nothing derived from a key leaves the
    router's node: what Serve is told is shown by its dashboard and kept in Ray's control store.

    Args:
        source: ``open``, ``file:/path`` (a key a line; ``#`` at the start or after white space
            begins a comment) or ``env:NAME`` (keys with commas or spaces between).
        clock: Monotonic seconds.
        environ: The environment.

    Raises:
        ValueError: The source is none of these.
    """

    def __init__(
        self,
        source: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        if source != OPEN and not source.startswith((FILE, VARIABLE)):
            # The text may be a key that somebody put into the wrong place.
            raise ValueError("api_keys: not open, file:PATH or env:NAME")
        self.source = source
        self._clock = clock
        self._environ = environ
        self._salt = secrets.token_bytes(32)
        self._digests: tuple[bytes, ...] = ()
        self._looked_s = -REREAD_S
        self._read_of: tuple[int, ...] | None = None
        self._problem: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether no key is asked for."""
        return self.source == OPEN

    def holds(self, key: str) -> bool:
        """Return whether this is one of the keys, in a time that does not depend on which.

        Raises:
            KeysError: They cannot be read now. Keys that were read before do not count: whoever
                took the file away may have meant it.
        """
        self._refresh()
        if self._problem is not None:
            # One that is raised again would keep every request that it went through.
            raise KeysError(self._problem)
        asked, found = self._digest(key), False
        for digest in self._digests:
            found |= hmac.compare_digest(asked, digest)
        return found

    def _digest(self, key: str) -> bytes:
        # Of equal length whatever the key's, and useless outside this process.
        return hashlib.blake2b(key.encode(errors="replace"), key=self._salt).digest()

    def _refresh(self) -> None:
        now_s = self._clock()
        if now_s - self._looked_s < REREAD_S:
            return
        self._looked_s = now_s
        try:
            read_of = self._stamp()
            if self._problem is None and read_of == self._read_of:
                return
            self._digests = tuple(self._digest(key) for key in _checked(self._keys()))
        except (OSError, KeysError, UnicodeDecodeError) as error:
            self._problem = f"{self.source}: {_reason(error)}"
            logger.error("the API keys cannot be read: %s", self._problem)
            return
        self._problem, self._read_of = None, read_of
        logger.info("%d API keys read from %s", len(self._digests), self.source)

    def _stamp(self) -> tuple[int, ...]:
        if self.source.startswith(VARIABLE):
            return ()
        status = Path(self.source.removeprefix(FILE)).stat()
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _keys(self) -> list[str]:
        if self.source.startswith(VARIABLE):
            text = self._environ.get(self.source.removeprefix(VARIABLE), "")
            return text.replace(",", " ").split()
        return _keys_of_lines(Path(self.source.removeprefix(FILE)).read_text(encoding="utf-8"))


def bearer(authorization: str | None) -> str | None:
    """Return the token of an Authorization header (RFC 6750); None where it has none."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def _checked(keys: list[str]) -> list[str]:
    if not keys:
        raise KeysError("there is no key")
    for number, key in enumerate(keys, start=1):
        if len(key) < MIN_KEY_LENGTH or not _KEY.fullmatch(key):
            raise KeysError(
                f"key {number} is not {MIN_KEY_LENGTH} visible ASCII characters or more"
            )
    return keys


def _keys_of_lines(text: str) -> list[str]:
    keys: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = _COMMENT.sub("", line).split()
        if len(words) > 1:  # a name beside a key would be a key that is easily guessed
            raise KeysError(f"line {number} has more than a key; a comment begins with #")
        keys += words
    return keys


def _reason(error: Exception) -> str:
    """Return what went wrong; a decoder's own words would show what it read."""
    if isinstance(error, UnicodeDecodeError):
        return "is no UTF-8 text"
    return error.strerror or "cannot be read" if isinstance(error, OSError) else str(error)
