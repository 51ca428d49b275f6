"""Names and digests that are the same wherever they are computed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping

from orchestrator.errors import ConfigError


def digest(mapping: Mapping[str, object]) -> str:
    """Return 16 hex digits that identify plain JSON data, whatever the order of its keys.

    Raises:
        ConfigError: A value is no JSON type.
    """
    try:
        text = json.dumps(mapping, sort_keys=True, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise ConfigError("digest", f"not plain JSON data ({error})", "use JSON types") from error
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def slug(text: str) -> str:
    """Return ``text`` in lower-case letters, digits and single dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def study_id(name: str, mapping: Mapping[str, object]) -> str:
    """Return the id of a study: its name and the digest of what it asks, ``name-1a2b3c4d``."""
    return f"{slug(name)}-{digest(mapping)[:8]}"
