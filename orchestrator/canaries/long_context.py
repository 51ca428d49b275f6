"""A question whose answer stands far back in a prompt that nearly fills the model's context. Pure.

How many tokens a line takes is the tokenizer's affair, so the server is asked: short prompts of the
same lines are sent first, for their ``prompt_tokens`` alone.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from orchestrator.canaries.questions import NO_THOUGHT, Ask, says

NAME = "long_context"
CODE = "7391"
"""What the question is for."""

FILL_SHARE = 0.95
"""Share of the context that prompt and answer together are to fill: a line's tokens are an estimate
from the shorter prompts."""

NEAR_SHARE = 0.85
"""Share of the context from which a prompt and its answer count as near the limit."""

FIRST_LINES = 4
SECOND_SHARE = 0.1
"""The prompts that lines are measured by: a few lines, then this share of the context."""

_GOODS = ("copper", "linen", "barley", "timber", "salt", "wool", "glass", "paper")


def question(num_lines: int) -> Ask:
    """Return the question below a list of so many lines, the code in the first tenth of them."""
    lines = [_line(index) for index in range(num_lines)]
    lines.insert(num_lines // 10, f"Note: the code of the east gate is {CODE}.")
    text = "\n".join(
        [
            "Here is the log of a harbour.",
            *lines,
            "What is the code of the east gate? Answer with the number alone.",
        ]
    )
    messages: tuple[Mapping[str, object], ...] = ({"role": "user", "content": text},)
    return Ask(messages=messages, check=says(CODE), extra=NO_THOUGHT)


def lines_for(tokens: int, *measured: tuple[int, int]) -> int:
    """Return how many lines make a prompt of so many tokens.

    Args:
        tokens: Wanted length of the prompt.
        measured: Lines and tokens of one or two prompts that were sent, the longer one last. Of one
            alone all tokens count as its lines', and at least twice its lines are returned, so that
            a second one tells the lines from the rest.
    """
    *_, (many, many_tokens) = measured
    few, few_tokens = measured[0] if len(measured) > 1 else (0, 0)
    # Lines that seem to have no tokens say nothing of how many are needed.
    per_line = max(1.0, (many_tokens - few_tokens) / (many - few))
    lines = int(many + (tokens - many_tokens) / per_line)
    return max(lines, 0 if len(measured) > 1 else 2 * many)


def _line(index: int) -> str:
    """Return one line of the log; every line has as many digits as any other."""
    chance = random.Random(index)
    amount, dock = chance.randint(1000, 9999), chance.randint(10, 99)
    goods = chance.choice(_GOODS)
    return f"Entry {100000 + index}: {amount} crates of {goods} were put down at dock {dock}."
