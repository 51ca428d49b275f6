"""What the fake server is to send, and the ways in which it can go wrong. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from orchestrator.fakes.openai.events import DONE, event, usage


class Act(Enum):
    """What a server does in the middle of an answer, besides sending bytes."""

    RESET = "reset"
    """Drops the connection with a TCP reset."""
    CLOSE = "close"
    """Closes the connection in the middle of the body."""
    HANG = "hang"
    """Sends nothing more and keeps the connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Bytes of an answer and what they stand for."""

    data: bytes
    tokens: int = 0
    """Output tokens that the engine generated for it; its counters move by them."""
    at_s: float | None = None
    """When to send, in seconds since the request arrived; None for at once."""


Part = bytes | Act | Chunk
"""Plain bytes are a chunk of no tokens, sent at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One answer."""

    status: int = 200
    parts: tuple[Part, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "text/event-stream"
    prompt_tokens: int = 0
    """What the engine's counters move by when the answer starts."""
    cached_tokens: int = 0
    """Those of them that came from the prefix cache."""

    @property
    def output_tokens(self) -> int:
        """Output tokens of the whole answer."""
        return sum(part.tokens for part in self.parts if isinstance(part, Chunk))


Behaviour = Callable[[int, dict[str, Any]], Script]
"""Number of the request, from 0, and its body; to its answer."""


def good(body: Mapping[str, Any]) -> Script:
    """Answer with three chunks and as many tokens as were asked for, 3 at least."""
    total = body["max_tokens"]
    first, second = (total + 2) // 3, (total + 1) // 3
    counts = (first, second, total - first - second)
    values = ("alpha beta ", "gamma ", "delta")
    parts: list[Part] = []
    sent = 0
    for value, tokens in zip(values, counts, strict=True):
        sent += tokens
        finish = "length" if value == values[-1] else None
        choice: dict[str, object] = {"index": 0, "finish_reason": finish}
        choice |= {"delta": {"content": value}} if "messages" in body else {"text": value}
        item: dict[str, object] = {"choices": [choice]}
        if wants(body, "continuous_usage_stats"):
            item["usage"] = {"prompt_tokens": 9, "completion_tokens": sent}
        parts.append(Chunk(data=event(item), tokens=tokens))
    return Script(parts=(*parts, usage(total), DONE), prompt_tokens=9)


def wants(body: Mapping[str, Any], option: str) -> bool:
    """Return whether the request asks for an option of its stream."""
    options = body.get("stream_options")
    return isinstance(options, dict) and options.get(option) is True


def refused(status: int = 429, *, retry_after: str | None = None) -> Script:
    """Answer as a server without room, with a ``Retry-After`` in either of its forms."""
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return failure(status, "the server is busy", headers=headers)


def failure(
    status: int,
    message: str,
    *,
    kind: str = "BadRequestError",
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Script:
    """Answer with an HTTP error in the form of OpenAI and vLLM."""
    error = {"message": message, "type": kind, "param": param, "code": status}
    return Script(
        status=status,
        parts=(json.dumps({"error": error}).encode(),),
        headers=headers or {},
        content_type="application/json",
    )


def one_fault(
    number: int, fault: Script, others: Callable[[Mapping[str, Any]], Script] = good
) -> Behaviour:
    """Return a behaviour that fails the request of that number and answers the others."""
    return lambda index, body: fault if index == number else others(body)


def split_bytes(parts: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return the parts byte by byte, so that reads split characters and lines."""
    return tuple(bytes([byte]) for part in parts for byte in part)
