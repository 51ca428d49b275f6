"""Workloads: JSONL files of prompts, and the seeded order in which streams use them."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from orchestrator.errors import ConfigError
from orchestrator.load.prompts import WHERE, Messages, Prompt, digest_of, parse_line
from orchestrator.load.workload_card import Card, card_path, check_card, mix, read_card

__all__ = ["Draw", "Prompt", "Workload", "draw", "find_workload", "load_workload"]

SALT_DIGITS = 16
"""Hexadecimal digits of a salt: 64 bits, so that two prompts of a boot never share one."""

SUFFIX = ".jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The prompts of one workload; the digest is a premise of every number taken with it."""

    name: str
    digest: str
    """SHA-256 of all that is sent, hexadecimal; independent of the file's formatting."""
    prompts: tuple[Prompt, ...]
    card: Card | None = None
    """None for a file without a card."""

    @property
    def needs_chat(self) -> bool:
        """Whether a prompt has messages, so that only the chat endpoint can take it."""
        return any(prompt.messages for prompt in self.prompts)

    @property
    def mix(self) -> dict[str, int]:
        """Prompts by category, by name; no category is an empty text."""
        return mix(self.prompts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """The prompt and seed of one request of one stream; equal for all arms."""

    prompt_id: str
    text: str
    """The prompt after its salt line; empty when there are messages."""
    messages: Messages = ()
    """The messages, the first with the salt line before its content; empty for plain text."""
    extra: Mapping[str, object] = field(default_factory=dict)
    """Further fields of the request body."""
    seed: int
    """Sampling seed, 0 to 2**31 - 1."""


def load_workload(path: Path) -> Workload:
    """Read a JSONL file of prompts, and the card beside it where there is one.

    A line is ``{"id", "category", "prompt"}``, or ``{"id", "category", "messages"}`` with any of
    ``tools``, ``tool_choice``, ``response_format`` and ``chat_template_kwargs``. ``id`` defaults
    to the line number and ``category`` to an empty text; blank lines are skipped.

    Raises:
        ConfigError: The file is missing, empty or not UTF-8, a line is no such object, or the
            card is about other prompts.
    """
    prompts = read_prompts(path)
    card = read_card(card_path(path))
    if card is not None:
        check_card(card, prompts, path=path)
    return Workload(name=path.stem, digest=digest_of(prompts), prompts=prompts, card=card)


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """Return the prompts of a JSONL file, whatever its card says.

    Raises:
        ConfigError: As for ``load_workload``.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            WHERE, f"{path} cannot be read ({error})", "name a JSONL file of prompts"
        ) from error
    prompts = tuple(
        parse_line(line, where=f"{path.name}, line {number}", default_id=str(number))
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip()
    )
    if not prompts:
        raise ConfigError(WHERE, f"{path} holds no prompt", "give it one object a line")
    _check_ids(prompts, name=path.name)
    return prompts


def find_workload(name_or_path: str, conf_dir: Path) -> Path:
    """Return the file of a workload that is named as ``code`` or as ``folder/mine.jsonl``.

    Args:
        name_or_path: A bare name is looked up in ``conf_dir/workload``; what has a folder or
            ends in .jsonl is a path.
        conf_dir: The folder that holds ``workload``.

    Raises:
        ConfigError: There is no such file; the text lists the names that there are.
    """
    path = Path(name_or_path)
    if not (path.suffix == SUFFIX or len(path.parts) > 1):
        path = conf_dir / "workload" / f"{name_or_path}{SUFFIX}"
    if path.is_file():
        return path
    names = sorted(item.stem for item in (conf_dir / "workload").glob(f"*{SUFFIX}"))
    raise ConfigError(
        WHERE, f"there is no workload '{name_or_path}'",
        f"use one of {', '.join(names) or 'none'}, or the path of a {SUFFIX} file",
    )  # fmt: skip


def draw(
    workload: Workload,
    *,
    seed: int,
    cell_key: str,
    streams: int,
    stream: int,
    turn: int,
    salt: bool = True,
) -> Draw:
    """Choose the prompt and the seed of one request, from the arguments alone.

    The order of the prompts depends on the seed only; each pass over the workload has its own
    order. The salt differs for every (seed, cell, stream, turn), so a prompt that comes again in
    the same boot shares no prefix with its first use, and a prefix cache cannot help.

    Args:
        workload: Where the prompts come from.
        seed: The block's seed; blocks of one boot must have different ones.
        cell_key: Key of the cell.
        streams: Streams of the block.
        stream: Index of the stream, from 0.
        turn: Index of the request within its stream, from 0; negative for warm-up.
        salt: Whether the salt line is put first; without it a prefix cache helps.
    """
    rank = abs(turn) * streams + stream
    lap, position = divmod(rank, len(workload.prompts))
    prompt = workload.prompts[_order(len(workload.prompts), seed, lap)[position]]
    noise = _hash(seed, cell_key, stream, turn)
    line = f"# {noise[:SALT_DIGITS]}\n" if salt else ""
    return Draw(
        prompt_id=prompt.prompt_id,
        text="" if prompt.messages else line + prompt.text,
        messages=_salted(prompt.messages, line),
        extra=prompt.extra,
        seed=int(noise[SALT_DIGITS : SALT_DIGITS + 8], 16) & 0x7FFFFFFF,
    )


def _salted(messages: Messages, line: str) -> Messages:
    if not messages or not line:
        return messages
    first, *rest = messages
    content = first["content"]
    if isinstance(content, list):
        return ({**first, "content": [{"type": "text", "text": line}, *content]}, *rest)
    return ({**first, "content": f"{line}{content}"}, *rest)


def _check_ids(prompts: tuple[Prompt, ...], *, name: str) -> None:
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.prompt_id in seen:
            raise ConfigError(WHERE, f"{name} has the id '{prompt.prompt_id}' twice", "rename one")
        seen.add(prompt.prompt_id)


def _hash(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@lru_cache(maxsize=64)
def _order(num_prompts: int, seed: int, lap: int) -> tuple[int, ...]:
    order = list(range(num_prompts))
    random.Random(f"{seed}/{lap}").shuffle(order)
    return tuple(order)
