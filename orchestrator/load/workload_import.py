"""Turn other people's files into prompts: request logs, ShareGPT, plain text. No input, no output.

Every source gives candidates: a prompt, or the reason why there is none. ``collect`` then drops
what is too short, too long or there twice, and counts all of it.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.errors import ConfigError
from orchestrator.load.prompts import (
    EXTRA_KEYS,
    MESSAGE_KEYS,
    SAMPLING_KEYS,
    WHERE,
    Prompt,
    content_key,
    parse_item,
)

MAX_NAMED_LINES = 3
"""Broken lines that a report names; the others are counted."""

MAX_SAMPLING_VALUES = 6
"""Values of one sampling key that a report names, the most frequent first."""

_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bard", "bing", "model"), "assistant"),
    "system": "system",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What one line or file of a source gave."""

    where: str
    """Line or file, for the report."""
    prompt: Prompt | None = None
    skipped: str = ""
    """Why there is no prompt, as a heading to count under."""
    broken: str = ""
    """What is wrong with the line; such lines are named."""
    sampling: Mapping[str, object] = field(default_factory=dict)
    """Sampling keys that the request had; they are dropped and reported."""
    num_media: int = 0
    """Parts of messages that are no text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Which prompts of a source are wanted."""

    min_chars: int = 1
    max_chars: int | None = None
    """Longest prompt in characters; None for no limit."""
    num_prompts: int | None = None
    """Most prompts; a seeded sample in the source's order when there are more. None for all."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The prompts of a source and the account of what was left out."""

    prompts: tuple[Prompt, ...]
    num_read: int
    """Lines, conversations or files that were looked at."""
    dropped: Mapping[str, int]
    """What was left out, by reason."""
    broken: tuple[str, ...]
    """The first broken lines, each with what is wrong with it."""
    sampling: Mapping[str, Mapping[str, int]]
    """Values seen by sampling key; a premise to copy into a study's load by hand."""
    num_media: int


def from_openai_log(lines: Iterable[bytes], *, category: str = "") -> Iterator[Candidate]:
    """Yield a candidate for every request of a JSONL log.

    A line is a request's body, or an object that holds it under ``body`` or ``request`` (or
    ``request.body``). Nothing else of a line is looked at, headers least of all.
    """
    for number, raw in enumerate(lines, start=1):
        if raw.strip():
            yield from _from_log_line(raw, where=f"line {number}", category=category)


def from_sharegpt(text: str, *, category: str = "") -> Iterator[Candidate]:
    """Yield a candidate for every conversation of a JSON array or a JSONL file.

    The prompt is the conversation up to its last human turn; what the assistant says before the
    first human turn is left out, since chat templates refuse it.
    """
    for where, item in _conversations(text):
        if isinstance(item, Exception):
            yield Candidate(where=where, broken=f"not JSON ({item})")
        else:
            yield _from_conversation(item, where=where, category=category)


def from_text_file(
    name: str, content: bytes, *, max_chars: int | None, category: str = ""
) -> Candidate:
    """Return a candidate made of a file's beginning, cut at the end of a line.

    Args:
        name: Path below the folder, with forward slashes; becomes the prompt's id.
        content: The whole file.
        max_chars: Most characters; a first line that is longer gives no prompt. None for all.
        category: Empty: the name's suffix, or ``text`` without one.
    """
    suffix = name.rpartition("/")[2].partition(".")[2].rpartition(".")[2]
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return Candidate(where=name, skipped="not UTF-8")
    if "\0" in text:
        return Candidate(where=name, skipped="binary")
    if max_chars is not None and len(text) > max_chars:
        text = text[: max_chars + 1].rpartition("\n")[0]
    if not text.strip():
        return Candidate(where=name, skipped="no text within the limit")
    prompt = Prompt(prompt_id=name, category=category or suffix or "text", text=text.rstrip())
    return Candidate(where=name, prompt=prompt)


def collect(candidates: Iterable[Candidate], limits: Limits) -> Imported:
    """Return the wanted prompts of a source and the account of the rest."""
    kept: list[Prompt] = []
    seen: set[str] = set()
    dropped: Counter[str] = Counter()
    broken: list[str] = []
    sampling: dict[str, Counter[str]] = {}
    num_read = num_media = 0
    for item in candidates:
        num_read += 1
        num_media += item.num_media
        for key, value in item.sampling.items():
            sampling.setdefault(key, Counter())[json.dumps(value)] += 1
        reason = _reason_to_drop(item, limits, seen)
        if reason:
            dropped[reason] += 1
        elif item.prompt is not None:
            kept.append(item.prompt)
        if item.broken and len(broken) < MAX_NAMED_LINES:
            broken.append(f"{item.where}: {item.broken}")
    chosen = _sample(kept, limits)
    if len(chosen) < len(kept):
        dropped["beyond the limit"] = len(kept) - len(chosen)
    return Imported(
        prompts=tuple(chosen),
        num_read=num_read,
        dropped=dict(dropped),
        broken=tuple(broken),
        sampling=sampling,
        num_media=num_media,
    )


def report(imported: Imported) -> list[str]:
    """Return the account of an import as lines of text."""
    lines = [f"read {imported.num_read}, kept {len(imported.prompts)}"]
    lines += [f"  left out: {count} {reason}" for reason, count in imported.dropped.items()]
    lines += [f"    {text}" for text in imported.broken]
    if imported.num_media:
        lines.append(f"  parts that are no text (images, audio, files): {imported.num_media}")
    for key, counts in sorted(imported.sampling.items()):
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        values = [f"{value} x {count}" for value, count in ranked[:MAX_SAMPLING_VALUES]]
        if len(ranked) > MAX_SAMPLING_VALUES:
            values.append(f"{len(ranked) - MAX_SAMPLING_VALUES} more values")
        lines.append(f"  dropped {key}: {', '.join(values)}")
    return lines


def _from_log_line(raw: bytes, *, where: str, category: str) -> Iterator[Candidate]:
    try:
        item = json.loads(raw)
    except (ValueError, RecursionError) as error:
        yield Candidate(where=where, broken=f"not JSON ({error})")
        return
    body = _body(item)
    if body is None:
        yield Candidate(where=where, broken="no request body with messages or a prompt")
        return
    sampling = {key: body[key] for key in sorted(SAMPLING_KEYS & body.keys())}
    prompts = _list_of_texts(body.get("prompt"))
    if "messages" in body or not prompts:
        yield dataclasses.replace(
            _from_body(body, where=where, category=category), sampling=sampling
        )
        return
    for index, text in enumerate(prompts):
        # One request, several prompts: its sampling counts once.
        found = _from_body({"prompt": text}, where=f"{where}.{index}", category=category)
        yield dataclasses.replace(found, sampling=sampling if index == 0 else {})


def _body(item: object) -> Mapping[str, object] | None:
    """Return the request's body inside a log's line; None where there is none."""
    for _ in range(3):
        if not isinstance(item, dict):
            return None
        if "messages" in item or "prompt" in item:
            extra = item.get("extra_body")
            return {**item, **extra} if isinstance(extra, dict) else item
        item = item.get("body", item.get("request"))
    return None


def _from_body(body: Mapping[str, object], *, where: str, category: str) -> Candidate:
    extra = {key: body[key] for key in EXTRA_KEYS if body.get(key) is not None}
    prompt_id = f"log-{where.removeprefix('line ')}"
    if "messages" not in body:
        if not isinstance(body["prompt"], str):
            return Candidate(where=where, skipped="prompt given as token ids")
        item = {"prompt": body["prompt"], "category": category or "completion"}
        return _parsed(item, where=where, prompt_id=prompt_id)
    messages, num_media = _clean(body["messages"])
    if num_media:
        return Candidate(where=where, skipped="asks about media", num_media=num_media)
    return _parsed(_chat_item(messages, extra, category=category), where=where, prompt_id=prompt_id)


def _chat_item(
    messages: object, extra: Mapping[str, object], *, category: str
) -> dict[str, object]:
    """Return a line's object; a single user message becomes a plain prompt, for any endpoint."""
    listed = messages if isinstance(messages, list) else []
    if len(listed) == 1 and not extra and _is_plain(listed[0]):
        return {"prompt": listed[0]["content"], "category": category or "chat"}
    if not category:
        turns = sum(isinstance(turn, dict) and turn.get("role") == "user" for turn in listed)
        category = "multi_turn" if turns > 1 else "chat"
        category = "json" if "response_format" in extra else category
        category = "tools" if "tools" in extra else category
    return {"messages": messages, "category": category, **extra}


def _is_plain(message: object) -> bool:
    return (
        isinstance(message, dict)
        and message.keys() == {"role", "content"}
        and message["role"] == "user"
        and isinstance(message["content"], str)
    )


def _clean(messages: object) -> tuple[object, int]:
    """Return the messages with known keys only, and how many parts of them are no text."""
    if not isinstance(messages, list):
        return messages, 0
    num_media = 0
    cleaned: list[object] = []
    for message in messages:
        if not isinstance(message, dict):
            cleaned.append(message)
            continue
        content = message.get("content")
        if isinstance(content, list):
            num_media += sum(
                isinstance(part, dict) and part.get("type") != "text" for part in content
            )
        kept = {k: message[k] for k in MESSAGE_KEYS if message.get(k) is not None}
        cleaned.append(kept)
    return cleaned, num_media


def _parsed(item: Mapping[str, object], *, where: str, prompt_id: str) -> Candidate:
    try:
        json.dumps(item, ensure_ascii=False, allow_nan=False).encode("utf-8")
        prompt = parse_item({**item, "id": prompt_id}, where=where, default_id=prompt_id)
    except ConfigError as error:
        return Candidate(where=where, broken=error.problem.removeprefix(f"{where} "))
    except ValueError as error:
        return Candidate(where=where, broken=f"holds what cannot be sent ({error})")
    return Candidate(where=where, prompt=prompt)


def _conversations(text: str) -> Iterator[tuple[str, object]]:
    if text.lstrip().startswith("["):
        try:
            items = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                WHERE, f"the file is no JSON array ({error})", "give a JSON array or JSON lines"
            ) from error
        for number, item in enumerate(items, start=1):
            yield f"conversation {number}", item
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield f"line {number}", json.loads(line)
            except (ValueError, RecursionError) as error:
                yield f"line {number}", error


def _from_conversation(item: object, *, where: str, category: str) -> Candidate:
    turns = item.get("conversations") if isinstance(item, dict) else None
    if not isinstance(turns, list):
        return Candidate(where=where, broken="no list 'conversations'")
    messages: list[dict[str, str]] = []
    for turn in turns:
        sender = turn.get("from") if isinstance(turn, dict) else None
        role = _ROLES.get(sender) if isinstance(sender, str) else None
        text = turn.get("value") if isinstance(turn, dict) else None
        if role is None:
            return Candidate(where=where, broken=f"a turn is from {sender!r}")
        if not isinstance(text, str) or not text.strip():
            return Candidate(where=where, skipped="with an empty turn")
        messages.append({"role": role, "content": text})
    while messages and messages[-1]["role"] != "user":
        messages.pop()
    begin = next((i for i, m in enumerate(messages) if m["role"] == "user"), 0)
    messages = [m for m in messages[:begin] if m["role"] == "system"] + messages[begin:]
    if not messages:
        return Candidate(where=where, skipped="without a human turn")
    number = where.rpartition(" ")[2]
    return _parsed(
        _chat_item(messages, {}, category=category), where=where, prompt_id=f"chat-{number}"
    )


def _reason_to_drop(item: Candidate, limits: Limits, seen: set[str]) -> str:
    """Return why a candidate is left out, or an empty text; remembers what it has seen."""
    if item.broken:
        return "broken"
    if item.prompt is None:
        return item.skipped
    num_chars = len(item.prompt.full_text)
    if num_chars < limits.min_chars:
        return f"shorter than {limits.min_chars} characters"
    if limits.max_chars is not None and num_chars > limits.max_chars:
        return f"longer than {limits.max_chars} characters"
    key = content_key(item.prompt)
    if key in seen:
        return "there already"
    seen.add(key)
    return ""


def _sample(prompts: Sequence[Prompt], limits: Limits) -> list[Prompt]:
    if limits.num_prompts is None or len(prompts) <= limits.num_prompts:
        return list(prompts)
    chosen = random.Random(limits.seed).sample(range(len(prompts)), limits.num_prompts)
    return [prompts[index] for index in sorted(chosen)]


def _list_of_texts(value: object) -> list[str]:
    """Return the value if it is a list of texts, else an empty list."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    return []
