"""Texts that others wrote, such as names found in the world, as what a terminal may be shown."""

from __future__ import annotations


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
