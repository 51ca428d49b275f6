"""Read the tags of a registered version, which anybody with the registry can write."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from orchestrator.core.codec import from_plain
from orchestrator.errors import ConfigError
from orchestrator.ports import Version

T = TypeVar("T")
MAX_VERSION_DIGITS = 9


def read_tag(
    version: Version, tag: str, parse: Callable[[str], T], *, noun: str, remedy: str
) -> T | None:
    """Return what a tag says; None where the version does not have it.

    Args:
        version: Whose tag.
        tag: Its name.
        parse: Raises ValueError, and no other error, of a text that it cannot read.
        noun: What the text should be, for the message.
        remedy: What to do where it is not.

    Raises:
        ConfigError: The tag was written by somebody else.
    """
    text = version.tags.get(tag)
    if text is None:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError(
            f"version {version.version} of '{version.model_name}'",
            f"its tag {tag} is no {noun}: {error}",
            remedy,
        ) from error


def json_of(text: str) -> Any:
    """Return what a JSON text holds.

    Raises:
        ValueError: It is none, holds a number that is not finite, or is too deep.
    """
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("its brackets are too deep") from error


def record_of(kind: type[T]) -> Callable[[str], T]:
    """Return what parses the JSON of such a record."""
    return lambda text: from_plain(kind, json_of(text))


def version_number_of(text: str) -> int:
    """Return the number of a version, 1 or more.

    Raises:
        ValueError: It is none.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_VERSION_DIGITS and int(text)):
        raise ValueError(repr(text[:20]))
    return int(text)


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")
