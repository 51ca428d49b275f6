"""Names and digests that are the same wherever they are computed.

There is one canonical form of plain data, and every digest is made of it:

- Objects are ordered by key, lists keep their order, tuples are lists.
- true, false, null and an absent key are four different things. (An engine argument that is null
  is left off the command line: ``resolved.arguments`` drops it, not the canonical form.)
- Text and numbers differ: "7" is not 7. Booleans are no numbers: true is not 1.
- Numbers are equal when their values are: 7 and 7.0, 0.90 and 0.9, 0.0 and -0.0. NaN and the
  infinities have no JSON and are refused.
- Text is compared by code points and not normalised: a model sees composed and decomposed letters
  as different tokens. Lone surrogates are no text and are refused.
- A key is text; a whole number as a key is the same text, as in JSON. Two keys that become one
  are refused.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Mapping

from orchestrator.errors import ConfigError

Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]
"""JSON data."""
MAX_SLUG = 40
"""Letters of a study's name in its id: file systems take 255 bytes, and Ray's paths add to it."""


def canonical(value: object) -> str:
    """Return the one JSON text of plain data, in ASCII; equal texts mean equal data.

    Raises:
        ConfigError: There is something in it that is no JSON.
    """
    return json.dumps(_plain(value), sort_keys=True, allow_nan=False, separators=(",", ":"))


def sha256_of(value: object) -> str:
    """Return the SHA-256 of the canonical form, 64 hex digits.

    Raises:
        ConfigError: There is something in it that is no JSON.
    """
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def digest(mapping: Mapping[str, object]) -> str:
    """Return the first 16 hex digits of ``sha256_of``, for names that people read.

    Raises:
        ConfigError: A value is no JSON type.
    """
    return sha256_of(mapping)[:16]


def slug(text: str) -> str:
    """Return ``text`` in lower-case letters, digits and single dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def study_id(name: str, mapping: Mapping[str, object]) -> str:
    """Return the id of a study: its name and the digest of what it asks, ``name-1a2b3c4d``.

    It is typed by hand and names folders, so of the name it has ASCII letters and digits only, and
    no more than ``MAX_SLUG`` of them; ``study`` where none is left. The digest tells studies apart.
    """
    plain = slug(unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode())
    return f"{plain[:MAX_SLUG].strip('-') or 'study'}-{digest(mapping)[:8]}"


def _plain(value: object) -> Plain:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, Mapping):
        return _object(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    raise _refused(f"{type(value).__name__} is no JSON type")


def _text(value: str) -> str:
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise _refused(f"{value!r} is no text: it holds half a character")
    return str(value)


def _number(value: float) -> int | float:
    if not math.isfinite(value):
        raise _refused(f"{value} is no JSON number")
    return int(value) if value.is_integer() else value


def _object(value: Mapping[object, object]) -> dict[str, Plain]:
    plain: dict[str, Plain] = {}
    for key, item in value.items():
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise _refused(f"the key {key!r} is no text")
        name = _text(str(key))
        if name in plain:
            raise _refused(f"the key {name!r} stands there as text and as a number")
        plain[name] = _plain(item)
    return plain


def _refused(problem: str) -> ConfigError:
    return ConfigError("digest", f"not plain JSON data ({problem})", "use JSON types")
