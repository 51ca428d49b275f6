"""Whether answers are text at all. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

DEGENERATE_SHARE = 0.9
"""Share of the requests that must be degenerate, and of one text that one symbol must fill.

Small code models repeat themselves honestly (indentation, argument lists), so both are strict."""

MIN_SYMBOLS = 16
"""A text shorter than this many characters is not judged for repetition."""

MIN_WORDS = 8
"""A text of fewer words is judged by its characters only."""


def garbage_reason(texts: Sequence[str]) -> str | None:
    """Say why the answers of a block are no text, or None if they may be.

    An engine that emits one token for ever is fast and answers HTTP 200, so speed and status show
    nothing; its text does.

    Args:
        texts: Answers of the requests that succeeded.
    """
    if not texts:
        return None
    empty = sum(not text.strip() for text in texts)
    repeated = sum(_is_one_symbol(text) for text in texts)
    if empty + repeated <= DEGENERATE_SHARE * len(texts):
        return None
    example = next((text for text in texts if text.strip()), "")
    shown = f", for example {example.strip()[:20]!r}" if example else ""
    return (
        f"{empty} of {len(texts)} answers are empty and {repeated} repeat one symbol{shown}: "
        "the engine emits no text"
    )


def _is_one_symbol(text: str) -> bool:
    words = text.split()
    if len(words) >= MIN_WORDS:
        return _top_share(words) >= DEGENERATE_SHARE
    symbols = "".join(words)
    return len(symbols) >= MIN_SYMBOLS and _top_share(symbols) >= DEGENERATE_SHARE


def _top_share(items: Sequence[str]) -> float:
    return Counter(items).most_common(1)[0][1] / len(items)
