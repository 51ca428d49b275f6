"""Held-out code prompts: the heads of statements from files that no model was trained on."""

import ast
import json
import random
from pathlib import Path
from typing import TypedDict

from transformers import PreTrainedTokenizerFast

from infra.tiny_models.corpus import Document
from infra.tiny_models.recipe import SEED

MIN_TOKENS, MAX_TOKENS = 64, 200
PROMPTS_PER_FILE = 4
NUM_PROMPTS = 128


class Prompt(TypedDict):
    """One line of the workload file."""

    id: str
    category: str
    prompt: str


def _statement_lines(text: str) -> list[int]:
    """Return the first line of every top-level statement, counted from 0."""
    return [
        min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) - 1
        for node in ast.parse(text).body
    ]


def _cut(
    tokenizer: PreTrainedTokenizerFast, lines: list[str], start: int, wanted: int
) -> str | None:
    """Return lines from start up to about `wanted` tokens, cut at a line end, or None if too few.

    There is no newline at the end, so that the next token may hold the newline and the indent.
    """
    best = None
    for end in range(start + 1, len(lines)):
        text = "\n".join(lines[start:end])
        length = len(tokenizer.encode(text))
        if length > wanted:
            break
        if length >= MIN_TOKENS and lines[end - 1].strip():
            best = text
    return best


def _prompts_of(
    tokenizer: PreTrainedTokenizerFast, document: Document, chooser: random.Random
) -> list[Prompt]:
    """Return the prompts of one file."""
    lines = document.text.splitlines()
    starts = _statement_lines(document.text)
    chooser.shuffle(starts)
    found: list[Prompt] = []
    for start in starts:
        if len(found) == PROMPTS_PER_FILE:
            break
        text = _cut(tokenizer, lines, start, chooser.randint(MIN_TOKENS + 16, MAX_TOKENS))
        if text is not None:
            found.append(Prompt(id=f"{document.name}:{start + 1}", category="code", prompt=text))
    return found


def heldout_prompts(tokenizer: PreTrainedTokenizerFast, documents: list[Document]) -> list[Prompt]:
    """Return code prompts from the held-out documents, in a seeded random order.

    Args:
        tokenizer: The models' tokenizer; lengths are counted with it.
        documents: Any documents; those that were trained on are ignored.

    Returns:
        At most NUM_PROMPTS prompts of MIN_TOKENS to MAX_TOKENS tokens.
    """
    chooser = random.Random(SEED)
    found: list[Prompt] = []
    for document in documents:
        if document.held_out:
            found += _prompts_of(tokenizer, document, chooser)
    chooser.shuffle(found)
    return found[:NUM_PROMPTS]


def write_prompts(prompts: list[Prompt], path: Path) -> None:
    """Write the prompts as JSON lines."""
    path.write_text("".join(json.dumps(p) + "\n" for p in prompts), encoding="ascii")


def read_prompts(path: Path) -> list[Prompt]:
    """Read prompts written by `write_prompts`."""
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]
