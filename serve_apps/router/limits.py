"""What a client may send, and for how long."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from starlette.requests import ClientDisconnect, Request

from serve_apps.router.policy import MAX_CLIENT_STREAMS, Refusal

MAX_PROBES = 16
"""Requests of ``/health`` under way at once: they need no key, and an engine answers each."""
MAX_BODIES_BYTES = 512 << 20
"""Of clients' bodies in memory at once, 16 of the longest by default: one more is answered 503."""
PATIENCE_S = 2.0
"""A client may send its body for so long even where another one waits for its place."""
# The rest of what was not read is not wanted, and may be long.
_CLOSE = {"Connection": "close"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one client request, and of all of them at once."""

    max_streams: int = 512
    """Client requests under way at once, 1 to MAX_CLIENT_STREAMS; one more is answered 503."""
    max_body_bytes: int = 32 << 20
    """Of a request's body; a longer one is answered 413."""
    max_header_bytes: int = 32 << 10
    """Of all headers of a request; longer ones are answered 431. Serve's proxy has no limit."""
    body_timeout_s: float = 30.0
    """Longest time for sending the body, from when the router has the headers; then 408."""
    read_timeout_s: float = 60.0
    """Longest time without reading, once the socket's buffers are full; see ``proxy``."""

    def __post_init__(self) -> None:
        """Check ranges.

        Raises:
            ValueError: One is out of range.
        """
        for each in fields(self):
            if not 0 < getattr(self, each.name) < float("inf"):
                raise ValueError(f"limits.{each.name}: {getattr(self, each.name)} is not above 0")
        if self.max_streams > MAX_CLIENT_STREAMS:
            raise ValueError(
                f"limits.max_streams: {self.max_streams} is above {MAX_CLIENT_STREAMS}"
            )

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """Return limits of which some are given.

        Raises:
            ValueError: On an unknown name or a value out of range.
        """
        unknown = sorted(set(given) - {each.name for each in fields(cls)})
        if unknown:
            raise ValueError(f"limits.{unknown[0]}: unknown")
        return cls(**given)


Take = Callable[[int], bool]
"""Takes so much more and returns True, or False where there is no room for it."""


class Room:
    """What requests hold at once of something that is bounded: places, or bytes."""

    def __init__(self) -> None:
        self.taken = 0

    @contextlib.contextmanager
    def share(self, most: float) -> Iterator[Take]:
        """Give a way to take some, and give back at the end what was taken.

        Args:
            most: Bound of what all together may have taken.
        """
        own = 0

        def take(number: int) -> bool:
            nonlocal own
            if self.taken + number > most:
                return False
            own += number
            self.taken += number
            return True

        try:
            yield take
        finally:
            self.taken -= own


class Senders:
    """Clients that are sending their bodies, the one that has been at it longest first.

    A body that drips costs its sender nothing and holds a place. Where all are taken, one that asks
    whole is worth more than one that has not asked yet.
    """

    def __init__(self) -> None:
        self._since_s: dict[asyncio.Timeout, float] = {}

    @contextlib.contextmanager
    def sending(self, limit: asyncio.Timeout) -> Iterator[None]:
        """Count one for as long as the block runs; ``limit`` is what ends it."""
        self._since_s[limit] = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self._since_s.pop(limit, None)

    def end_longest(self) -> float | None:
        """End the one that has been sending longest, if it had its time.

        Returns:
            Seconds until it has had that, 0 where it was ended; None where nobody sends.
        """
        now_s = asyncio.get_running_loop().time()
        limit, since_s = next(iter(self._since_s.items()), (None, now_s))
        if limit is None:
            return None
        left_s = since_s + PATIENCE_S - now_s
        if left_s > 0:
            return left_s
        del self._since_s[limit]
        limit.reschedule(now_s)
        return 0.0


def header_refusal(headers: Iterable[tuple[bytes, bytes]], limits: Limits) -> Refusal | None:
    """Return a refusal of headers that are too long.

    Args:
        headers: Names and values as they were sent.
        limits: What is allowed.
    """
    # Colon, space and line end count as the sender has them on the wire.
    size = sum(len(name) + len(value) + 4 for name, value in headers)
    if size <= limits.max_header_bytes:
        return None
    return Refusal(431, f"the headers have {size} bytes, more than {limits.max_header_bytes}")


async def read_body(
    request: Request, limits: Limits, take: Take, senders: Senders | None = None
) -> bytes | Refusal:
    """Return the whole body, or why it is not wanted.

    Args:
        request: Its body is not read yet.
        limits: Of one body.
        take: Takes room for so many bytes more.
        senders: Of whom this may be one; None for one that nobody may end.
    """
    declared = request.headers.get("content-length", "")
    # The length first: of thousands of digits Python makes no number.
    if declared.isdecimal() and (len(declared) > 18 or int(declared) > limits.max_body_bytes):
        return _too_large(limits)
    body = bytearray()  # a list of parts would cost a client's smallest ones many times their size
    try:
        async with asyncio.timeout(limits.body_timeout_s) as limit:
            with contextlib.nullcontext() if senders is None else senders.sending(limit):
                async for part in request.stream():
                    if len(body) + len(part) > limits.max_body_bytes:
                        return _too_large(limits)
                    if not take(len(part)):
                        return Refusal(503, "other bodies take all room", headers=_CLOSE)
                    body += part
    except TimeoutError:
        text = f"the body was not there in time, {limits.body_timeout_s:g} s at most"
        return Refusal(408, text, headers=_CLOSE)
    except ClientDisconnect:
        return Refusal(400, "the client left before its body was there")
    return bytes(body)


def read_object(body: bytes) -> dict[str, Any] | Refusal:
    """Return the JSON object of a request, or why it is none; no text of it is repeated."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        return Refusal(400, f"the body is not valid JSON{where}")
    return found if isinstance(found, dict) else Refusal(400, "the body is not a JSON object")


def _too_large(limits: Limits) -> Refusal:
    text = f"the body has more than {limits.max_body_bytes} bytes"
    return Refusal(413, text, headers=_CLOSE)
