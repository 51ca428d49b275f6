"""A model that does what it is asked: tools, schemas, images, reasoning. Pure.

It knows what the canaries ask. What it said is told in the form of a chat: a message, or the pieces
of a stream.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

PIECE_CHARS = 3
"""Characters in a piece of a stream: no word, and no JSON value, comes whole."""

KNOWN: Mapping[str, str] = {
    "the largest: 3, 17, 8": "17",
    "capital of France": "Paris.",
    "opposite of 'cold'": "hot",
    "weather be in Bergen": '{"town": "Bergen", "days": 3}',
    "I travel to Porto": '{"town": "Porto", "days": 5}',
    "an umbrella in Oslo": '{"town": "Oslo, Norway", "days": 2}',
    "3 boxes with 4 pens": "12 less 5 is 7",
    "needs 35 minutes": "It is 15.",
    "4 years older than Eva": "13",
}
"""A part of a question to its answer, or to the arguments of the tool that it wants."""

_SECRET = re.compile(r"the code of the \w+ \w+ is (\d+)")
_REPEAT = "Repeat this line exactly"
_THOUGHT = "One thing after the other, then."
_COLOURS = ("red", "green", "blue")


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What the model generated."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """Name and arguments of each tool call."""
    finish: str = "stop"


GARBAGE = Said(content="!" * 48)
"""What a model says whose logits are no numbers: its first token for ever."""


def answer_to(body: Mapping[str, Any], known: Mapping[str, str]) -> Said | None:
    """Return the right answer to a request of the chat endpoint, or None where none is known.

    Args:
        body: The request.
        known: As ``KNOWN``.
    """
    question = body["messages"][-1]["content"]
    if isinstance(question, list):
        colour = _colour(question)
        return None if colour is None else Said(content=colour)
    if not isinstance(question, str):
        return None
    if "response_format" in body:
        values = _first_values(body["response_format"])
        return None if values is None else Said(content=values)
    answer = next((known[part] for part in known if part in question), None)
    if "tools" in body and answer is not None:
        name = str(body["tools"][0]["function"]["name"])
        return Said(calls=((name, answer),), finish="tool_calls")
    secret = _SECRET.search(question)
    if secret is not None:
        return Said(content=secret[1])
    if _REPEAT in question:
        return Said(content=question.splitlines()[-1])
    return None if answer is None else Said(content=answer, reasoning=thought(body))


def thought(body: Mapping[str, Any]) -> str:
    """Return what the model thinks before it answers: nothing unless the request wants it to."""
    wants = (body.get("chat_template_kwargs") or {}).get("enable_thinking") is True
    return _THOUGHT if wants else ""


def pieces(said: Said) -> list[dict[str, Any]]:
    """Return what was said as the deltas of a stream, each of a token's length."""
    made: list[dict[str, Any]] = [{"reasoning": piece} for piece in _split(said.reasoning)]
    made += [{"content": piece} for piece in _split(said.content)]
    for index, (name, arguments) in enumerate(said.calls):
        head = {"index": index, "type": "function", "function": {"name": name, "arguments": ""}}
        made.append({"tool_calls": [head]})
        made += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
            for piece in _split(arguments)
        ]
    return made


def message(deltas: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the message that deltas add up to; of a part of them, a message that was cut."""
    texts = {"reasoning": "", "content": ""}
    calls: dict[int, dict[str, str]] = {}
    for delta in deltas:
        for key in texts:
            texts[key] += delta.get(key, "")
        for call in delta.get("tool_calls", ()):
            function = calls.setdefault(call["index"], {"name": "", "arguments": ""})
            for key, value in call["function"].items():
                function[key] += value
    return {
        "role": "assistant",
        "content": texts["content"] or None,
        "reasoning": texts["reasoning"] or None,
        "tool_calls": [{"type": "function", "function": calls[index]} for index in sorted(calls)],
    }


def _split(text: str) -> list[str]:
    return [text[start : start + PIECE_CHARS] for start in range(0, len(text), PIECE_CHARS)]


def _first_values(response_format: Mapping[str, Any]) -> str | None:
    """Return the first object that a schema of fields with listed values allows."""
    schema = (response_format.get("json_schema") or {}).get("schema") or {}
    fields = schema.get("properties") or {}
    if not fields or not all(item.get("enum") for item in fields.values()):
        return None
    return json.dumps({name: item["enum"][0] for name, item in fields.items()})


def _colour(content: list[dict[str, Any]]) -> str | None:
    """Return the strongest channel of the first pixel of a PNG without filters."""
    urls = [part["image_url"]["url"] for part in content if part.get("type") == "image_url"]
    if not urls:
        return None
    try:
        picture = base64.b64decode(urls[0].partition(",")[2])
        data = picture[picture.index(b"IDAT") + 4 :]
        pixel = zlib.decompressobj().decompress(data)[1:4]
    except (ValueError, zlib.error):
        return None
    return _COLOURS[pixel.index(max(pixel))]
