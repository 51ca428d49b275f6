"""Where in a composed configuration the fault lies, as one sentence with the dotted key.

OmegaConf refuses what does not fit the dataclasses, but not always with the key. This walks the
plain data beside the type hints and finds the first place that cannot fit.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal

from orchestrator.errors import ConfigError

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def find_fault(kind: type[Any], data: object, key: str = "") -> ConfigError | None:
    """Return the first place of the data that does not fit the dataclass, or None.

    Args:
        kind: A dataclass.
        data: What the files and overrides make of it, in plain types.
        key: Dotted key of the data; empty for the whole.
    """
    names = [item.name for item in fields(kind)]
    if not isinstance(data, Mapping):
        return _wrong(key, data, _words(kind))
    for name in data:
        if name not in names:
            near = difflib.get_close_matches(str(name), names, n=1)
            remedy = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(names)}"
            return ConfigError(_below(key, name), "is unknown", remedy)
    hints = typing.get_type_hints(kind)
    for item in fields(kind):
        below = _below(key, item.name)
        if item.name not in data:
            if item.default is MISSING and item.default_factory is MISSING:
                return ConfigError(below, "is missing", f"give {_words(hints[item.name])}")
            continue
        fault = _fault(hints[item.name], data[item.name], below)
        if fault is not None:
            return fault
    return None


def _fault(hint: Any, value: object, key: str) -> ConfigError | None:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        inner = next(arg for arg in args if arg is not type(None))
        return None if value is None else _fault(inner, value, key)
    if is_dataclass(hint) and isinstance(hint, type):
        return find_fault(hint, value, key)
    if origin in (list, tuple):
        return _list_fault(hint, value, key)
    if origin is dict:
        if not isinstance(value, Mapping):
            return _wrong(key, value, "a section of keys and values")
        faults = (_fault(args[1], item, _below(key, name)) for name, item in value.items())
        return next((fault for fault in faults if fault is not None), None)
    return None if _fits(hint, value) else _wrong(key, value, _words(hint))


def _list_fault(hint: Any, value: object, key: str) -> ConfigError | None:
    args = [arg for arg in typing.get_args(hint) if arg is not Ellipsis]
    if not isinstance(value, list | tuple):
        return _wrong(key, value, _words(hint))
    if len(args) > 1 and len(value) != len(args):
        return _wrong(key, value, f"a list of {len(args)} values")
    faults = (_fault(args[0], item, f"{key}[{index}]") for index, item in enumerate(value))
    return next((fault for fault in faults if fault is not None), None)


def _fits(hint: Any, value: object) -> bool:
    if typing.get_origin(hint) is Literal:
        return value in typing.get_args(hint)
    if hint is str:
        return isinstance(value, str | int | float | bool)
    if hint is bool:
        return isinstance(value, bool) or str(value).lower() in _BOOLEANS
    if hint in (int, float):
        return isinstance(value, int | float | str) and _converts(hint, value)
    return True


_BOOLEANS = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "0", "1"})


def _converts(hint: type[int] | type[float], value: float | str) -> bool:
    if hint is int and isinstance(value, float):
        return False
    try:
        hint(value)
    except (ValueError, OverflowError):
        return False
    return not isinstance(value, bool)


def _words(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return f"one of {', '.join(str(arg) for arg in typing.get_args(hint))}"
    if typing.get_origin(hint) in (list, tuple):
        return "a list such as [1, 2]" if int in typing.get_args(hint) else "a list"
    if is_dataclass(hint):
        return f"a section with keys such as {', '.join(item.name for item in fields(hint)[:3])}"
    return _WORDS.get(hint, "a section")


def _wrong(key: str, value: object, expected: str) -> ConfigError:
    return ConfigError(key or "the study", f"{value!r} does not fit", f"give {expected}")


def _below(key: str, name: object) -> str:
    return f"{key}.{name}" if key else str(name)
