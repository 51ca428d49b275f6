"""Whether answers are text at all. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

DEGENERATE_SHARE = 0.9
"""Share of the requests that must be degenerate, and of one text that one loop must fill.

Small code models repeat themselves honestly (indentation, argument lists), so both are strict."""

MIN_SYMBOLS = 16
"""A text shorter than this many characters is not judged for repetition."""

MIN_WORDS = 8
"""A text of fewer words is judged by its characters only."""

MAX_PERIOD = 8
"""Longest loop that is looked for, in words, or in characters of a text of few words."""

MIN_ROUNDS = 4
"""Rounds that a loop must have gone; a row of a table is repeated twice or thrice in any text."""


def garbage_reason(texts: Sequence[str]) -> str | None:
    """Say why the answers of a block are no text, or None if they may be.

    An engine that emits one token, or a few in a circle, for ever is fast and answers HTTP 200, so
    speed and status show nothing; its text does. What differs from line to line (imports, rows of a
    table, arguments) is no loop.

    Args:
        texts: Answers of the requests that succeeded.
    """
    if not texts:
        return None
    empty = sum(not text.strip() for text in texts)
    repeated = sum(_is_loop(text) for text in texts)
    if empty + repeated <= DEGENERATE_SHARE * len(texts):
        return None
    example = next((text for text in texts if text.strip()), "")
    shown = f", for example {example.strip()[:20]!r}" if example else ""
    return (
        f"{empty} of {len(texts)} answers are empty and {repeated} repeat a symbol or a short "
        f"loop{shown}: the engine emits no text"
    )


def _is_loop(text: str) -> bool:
    words = text.split()
    if len(words) >= MIN_WORDS:
        return _is_periodic(words)
    symbols = "".join(words)
    return len(symbols) >= MIN_SYMBOLS and _is_periodic(symbols)


def _is_periodic(items: Sequence[str]) -> bool:
    if Counter(items).most_common(1)[0][1] >= DEGENERATE_SHARE * len(items):
        return True
    longest = min(MAX_PERIOD, len(items) // MIN_ROUNDS)
    return any(_share_of_loop(items, p) >= DEGENERATE_SHARE for p in range(2, longest + 1))


def _share_of_loop(items: Sequence[str], period: int) -> float:
    """Return the share of items that equal the one a period before."""
    equal = sum(a == b for a, b in zip(items, items[period:], strict=False))
    return equal / (len(items) - period)
