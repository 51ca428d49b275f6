"""What an engine's own arguments let a load ask of it, as far as they say. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from orchestrator.errors import ConfigError

_HUMAN = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)([kKmMgG]?)")
_UNITS = {
    "": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30,
}  # fmt: skip
"""vLLM's: small letters are decimal, capitals binary (``human_readable_int``)."""


def stated_count(args: Mapping[str, object], name: str) -> int | None:
    """Return a count among the engine's arguments, such as ``max_model_len``.

    It may be written 8192, ``8k`` or ``8K``.

    Returns:
        None where it is not stated, or is left to the engine as ``auto`` and -1 leave it.
    """
    value = args.get(name)
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    match = _HUMAN.fullmatch(str(value).strip())
    count = 0 if match is None else int(float(match[1]) * _UNITS[match[2]])
    return count if count > 0 else None


def require_room(
    args: Mapping[str, object], *, streams: Sequence[int], answers: Mapping[str, int]
) -> None:
    """See that the engine runs as many requests at a time as are asked, and answers as long.

    Args:
        args: The engine's.
        streams: Concurrencies of the closed loop. What is beyond the engine's own limit would wait
            in its queue and count as slow; the open loop means to see that.
        answers: Tokens of an answer, by the key that states them.

    Raises:
        ConfigError: It cannot.
    """
    most = stated_count(args, "max_num_seqs")
    for value in streams:
        if most is not None and value > most:
            raise ConfigError(
                "load.streams", f"{value} is above engine.args.max_num_seqs={most}, so that the "
                "engine lets some wait",
                "raise engine.args.max_num_seqs or lower load.streams",
            )  # fmt: skip
    limit = stated_count(args, "max_model_len")
    for key, tokens in answers.items():
        if limit is not None and tokens + 1 > limit:
            raise ConfigError(
                key, f"{tokens} leaves no room for a prompt in engine.args.max_model_len={limit}",
                f"raise engine.args.max_model_len or lower {key}",
            )  # fmt: skip


def prompts_beyond(args: Mapping[str, object], lengths: Sequence[int], max_tokens: int) -> int:
    """Return how many prompts are too long for the engine; 0 where its limit is not known.

    Args:
        args: The engine's.
        lengths: Tokens of each prompt, at least.
        max_tokens: Of an answer.
    """
    limit = stated_count(args, "max_model_len")
    return 0 if limit is None else sum(length + max_tokens > limit for length in lengths)
