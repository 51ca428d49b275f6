"""Texts that others wrote, such as names found in the world, as what a terminal may be shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def one_line(text: str, longest: int | None = None) -> str:
    r"""Return a text as one line: a line feed or escape in it stands there as ``\n`` or ``\x1b``.

    Args:
        text: Any, such as the name of an application that somebody else has started.
        longest: Most characters; of a longer one the beginning and the end are kept.
    """
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    if longest is None or len(line) <= longest:
        return line
    half = longest // 2
    return f"{line[:half]}...{line[-half:]}"


def printed(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines with names of others in them as a terminal may be shown them, with their ends."""
    return (f"{one_line(line)}\n" for line in lines)


def folded(text: str) -> str:
    """Return words of others as one line, each run of white space in it as one space."""
    return one_line(" ".join(text.split()))


def first_of(
    texts: Sequence[str], most: int = 3, *, apart: str = ", ", last: str = " ", rest: str = "more"
) -> str:
    """Return the first texts, and how many others there are: ``a, b and 3 more``.

    Args:
        texts: All of them.
        most: How many are named, 1 or more.
        apart: Between two of them.
        last: Before the number of the others.
        rest: What the others are called.
    """
    left = len(texts) - most
    return apart.join(texts[:most]) + (f"{last}and {left} {rest}" if left > 0 else "")
