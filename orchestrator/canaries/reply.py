"""An answer of the chat endpoint, whole or streamed, as one record. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.canaries.wire import Response
from orchestrator.load.answer import error_message, fit_utf8, to_count
from orchestrator.load.sse import DONE, SseDecoder


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call that the model asks for."""

    name: str
    arguments: str
    """JSON, as the model wrote it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a server answered."""

    status: int
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    problem: str | None = None
    """Why this is no answer: the server's message, or what is wrong with its form."""
    is_cut: bool = False
    """The stream or the body ended before the answer did."""

    @property
    def text(self) -> str:
        """All that was generated, of whatever kind."""
        calls = [f"{call.name}({call.arguments})" for call in self.tool_calls]
        return "\n".join(part for part in (self.reasoning, self.content, *calls) if part)


@dataclass(slots=True)
class _Parts:
    """A streamed answer while its events are read."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, list[str]] = field(default_factory=dict)
    """Name and pieces of the arguments by the call's index."""
    finish_reason: str | None = None
    prompt_tokens: int | None = None


def parse_reply(response: Response) -> Reply:
    """Return the answer in a response; one that is none has a ``problem``."""
    text = response.body.decode("utf-8", errors="replace")
    if response.status != 200:
        return Reply(status=response.status, problem=error_message(text))
    try:
        if response.content_type == "text/event-stream":
            return _streamed(response)
        if response.is_cut:
            return Reply(status=200, problem="the body ended before the answer did", is_cut=True)
        return _whole(json.loads(response.body))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        return Reply(status=200, problem=f"no chat completion ({error}): {text[:80]!r}")


def _whole(item: Any) -> Reply:
    if item.get("error"):
        return Reply(status=200, problem=error_message(json.dumps(item)))
    choice = item["choices"][0]
    message = choice["message"]
    calls = message.get("tool_calls") or ()
    return Reply(
        status=200,
        content=_text(message.get("content")),
        reasoning=_reasoning(message),
        tool_calls=tuple(
            ToolCall(
                name=_text(call["function"].get("name")),
                arguments=_text(call["function"].get("arguments")),
            )
            for call in calls
        ),
        finish_reason=choice.get("finish_reason"),
        prompt_tokens=to_count((item.get("usage") or {}).get("prompt_tokens")),
    )


def _streamed(response: Response) -> Reply:
    decoder = SseDecoder()
    events = [*decoder.feed(response.body), *decoder.finish()]
    parts, is_done = _Parts(), False
    for data in events:
        if data.strip() == DONE:
            is_done = True
            break
        item = json.loads(data)
        if item.get("error"):
            return Reply(status=200, problem=error_message(data))
        _take(parts, item)
    return Reply(
        status=200,
        content=fit_utf8("".join(parts.content)),
        reasoning=fit_utf8("".join(parts.reasoning)),
        tool_calls=tuple(
            ToolCall(name=name, arguments=fit_utf8("".join(pieces)))
            for _, (name, *pieces) in sorted(parts.calls.items())
        ),
        finish_reason=parts.finish_reason,
        prompt_tokens=parts.prompt_tokens,
        is_cut=not is_done or parts.finish_reason is None,
    )


def _take(parts: _Parts, item: Mapping[str, Any]) -> None:
    usage = item.get("usage")
    if usage:
        parts.prompt_tokens = to_count(usage.get("prompt_tokens"))
    if not item.get("choices"):
        return
    choice = item["choices"][0]
    delta = choice.get("delta") or {}
    parts.content.append(_text(delta.get("content")))
    parts.reasoning.append(_reasoning(delta))
    for call in delta.get("tool_calls") or ():
        function = call.get("function") or {}
        pieces = parts.calls.setdefault(call.get("index", 0), [""])
        # The name comes with the first piece, whole; some servers repeat it with each.
        pieces[0] = pieces[0] or _text(function.get("name"))
        pieces.append(_text(function.get("arguments")))
    parts.finish_reason = choice.get("finish_reason") or parts.finish_reason


def _reasoning(message: Mapping[str, Any]) -> str:
    # vLLM renamed the second to the first over time, and some versions send both.
    return _text(message.get("reasoning") or message.get("reasoning_content"))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
