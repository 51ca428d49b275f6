"""Records as plain JSON types and back, for the boundaries that they cross (Tune, MLflow)."""

from __future__ import annotations

import types
import typing
from collections.abc import Hashable, Mapping
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, cast

T = TypeVar("T")

MAX_SHOWN = 60
"""Characters of a value that an error repeats."""


def to_plain(record: Any) -> dict[str, Any]:
    """Return a dataclass instance as nested dicts, lists and scalars."""
    plain = _plain(asdict(record))
    assert isinstance(plain, dict)
    return plain


def from_plain(kind: type[T], data: Any) -> T:
    """Return the record that ``to_plain`` was given.

    Raises:
        ValueError: A field is missing, unknown, or not of its type, at whatever depth: whoever
            reads what another process wrote needs to look for no other error.
    """
    hints = _hints(cast("Hashable", kind))
    names = {item.name for item in fields(kind)}  # type: ignore[arg-type]  # T is a dataclass
    if not isinstance(data, Mapping):
        raise ValueError(f"{kind.__name__}: {_shown(data)} is no record")
    unknown = sorted(set(data) - names)
    if unknown:
        raise ValueError(f"{kind.__name__}: unknown field {unknown[0]!r}")
    needed = (item.name for item in fields(kind) if _is_needed(item))  # type: ignore[arg-type]  # T
    if missing := [name for name in needed if name not in data]:
        raise ValueError(f"{kind.__name__}: field {missing[0]!r} is missing")
    given = {name: _field(kind, name, hints[name], value) for name, value in data.items()}
    return kind(**given)


def _is_needed(item: Field[Any]) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def _field(kind: type, name: str, hint: Any, value: Any) -> Any:
    try:
        return _value(hint, value)
    except ValueError as error:
        raise ValueError(f"{kind.__name__}.{name}: {error}") from error


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
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return _value(next(arg for arg in args if arg is not type(None)), value)
    if origin is typing.Literal:
        if value not in args:
            raise ValueError(f"{_shown(value)} is none of {', '.join(map(str, args))}")
        return value
    if origin is tuple:
        return tuple(_value(args[0], item) for item in _as(list | tuple, "a list", value))
    if origin in (dict, Mapping):
        items = _as(Mapping, "a mapping", value)
        return {_value(args[0], key): _value(args[1], item) for key, item in items.items()}
    if is_dataclass(hint) and isinstance(hint, type):
        return from_plain(hint, value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    return _scalar(hint, value)


def _scalar(hint: Any, value: Any) -> Any:
    if hint is float:
        return _float(value)
    if hint is int:
        # JavaScript writes 1 for 1.0, and others 1.0 for 1.
        is_whole = isinstance(value, float) and value.is_integer()
        return int(value) if is_whole else _number(int, "a whole number", value)
    if hint is bool:
        return _as(bool, "true or false", value)
    if hint is str:
        return _as(str, "a text", value)
    return value


def _float(value: Any) -> float:
    try:
        return float(_number(int | float, "a number", value))
    except OverflowError as error:
        raise ValueError(f"a whole number of {len(str(abs(value)))} digits is no float") from error


def _number(kind: Any, noun: str, value: Any) -> Any:
    if isinstance(value, bool):  # which Python counts as a whole number
        raise ValueError(f"{_shown(value)} is not {noun}")
    return _as(kind, noun, value)


def _as(kind: Any, noun: str, value: Any) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{_shown(value)} is not {noun}")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
