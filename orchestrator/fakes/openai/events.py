"""The events of an OpenAI-style stream, as bytes. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

DONE = b"data: [DONE]\n\n"
"""The event that ends a stream."""

KEEP_ALIVE = b": keep-alive\n\n"
"""A comment, which carries nothing."""


def event(item: object) -> bytes:
    """Return one event with ``item`` as its JSON."""
    return b"data: " + json.dumps(item, ensure_ascii=False).encode() + b"\n\n"


def text(value: str, finish: str | None = None) -> bytes:
    """Return a chunk of the completions endpoint."""
    return event({"choices": [{"index": 0, "text": value, "finish_reason": finish}]})


def chat(delta: Mapping[str, object], finish: str | None = None) -> bytes:
    """Return a chunk of the chat endpoint."""
    return event({"choices": [{"index": 0, "delta": dict(delta), "finish_reason": finish}]})


def tool_call(arguments: str, name: str | None = None) -> bytes:
    """Return a chunk with a piece of a tool call; the first piece carries the name."""
    function: dict[str, object] = {"arguments": arguments}
    if name is not None:
        function["name"] = name
    return chat({"tool_calls": [{"index": 0, "type": "function", "function": function}]})


def usage(completion_tokens: int, prompt_tokens: int = 9, **more: object) -> bytes:
    """Return the usage chunk that ends a stream before ``[DONE]``."""
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return event({"choices": [], "usage": counts | more})
