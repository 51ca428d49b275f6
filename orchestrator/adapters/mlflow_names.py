"""Keys and parameters in the form that MLflow takes them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

MAX_KEY_CHARS = 250
MAX_PARAM_CHARS = 6000
"""Limits of MLflow 3.17; it cuts a longer parameter without a word."""


def flatten_params(params: Mapping[str, object], *, prefix: str = "") -> dict[str, str]:
    """Return parameters as MLflow takes them: one level, legal keys, text of legal length.

    Nested mappings become dotted keys; numbers stay as they are written, so that the UI can sort
    and plot by them; None is left out.
    """
    flat: dict[str, str] = {}
    for name, value in params.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            flat |= flatten_params(value, prefix=f"{key}.")
        elif value is not None:
            text = json.dumps(value) if isinstance(value, bool | list | tuple) else str(value)
            flat[legal_key(key)] = text[:MAX_PARAM_CHARS]
    return flat


def legal_key(name: str) -> str:
    """Return a key with every character that MLflow refuses replaced by an underscore."""
    return re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII)[:MAX_KEY_CHARS]
