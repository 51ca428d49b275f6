"""What the canaries ask, and what an answer must hold. Pure.

Each canary asks three times with other words and values, at temperature 0. The questions are easy
for a model that can do the thing at all; whether it can is the control's to say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.canaries.picture import data_url
from orchestrator.canaries.reply import Reply

Check = Callable[[Reply], str | None]
"""Returns what is wrong with an answer that is text, or None."""

NO_THOUGHT: Mapping[str, object] = {"chat_template_kwargs": {"enable_thinking": False}}
"""A JSON boolean: the text "false" is true in a chat template."""

TOOL_NAME = "get_forecast"
TOOL: Mapping[str, object] = {
    "type": "function",
    "function": {
        "name": TOOL_NAME,
        "description": "Forecast of the weather for a town and a number of days.",
        "parameters": {
            "type": "object",
            "properties": {
                "town": {"type": "string", "description": "Name of the town"},
                "days": {"type": "integer", "description": "Days from today, 1 to 7"},
            },
            "required": ["town", "days"],
        },
    },
}

JSON_FIELDS: Mapping[str, tuple[object, ...]] = {
    "colour": ("red", "green", "blue"),
    "size": ("small", "large"),
    "broken": (True, False),
}
"""Each field of the JSON canary and its values: none can go on for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One question."""

    messages: Sequence[Mapping[str, object]]
    check: Check
    extra: Mapping[str, object] = field(default_factory=dict)
    """Further keys of the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """One thing that a server is asked to do."""

    name: str
    asks: tuple[Ask, ...]
    is_streamed: bool = False


def text_canaries() -> tuple[Canary, ...]:
    """Return the canaries that every server is asked.

    Those that speculation has broken before are streamed too: with several tokens in a chunk, a
    character or a tool call arrives in other pieces than a parser that counts on single tokens
    expects.
    """
    tools = _tools()
    return (
        Canary(name="chat", asks=_chat()),
        Canary(name="unicode_stream", asks=_unicode(), is_streamed=True),
        Canary(name="tool_call", asks=tools),
        Canary(name="tool_call_stream", asks=tools, is_streamed=True),
        Canary(name="json", asks=_json()),
        Canary(name="reasoning", asks=_reasoning(), is_streamed=True),
    )


def image_canary() -> Canary:
    """Return the canary for models that take images: squares of one colour."""
    colours = {"red": (220, 20, 20), "green": (20, 160, 40), "blue": (20, 40, 220)}
    question = "What colour is this square? Answer with one word."
    return Canary(
        name="image",
        asks=tuple(
            Ask(
                messages=_user(
                    [
                        {"type": "image_url", "image_url": {"url": data_url(rgb)}},
                        {"type": "text", "text": question},
                    ]
                ),
                check=says(colour),
                extra=NO_THOUGHT,
            )
            for colour, rgb in colours.items()
        ),
    )


def says(word: str) -> Check:
    """Return a check that the answer holds a word or a number, by itself, in any case."""
    pattern = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE)

    def check(reply: Reply) -> str | None:
        return None if pattern.search(reply.content) else f"'{word}' is not in the answer"

    return check


def _chat() -> tuple[Ask, ...]:
    questions = {
        "Which of these numbers is the largest: 3, 17, 8? Answer with the number alone.": "17",
        "What is the capital of France? Answer with one word.": "Paris",
        "Write the English word that is the opposite of 'cold'. One word.": "hot",
    }
    return tuple(
        Ask(messages=_user(question), check=says(word), extra=NO_THOUGHT)
        for question, word in questions.items()
    )


def _unicode() -> tuple[Ask, ...]:
    lines = (
        "Gr\u00fc\u00dfe aus K\u00f6ln \u2013 na\u00efve fa\u00e7ade",
        "\u6771\u4eac\u306e\u5929\u6c17\u306f\u6674\u308c\u3067\u3059",
        "\u041f\u0440\u0438\u0432\u0435\u0442 \U0001f98a \u20ac 42",
    )

    def holds(line: str) -> Check:
        return lambda reply: None if line in reply.content else f"{line!r} is not in the answer"

    return tuple(
        Ask(
            messages=_user(f"Repeat this line exactly, and write nothing else:\n{line}"),
            check=holds(line),
            extra=NO_THOUGHT,
        )
        for line in lines
    )


def _tools() -> tuple[Ask, ...]:
    wishes = (
        ("What will the weather be in Bergen over the next 3 days?", "Bergen", 3),
        ("I travel to Porto. Give me the forecast for 5 days.", "Porto", 5),
        ("Do I need an umbrella in Oslo within the next 2 days?", "Oslo", 2),
    )
    return tuple(
        Ask(
            messages=_user(wish),
            check=_calls(town, days),
            extra={"tools": [TOOL], "tool_choice": "auto", **NO_THOUGHT},
        )
        for wish, town, days in wishes
    )


def _calls(town: str, days: int) -> Check:
    def check(reply: Reply) -> str | None:
        if len(reply.tool_calls) != 1:
            return f"{len(reply.tool_calls)} tool calls, one was asked for"
        call = reply.tool_calls[0]
        if call.name != TOOL_NAME:
            return f"it calls '{call.name}', not '{TOOL_NAME}'"
        arguments = _object(call.arguments)
        if arguments is None:
            return f"the arguments are no JSON object: {call.arguments[:60]!r}"
        if town.lower() not in str(arguments.get("town", "")).lower():
            return f"the town is {arguments.get('town')!r}, not '{town}'"
        if arguments.get("days") != days or isinstance(arguments["days"], bool):
            return f"the days are {arguments.get('days')!r}, not {days}"
        return None

    return check


def _json() -> tuple[Ask, ...]:
    texts = (
        "A large red vase stands on the shelf. It has no crack.",
        "The small green cup fell down and is in pieces.",
        "Somebody dropped the large blue plate, and it broke.",
    )
    schema = {
        "type": "object",
        "properties": {name: {"enum": list(values)} for name, values in JSON_FIELDS.items()},
        "required": list(JSON_FIELDS),
        "additionalProperties": False,
    }
    response_format = {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}}
    wish = "Describe the thing as JSON with the fields colour, size and broken: "
    return tuple(
        Ask(
            messages=_user(wish + text),
            check=keeps_schema,
            extra={"response_format": response_format, **NO_THOUGHT},
        )
        for text in texts
    )


def keeps_schema(reply: Reply) -> str | None:
    """Return where the answer departs from the JSON canary's schema, or None.

    What the values say is the model's affair and a scored task's; that they are allowed is the
    server's, which must hold drafted tokens to the grammar as well.
    """
    item = _object(reply.content)
    if item is None:
        return "the answer is no JSON object"
    if set(item) != set(JSON_FIELDS):
        return f"its fields are {sorted(item)}, not {sorted(JSON_FIELDS)}"
    for name, values in JSON_FIELDS.items():
        # True equals 1 in Python and is another value in JSON.
        if not any(item[name] == value and type(item[name]) is type(value) for value in values):
            return f"{name} is {item[name]!r}, which the schema does not allow"
    return None


def _reasoning() -> tuple[Ask, ...]:
    questions = {
        "Anna has 3 boxes with 4 pens each and gives 5 pens away. How many pens are left?": "7",
        "A train leaves at 9:40 and needs 35 minutes. How many minutes past ten is it then?": "15",
        "Tom is 4 years older than Eva, and Eva is 9. How old is Tom?": "13",
    }
    return tuple(
        Ask(
            messages=_user(f"{question} End with the number."),
            check=_thinks(answer),
            extra={"chat_template_kwargs": {"enable_thinking": True}},
        )
        for question, answer in questions.items()
    )


def _thinks(answer: str) -> Check:
    def check(reply: Reply) -> str | None:
        if not reply.reasoning and "</think>" not in reply.content:
            return "there is no reasoning beside the answer"
        return says(answer)(reply)

    return check


def _object(text: str) -> dict[str, Any] | None:
    try:
        item = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return item if isinstance(item, dict) else None


def _user(content: object) -> tuple[Mapping[str, object], ...]:
    return ({"role": "user", "content": content},)
