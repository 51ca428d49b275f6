"""What clients' requests were like: times, temperature, numbers of tokens; no text, no address.

A record is one line of the log that ``orchestrator traffic`` reads.
"""

from __future__ import annotations

import json
import math
import secrets
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

MAX_RECORDS = 16_384
"""Kept in memory, about 8 MB; at ten requests a second the last 27 minutes."""
_SSE_TAIL = 4
"""Chunks at the end of a stream that usage may stand in: before ``[DONE]`` comes one with it."""
_MAX_FIRST_BYTES = 1 << 16
"""Of an event that may say who speaks; a longer one says more."""
_MAX_KEPT_BYTES = 16 << 20
"""Of an answer that is no stream: usage stands somewhere in its one object."""


class Tally:
    """Counts one answer while it passes; a chunk costs a count and an append.

    Args:
        content_type: Of the answer.
    """

    __slots__ = (
        "_first",
        "_half",
        "_is_stream",
        "_kept",
        "_num_bytes",
        "_num_events",
        "_num_without_answer",
    )

    def __init__(self, content_type: str) -> None:
        self._is_stream = content_type.startswith("text/event-stream")
        self._kept: deque[bytes] = deque(maxlen=_SSE_TAIL if self._is_stream else None)
        self._num_events = 0
        self._num_without_answer = 0
        self._half = b""
        self._first: bytes | None = b""
        self._num_bytes = 0

    def saw(self, chunk: bytes) -> None:
        """Count a chunk that is passed on."""
        if self._is_stream:
            # An event ends with an empty line, and JSON inside one has none.
            lines = self._half + chunk
            self._num_events += lines.count(b"\n\n")
            self._half = b"\n" if lines.endswith(b"\n") and not lines.endswith(b"\n\n") else b""
            if self._first is not None:
                self._count_announcements(chunk)
        else:
            self._num_bytes += len(chunk)
            if self._num_bytes > _MAX_KEPT_BYTES:
                self._kept.clear()
                return
        self._kept.append(chunk)

    def _count_announcements(self, chunk: bytes) -> None:
        """Count the events at a stream's beginning that say who speaks, until one says more."""
        assert self._first is not None
        *events, rest = (self._first + chunk).split(b"\n\n")
        for event in events:
            if not _announces_role(event):
                self._first = None
                return
            self._num_without_answer += 1
        self._first = rest if len(rest) <= _MAX_FIRST_BYTES else None

    def tokens(self) -> dict[str, object]:
        """Return ``output_tokens``, ``output_tokens_from`` and ``prompt_tokens``.

        Tokens are ``usage``'s where the answer has it. Else ``output_tokens`` is the number of data
        events with an answer in them, from ``chunks``: a lower bound, since an engine that
        speculates puts the tokens of a step into one. None where neither is known.
        """
        usage = self._usage()
        if usage is not None:
            return {
                "output_tokens": usage.get("completion_tokens"),
                "output_tokens_from": "usage",
                "prompt_tokens": usage.get("prompt_tokens"),
            }
        if not self._is_stream:
            return {"output_tokens": None, "output_tokens_from": None, "prompt_tokens": None}
        is_whole = b"".join(self._kept).endswith(b"data: [DONE]\n\n")
        return {
            "output_tokens": max(0, self._num_events - self._num_without_answer - is_whole),
            "output_tokens_from": "chunks",
            "prompt_tokens": None,
        }

    def tells_failure(self) -> bool:
        """Return whether the answer says in its own text that the engine failed.

        A stream has its status before its first token, so what goes wrong later comes as an event.
        """
        return any(b'"error"' in text and _is_failure(text) for text in self._objects())

    def _usage(self) -> Mapping[str, Any] | None:
        for text in self._objects():
            if b'"usage"' in text:
                try:
                    usage = json.loads(text).get("usage")
                except (ValueError, AttributeError, RecursionError):
                    continue  # cut off, or an error's text
                if isinstance(usage, dict):
                    return usage
        return None

    def _objects(self) -> Iterator[bytes]:
        whole = b"".join(self._kept)
        if not self._is_stream:
            yield whole
            return
        for event in reversed(whole.split(b"\n\n")):
            yield event.removeprefix(b"data:")


def _is_failure(text: bytes) -> bool:
    """Return whether a JSON object is an error that is not the client's (a code below 500)."""
    try:
        item = json.loads(text)
        error = item if item.get("object") == "error" else item.get("error")
    except (ValueError, AttributeError, RecursionError):
        return False  # cut off, or an answer in which the word stands
    code = error.get("code") if isinstance(error, dict) else None
    return bool(error) and not (isinstance(code, int) and code < 500)


def _announces_role(event: bytes) -> bool:
    """Return whether an event says who speaks and no more, as the first ones of chats do."""
    if b'"role"' not in event:
        return False
    try:
        deltas = [choice["delta"] for choice in json.loads(event.removeprefix(b"data:"))["choices"]]
        return not any(text for delta in deltas for name, text in delta.items() if name != "role")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False


class Records:
    """The last requests, numbered from 1 in the order in which they ended."""

    def __init__(self, limit: int = MAX_RECORDS) -> None:
        self._kept: deque[dict[str, object]] = deque(maxlen=limit)
        self._last = 0
        self._boot = secrets.token_hex(8)

    def add(
        self,
        *,
        started_at: float,
        ended_at: float,
        temperature: float | None,
        streams_at_start: int,
        tokens: Mapping[str, object],
    ) -> None:
        """Add a request that ended.

        Args:
            started_at: When the router had it, seconds since the epoch.
            ended_at: After its last chunk, or when it broke off; seconds since the epoch.
            temperature: None where the request does not state one.
            streams_at_start: Clients' requests under way when it came, itself among them.
            tokens: ``Tally.tokens()``.
        """
        self._last += 1
        self._kept.append(
            {
                "number": self._last,
                "started_at": started_at,
                "ended_at": ended_at,
                "temperature": temperature,
                "streams_at_start": streams_at_start,
                **tokens,
            }
        )

    def since(self, after: int) -> dict[str, Any]:
        """Return the records with a number above ``after``.

        Args:
            after: ``last`` of the reading before, 0 at first. One that this process has not reached
                is another process's, and all records are new.

        Returns:
            ``records``, oldest first; ``last``, the number to give next; ``lost``, how many newer
            than ``after`` have left the bound; ``boot``, which is another one when the router was
            restarted, its numbers began again, and what it had not told is lost.
        """
        after = after if 0 <= after <= self._last else 0
        first = self._last - len(self._kept) + 1
        skipped = max(0, after + 1 - first)
        return {
            "boot": self._boot,
            "last": self._last,
            "lost": max(0, first - after - 1),
            "records": [dict(record) for record in islice(self._kept, skipped, None)],
        }


def stated_temperature(request: Mapping[str, Any]) -> float | None:
    """Return the temperature of a request's body; None where it states none that is a number."""
    value = request.get("temperature")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
