"""Prompts for the load: JSONL files and the seeded order in which streams use them."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from orchestrator.errors import ConfigError

SALT_DIGITS = 16
"""Hexadecimal digits of a salt: 64 bits, so that two prompts of a boot never share one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt of a workload."""

    prompt_id: str
    category: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The prompts of one workload; the digest is a premise of every number taken with it."""

    name: str
    digest: str
    """SHA-256 of the prompts in order, hexadecimal; independent of the file's formatting."""
    prompts: tuple[Prompt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """The prompt and seed of one request of one stream; equal for all arms."""

    prompt_id: str
    text: str
    """The prompt after its salt line."""
    seed: int
    """Sampling seed, 0 to 2**31 - 1."""


def load_workload(path: Path) -> Workload:
    """Read a JSONL file with one ``{"id", "category", "prompt"}`` object a line.

    ``id`` defaults to the line number and ``category`` to an empty text; blank lines are skipped.

    Raises:
        ConfigError: The file is missing, empty or not UTF-8, or a line is no such object.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "load.workload", f"{path} cannot be read ({error})", "name a JSONL file of prompts"
        ) from error
    prompts = tuple(
        _parse_line(line, where=f"{path.name}, line {number}", default_id=str(number))
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip()
    )
    if not prompts:
        raise ConfigError("load.workload", f"{path} holds no prompt", "give it one object a line")
    _check_ids(prompts, name=path.name)
    return Workload(name=path.stem, digest=_digest(prompts), prompts=prompts)


def draw(
    workload: Workload, *, seed: int, cell_key: str, streams: int, stream: int, turn: int
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
    """
    rank = abs(turn) * streams + stream
    lap, position = divmod(rank, len(workload.prompts))
    prompt = workload.prompts[_order(len(workload.prompts), seed, lap)[position]]
    noise = _hash(seed, cell_key, stream, turn)
    return Draw(
        prompt_id=prompt.prompt_id,
        text=f"# {noise[:SALT_DIGITS]}\n{prompt.text}",
        seed=int(noise[SALT_DIGITS : SALT_DIGITS + 8], 16) & 0x7FFFFFFF,
    )


def _parse_line(line: str, *, where: str, default_id: str) -> Prompt:
    try:
        item = json.loads(line)
    except ValueError as error:
        raise ConfigError(
            "load.workload", f"{where} is not JSON ({error})", "correct it"
        ) from error
    prompt = item.get("prompt") if isinstance(item, dict) else None
    if not isinstance(prompt, str) or not prompt.strip():
        raise ConfigError(
            "load.workload", f"{where} has no prompt", 'write {"id": ..., "prompt": "..."}'
        )
    return Prompt(
        prompt_id=str(item.get("id", default_id)),
        category=str(item.get("category", "")),
        text=prompt,
    )


def _check_ids(prompts: tuple[Prompt, ...], *, name: str) -> None:
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.prompt_id in seen:
            raise ConfigError(
                "load.workload", f"{name} has the id '{prompt.prompt_id}' twice", "rename one"
            )
        seen.add(prompt.prompt_id)


def _digest(prompts: tuple[Prompt, ...]) -> str:
    rows = [[prompt.prompt_id, prompt.category, prompt.text] for prompt in prompts]
    return hashlib.sha256(json.dumps(rows, ensure_ascii=True).encode()).hexdigest()


def _hash(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@lru_cache(maxsize=64)
def _order(num_prompts: int, seed: int, lap: int) -> tuple[int, ...]:
    order = list(range(num_prompts))
    random.Random(f"{seed}/{lap}").shuffle(order)
    return tuple(order)
