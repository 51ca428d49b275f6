"""Whether engines run code that comes with a model, as far as their arguments say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

RemoteCode = Literal["off", "on"]

_ARGUMENT = "trust_remote_code"
_OFF = (None, False, "", "false", "False", "0")


def remote_code(engine_args: Mapping[str, object]) -> RemoteCode:
    """Return whether an engine with these arguments runs code from the folder of its model.

    vLLM runs it for ``--trust-remote-code`` alone; an ``auto_map`` in ``hf_overrides`` only says
    which. Who gives one means to run it, so that counts as on, too.

    Args:
        engine_args: By vLLM's names, with dashes or underscores.
    """
    named = {name.replace("-", "_"): value for name, value in engine_args.items()}
    is_on = named.get(_ARGUMENT) not in _OFF or _has_auto_map(named.get("hf_overrides"))
    return "on" if is_on else "off"


def remote_code_note(value: RemoteCode) -> str | None:
    """Return the sentence for a plan or a status; None where nothing is trusted."""
    if value == "off":
        return None
    return (
        "trust_remote_code is on: engines run code from the model's folder, with all that Ray's "
        "user may do; conclusions depend on it"
    )


def _has_auto_map(value: object) -> bool:
    if isinstance(value, Mapping):
        return "auto_map" in value or any(map(_has_auto_map, value.values()))
    return "auto_map" in value if isinstance(value, str) else False
