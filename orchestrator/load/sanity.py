"""Whether answers are text at all. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

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

NGRAM = 8
"""Words, or characters of a text of few words, in a run that is looked for again."""

MIN_NGRAM_ITEMS = 40
"""A text with fewer words, or characters, is not judged by its runs."""

MAX_DISTINCT_SHARE = 1 / MIN_ROUNDS
"""A text with no more distinct runs than this share of all goes round in a loop of any length.

Measured over 7,134 passages of Python's and its packages' sources, 4,000 characters each: the
smallest share was 0.42, in a table of digits; the shipped workloads have 0.88 and more."""

MIN_COUNTED_WORDS = 16
"""A text of fewer words is not judged by how many different ones it has.

One that is judged stumbles in a loop if they are no more than ``MAX_DISTINCT_SHARE`` of its words.
Such a loop has no period; a penalty for repetition that rewards it makes one ("def f(x): (x): (x):
def f(x): (x):"). Of 8,223 passages of 16 to 39 words of Python's and its packages' sources five
have so few different ones, all of them tables of digits."""

MAX_COUNTED_WORDS = 64
"""A text of more words is judged as if it had so many: 16 different ones are few at any length.

Of all passages of 16 words of Python 3.11's library and its tests 35 of 172,170 have so few; of 39
words 22 of 70,116; of 64 words 67 of 42,427, tables and tests of grammar; of 128 words 7 of 20,815;
of 400 words none of 6,159."""

MAX_CONTROL_SHARE = 0.05
"""Control characters, and signs for bytes that are no text, among a text's characters.

A form feed or an escape stands in honest sources; one in twenty does not."""

REPLACEMENT = "\ufffd"
"""What a detokenizer writes for bytes that are no character."""

HONEST_CONTROLS = frozenset("\t\n\v\f\r\x1b")


class Garbage(StrEnum):
    """What an answer is that is no text."""

    EMPTY = "empty"
    REPETITION = "repetition"
    """One symbol, a short loop, the same few words, or longer runs of words again and again."""
    CONTROL = "control characters"
    """A NUL, or many control characters or bytes that are no text."""
    CUT_CHARACTER = "cut character"
    """It ends within a character: the bytes that follow are missing."""


_EFFECTS = {
    Garbage.EMPTY: "are empty",
    Garbage.REPETITION: "repeat a symbol or a loop",
    Garbage.CONTROL: "have control characters or bytes that are no text",
    Garbage.CUT_CHARACTER: "end within a character",
}


def garbage_kind(text: str) -> Garbage | None:
    """Return in which way one answer is no text, or None if it may be.

    The first that holds in the order of the kinds. An answer that was cut by its limit of tokens
    may end within a character honestly.
    """
    if not text.strip():
        return Garbage.EMPTY
    if _is_loop(text) or _has_few_words(text) or _has_few_runs(text):
        return Garbage.REPETITION
    if "\0" in text or _share_of_controls(text) >= MAX_CONTROL_SHARE:
        return Garbage.CONTROL
    if text.endswith(REPLACEMENT) or "\ud800" <= text[-1] <= "\udfff":
        return Garbage.CUT_CHARACTER
    return None


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
    kinds = [garbage_kind(text) for text in texts]
    counts = Counter(kind for kind in kinds if kind is not None)
    if counts.total() <= DEGENERATE_SHARE * len(texts):
        return None
    parts = [f"{counts[kind]} {effect}" for kind, effect in _EFFECTS.items() if counts[kind]]
    first, *others = parts
    told = ", ".join([first.replace(" ", f" of {len(texts)} answers ", 1), *others])
    example = next((text for text, kind in zip(texts, kinds, strict=True) if kind and text), "")
    shown = f", for example {example.strip()[:20]!r}" if example.strip() else ""
    return f"{told}{shown}: the engine emits no text"


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


def _has_few_words(text: str) -> bool:
    words = text.split()
    num_counted = min(len(words), MAX_COUNTED_WORDS)
    return num_counted >= MIN_COUNTED_WORDS and len(set(words)) <= num_counted * MAX_DISTINCT_SHARE


def _has_few_runs(text: str) -> bool:
    """Return whether the text says the same runs of words again and again."""
    words: Sequence[str] = text.split()
    items = words if len(words) >= MIN_WORDS else "".join(words)
    if len(items) < MIN_NGRAM_ITEMS:
        return False
    num_runs = len(items) - NGRAM + 1
    distinct = {tuple(items[i : i + NGRAM]) for i in range(num_runs)}
    return len(distinct) <= MAX_DISTINCT_SHARE * num_runs


def _share_of_controls(text: str) -> float:
    odd = sum(
        character == REPLACEMENT
        or (character not in HONEST_CONTROLS and (character < " " or "\x7f" <= character < "\xa0"))
        for character in text
    )
    return odd / len(text)
