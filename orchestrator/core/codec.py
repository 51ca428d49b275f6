"""Records as plain JSON types and back, for the boundaries that they cross (Tune, MLflow)."""

from __future__ import annotations

import types
import typing
from collections.abc import Hashable, Mapping
from dataclasses import asdict, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, cast

T = TypeVar("T")


def to_plain(record: Any) -> dict[str, Any]:
    """Return a dataclass instance as nested dicts, lists and scalars."""
    plain = _plain(asdict(record))
    assert isinstance(plain, dict)
    return plain


def from_plain(kind: type[T], data: Mapping[str, Any]) -> T:
    """Return the record that ``to_plain`` was given.

    Raises:
        ValueError: A field is missing or unknown.
    """
    hints = _hints(cast("Hashable", kind))
    names = {item.name for item in fields(kind)}  # type: ignore[arg-type]  # T is a dataclass
    unknown = sorted(set(data) - names)
    if unknown:
        raise ValueError(f"{kind.__name__}: unknown field {unknown[0]!r}")
    try:
        return kind(**{name: _value(hints[name], value) for name, value in data.items()})
    except TypeError as error:
        raise ValueError(f"{kind.__name__}: {error}") from error


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    """Return the resolved types of a record's fields; they are compiled from text each time."""
    return typing.get_type_hints(kind)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _value(hint: Any, value: Any) -> Any:
    origin = typing.get_origin(hint)
    if value is None:
        return None
    if origin in (typing.Union, types.UnionType):
        inner = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        return _value(inner[0], value)
    if origin is tuple:
        args = typing.get_args(hint)
        return tuple(_value(args[0], item) for item in value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    if is_dataclass(hint) and isinstance(hint, type):
        return from_plain(hint, value)
    if hint is float:
        return _float(value)
    return value


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError as error:
        raise ValueError(f"a whole number of {len(str(abs(value)))} digits is no float") from error
