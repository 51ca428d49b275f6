"""One prompt of a workload: what a line may say, what is sent, what is counted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from orchestrator.errors import ConfigError

Messages = tuple[Mapping[str, object], ...]

WHERE = "load.workload"
"""The key that every fault of a workload is reported under."""

EXTRA_KEYS = ("tools", "tool_choice", "response_format", "chat_template_kwargs")
"""What a request may carry beside its messages: all that changes what the model is asked."""

MESSAGE_KEYS = (
    *("role", "content", "name", "tool_calls", "tool_call_id"),
    *("reasoning", "reasoning_content"),
)
ROLES = ("system", "developer", "user", "assistant", "tool")

SAMPLING_KEYS = frozenset(
    {
        *("temperature", "top_p", "top_k", "top_a", "min_p", "typical_p", "seed", "n", "best_of"),
        *("max_tokens", "max_completion_tokens", "min_tokens", "stop", "stop_token_ids"),
        *("frequency_penalty", "presence_penalty", "repetition_penalty", "length_penalty"),
        *("logit_bias", "bad_words", "allowed_token_ids", "logprobs", "top_logprobs"),
        *("prompt_logprobs", "ignore_eos", "use_beam_search", "skip_special_tokens"),
    }
)
"""Keys of a request that decide how tokens are drawn or when an answer ends."""

UNSUPPORTED_SAMPLING = frozenset({"min_p", "logit_bias"})
"""What vLLM merely warns about and does not honour while it speculates."""

_LINE_KEYS = ("id", "category", "prompt", "messages", *EXTRA_KEYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt of a workload: plain text, or the messages of a chat."""

    prompt_id: str
    category: str
    text: str
    """Empty when there are messages."""
    messages: Messages = ()
    """Empty for plain text; else sent as they are, to the chat endpoint only."""
    extra: Mapping[str, object] = field(default_factory=dict)
    """Further fields of the request body, of EXTRA_KEYS; only with messages."""

    @property
    def full_text(self) -> str:
        """All text that the model is given, without what its chat template adds.

        Tools, calls of tools and reasoning are given as compact JSON, one value a line.
        """
        if not self.messages:
            return self.text
        parts = [text for message in self.messages for text in _texts(message)]
        if "tools" in self.extra:
            parts.append(_compact(self.extra["tools"]))
        return "\n".join(parts)


def parse_line(line: str, *, where: str, default_id: str) -> Prompt:
    """Return the prompt of one line of a workload.

    Args:
        line: One JSON object.
        where: File and line, for the message.
        default_id: Id of a line that has none.

    Raises:
        ConfigError: The line is no prompt, or says more than a prompt may.
    """
    try:
        item = json.loads(line, parse_constant=_refuse_constant)
        # Lone surrogates are legal JSON and no text: they cannot be sent.
        json.dumps(item, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise ConfigError(WHERE, f"{where} is not JSON ({error})", "correct it") from error
    return parse_item(item, where=where, default_id=default_id)


def parse_item(item: object, *, where: str, default_id: str) -> Prompt:
    """Return the prompt that a JSON value describes.

    Raises:
        ConfigError: The value is no prompt, or says more than a prompt may.
    """
    if not isinstance(item, dict):
        _refuse_shape(where)
    _check_keys(item, where=where)
    prompt_id, category = str(item.get("id", default_id)), str(item.get("category", ""))
    if "messages" in item:
        if "prompt" in item:
            raise ConfigError(WHERE, f"{where} has a prompt and messages", "keep one of them")
        return Prompt(
            prompt_id=prompt_id,
            category=category,
            text="",
            messages=_messages(item["messages"], where=where),
            extra=_extra(item, where=where),
        )
    text = item.get("prompt")
    if not isinstance(text, str) or not text.strip():
        _refuse_shape(where)
    if extra := [key for key in EXTRA_KEYS if key in item]:
        raise ConfigError(
            WHERE, f"{where} has {extra[0]} beside a plain prompt",
            'write {"messages": [{"role": "user", "content": ...}]} in place of the prompt',
        )  # fmt: skip
    return Prompt(prompt_id=prompt_id, category=category, text=text)


def to_item(prompt: Prompt) -> dict[str, object]:
    """Return the JSON object of a workload's line; ``parse_item`` reads it back."""
    item: dict[str, object] = {"id": prompt.prompt_id, "category": prompt.category}
    if prompt.messages:
        item["messages"] = list(prompt.messages)
    else:
        item["prompt"] = prompt.text
    return {**item, **prompt.extra}


def digest_of(prompts: Sequence[Prompt]) -> str:
    """Return the SHA-256 of everything that is sent, in the file's order, hexadecimal.

    Spaces, escapes and the order of the keys of a line and of a message do not count. The order
    of keys further down does: a chat template writes a tool's schema out in that order.
    """
    return hashlib.sha256(json.dumps([_row(p) for p in prompts]).encode()).hexdigest()


def content_key(prompt: Prompt) -> str:
    """Return what two prompts with the same content share, whatever their ids."""
    return json.dumps(_row(prompt)[2:])


def _row(prompt: Prompt) -> list[object]:
    row: list[object] = [prompt.prompt_id, prompt.category, prompt.text]
    if prompt.messages:
        row.append([sorted(message.items()) for message in prompt.messages])
        row.append(sorted(prompt.extra.items()))
    return row


def _check_keys(item: Mapping[str, object], *, where: str) -> None:
    for key in item:
        if key in UNSUPPORTED_SAMPLING:
            raise ConfigError(
                WHERE, f"{where} has {key}",
                "remove it: vLLM only warns that it has no effect while it speculates, so the "
                "arms would not sample alike",
            )  # fmt: skip
        if key in SAMPLING_KEYS:
            raise ConfigError(
                WHERE, f"{where} has {key}",
                "remove it: sampling is a premise of the whole study and is set under load",
            )  # fmt: skip
        if key not in _LINE_KEYS:
            raise ConfigError(
                WHERE, f"{where} has the unknown key '{key}'",
                f"a line may have {', '.join(_LINE_KEYS)}",
            )  # fmt: skip


def _messages(value: object, *, where: str) -> Messages:
    messages = _list_of_objects(value)
    if not messages:
        raise ConfigError(
            WHERE, f"{where} has messages that are no list of objects",
            'write [{"role": "user", "content": "..."}]',
        )  # fmt: skip
    for number, message in enumerate(messages, start=1):
        _check_message(message, where=f"{where}, message {number}")
    if messages[0].get("content") is None:
        raise ConfigError(
            WHERE, f"{where} begins with a message without content",
            "begin with a system or user message: the salt goes before its content",
        )  # fmt: skip
    if not any(text.strip() for message in messages for text in _texts(message)):
        raise ConfigError(WHERE, f"{where} has messages without any text", "give them text")
    return tuple(messages)


def _check_message(message: Mapping[str, object], *, where: str) -> None:
    for key in message:
        if key not in MESSAGE_KEYS:
            raise ConfigError(
                WHERE, f"{where} has the unknown key '{key}'",
                f"a message may have {', '.join(MESSAGE_KEYS)}",
            )  # fmt: skip
    if message.get("role") not in ROLES:
        raise ConfigError(
            WHERE, f"{where} has the role {message.get('role')!r}", f"use {', '.join(ROLES)}"
        )
    content = message.get("content")
    if content is None:
        if not message.get("tool_calls"):
            raise ConfigError(WHERE, f"{where} has no content", "give it a text")
    elif not isinstance(content, str):
        for part in _list_of_objects(content) or [{}]:
            if part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise ConfigError(
                    WHERE, f"{where} has content that is neither text nor a list of text parts",
                    'write "..." or [{"type": "text", "text": "..."}]; images are not supported',
                )  # fmt: skip


def _extra(item: Mapping[str, object], *, where: str) -> dict[str, object]:
    extra = {key: item[key] for key in EXTRA_KEYS if key in item}
    if "tools" in extra and not _are_tools(extra["tools"]):
        raise ConfigError(
            WHERE, f"{where} has tools that are no list of functions",
            'write [{"type": "function", "function": {"name": ..., "parameters": {...}}}]',
        )  # fmt: skip
    choice = extra.get("tool_choice", "none")
    if choice != "none" and "tools" not in extra:
        raise ConfigError(WHERE, f"{where} has tool_choice without tools", "give it tools")
    if choice not in ("none", "auto", "required") and not isinstance(choice, dict):
        raise ConfigError(
            WHERE, f"{where} has the tool_choice {choice!r}",
            "use none, auto, required or an object that names a function",
        )  # fmt: skip
    shape = extra.get("response_format", {"type": "text"})
    if not isinstance(shape, dict) or not isinstance(shape.get("type"), str):
        raise ConfigError(
            WHERE, f"{where} has a response_format without a type",
            'write {"type": "json_object"} or {"type": "json_schema", "json_schema": {...}}',
        )  # fmt: skip
    _check_template_arguments(extra.get("chat_template_kwargs", {}), where=where)
    return extra


def _check_template_arguments(value: object, *, where: str) -> None:
    if not isinstance(value, dict):
        raise ConfigError(
            WHERE, f"{where} has chat_template_kwargs that are no object",
            'write {"enable_thinking": false}',
        )  # fmt: skip
    thinking = value.get("enable_thinking", False)
    if not isinstance(thinking, bool):
        raise ConfigError(
            WHERE, f"{where} has enable_thinking {thinking!r}",
            "write true or false without quotes: a template takes any text for true",
        )  # fmt: skip


def _are_tools(value: object) -> bool:
    tools = _list_of_objects(value)
    return bool(tools) and all(
        tool.get("type") == "function"
        and isinstance(function := tool.get("function"), dict)
        and isinstance(function.get("name"), str)
        for tool in tools
    )


def _list_of_objects(value: object) -> list[dict[str, object]]:
    """Return the value if it is a list of JSON objects, else an empty list."""
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return value
    return []


def _texts(message: Mapping[str, object]) -> list[str]:
    content = message.get("content")
    texts = [content] if isinstance(content, str) else []
    texts += [str(part["text"]) for part in _list_of_objects(content)]
    for key in ("reasoning", "reasoning_content", "tool_calls"):
        if key in message:
            texts.append(_compact(message[key]))
    return texts


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


def _refuse_shape(where: str) -> NoReturn:
    raise ConfigError(
        WHERE, f"{where} has no prompt", 'write {"id": ..., "prompt": "..."} or messages'
    )
