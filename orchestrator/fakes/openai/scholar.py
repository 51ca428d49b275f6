"""A served model that does what it is asked: tools, schemas, images, reasoning. Pure.

Its faults are made by others around it: a behaviour is a function, and one that spoils its answers
is another.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.fakes.openai.engine import count_prompt
from orchestrator.fakes.openai.events import DONE, chat, event
from orchestrator.fakes.openai.script import Part, Script, failure

PIECE_CHARS = 3
"""Characters in a chunk of a stream: no word, and no JSON value, comes whole."""

_SECRET = re.compile(r"the code of the \w+ \w+ is (\d+)")
_REPEAT = "Repeat this line exactly"
_COLOURS = ("red", "green", "blue")


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What the model generated."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """Name and arguments of each tool call."""
    finish: str = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scholar:
    """A model and what its server was started with."""

    knows: Mapping[str, str] = field(default_factory=dict)
    """A part of a question to its answer, or to the arguments of the tool that it wants."""
    calls_tools: bool = True
    takes_images: bool = True
    thinks: bool = True
    max_model_len: int | None = None
    """Longest prompt and answer together, in words."""

    def answer(self, _number: int, body: Mapping[str, Any]) -> Script:
        """Return the answer to a request of the chat endpoint; a ``Behaviour``."""
        content = body["messages"][-1]["content"]
        limit = self.max_model_len
        if limit is not None and count_prompt(body) + body["max_tokens"] > limit:
            return failure(400, f"This model's maximum context length is {limit} tokens.")
        if "tools" in body and not self.calls_tools:
            return failure(400, '"auto" tool choice requires --enable-auto-tool-choice')
        if isinstance(content, list):
            if not self.takes_images:
                return failure(400, "the model is not a multimodal model")
            return script_of(body, Said(content=_colour(content)))
        return script_of(body, self._said(content, body))

    def _said(self, question: str, body: Mapping[str, Any]) -> Said:
        if "response_format" in body:
            return Said(content=_first_values(body["response_format"]["json_schema"]["schema"]))
        known = next((self.knows[part] for part in self.knows if part in question), None)
        if "tools" in body and known is not None:
            return Said(calls=((body["tools"][0]["function"]["name"], known),), finish="tool_calls")
        secret = _SECRET.search(question)
        if secret is not None:
            return Said(content=secret[1])
        if _REPEAT in question:
            return Said(content=question.splitlines()[-1])
        wants = body.get("chat_template_kwargs", {}).get("enable_thinking") is True
        thought = "One thing after the other, then." if wants and self.thinks else ""
        return Said(content=known or "That is not known here.", reasoning=thought)


def script_of(body: Mapping[str, Any], said: Said) -> Script:
    """Return what was said in the form that the request asks for: whole, or in small pieces."""
    usage = {"prompt_tokens": count_prompt(body), "completion_tokens": 1 + len(said.content) // 4}
    if body.get("stream") is True:
        return Script(parts=(*_pieces(said), event({"choices": [], "usage": usage}), DONE))
    message = {
        "role": "assistant",
        "content": said.content or None,
        "reasoning": said.reasoning or None,
        "tool_calls": [
            {"type": "function", "function": {"name": name, "arguments": arguments}}
            for name, arguments in said.calls
        ],
    }
    choice = {"index": 0, "message": message, "finish_reason": said.finish}
    item = {"object": "chat.completion", "choices": [choice], "usage": usage}
    return Script(parts=(json.dumps(item).encode(),), content_type="application/json")


def _pieces(said: Said) -> list[Part]:
    parts: list[Part] = [chat({"role": "assistant", "content": ""})]
    parts += [chat({"reasoning": piece}) for piece in _split(said.reasoning)]
    parts += [chat({"content": piece}) for piece in _split(said.content)]
    for index, (name, arguments) in enumerate(said.calls):
        head = {"index": index, "type": "function", "function": {"name": name, "arguments": ""}}
        parts.append(chat({"tool_calls": [head]}))
        parts += [
            chat({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
            for piece in _split(arguments)
        ]
    return [*parts, chat({}, said.finish)]


def _split(text: str) -> list[str]:
    return [text[start : start + PIECE_CHARS] for start in range(0, len(text), PIECE_CHARS)]


def _first_values(schema: Mapping[str, Any]) -> str:
    """Return the first object that the schema allows."""
    return json.dumps({name: item["enum"][0] for name, item in schema["properties"].items()})


def _colour(content: list[dict[str, Any]]) -> str:
    """Return the strongest channel of the first pixel of a PNG without filters."""
    url = next(part["image_url"]["url"] for part in content if part["type"] == "image_url")
    picture = base64.b64decode(url.partition(",")[2])
    start = picture.index(b"IDAT") + 4
    pixel = zlib.decompressobj().decompress(picture[start:])[1:4]
    return _COLOURS[pixel.index(max(pixel))]
