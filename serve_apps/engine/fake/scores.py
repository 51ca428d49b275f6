"""Tokens' probabilities in the form of vLLM's completions, and its refusals of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from serve_apps.engine.fake.chain import Floats

CLAMPED = -9999.0
"""What vLLM writes for minus infinity."""

Stated = Callable[[int, int], Floats]
"""The token before a place and the place, to the log probabilities, [vocabulary]."""
Name = Callable[[int], str]
"""A token's id to what it is called."""


def as_stated(logprobs: Floats) -> Floats:
    """Return what an engine says, which computes in single precision."""
    return np.maximum(logprobs, CLAMPED).astype(np.float32).astype(np.float64)


def refusal(body: Mapping[str, Any], *, vocabulary: int, max_logprobs: int) -> str | None:
    """Return why vLLM would not give the probabilities that a request wants, or None.

    Args:
        body: The request.
        vocabulary: Number of tokens.
        max_logprobs: As vLLM's argument of this name; -1 is the vocabulary.
    """
    limit = vocabulary if max_logprobs < 0 else max_logprobs
    for key, what in (("prompt_logprobs", "prompt"), ("logprobs", "sample")):
        wanted = body.get(key) or 0
        if wanted < -1:
            return f"`{key}` must be a positive value or -1. (parameter={key}, value={wanted})"
        wanted = vocabulary if wanted < 0 else wanted
        if wanted > limit:
            return (
                f"Requested {what} logprobs of {wanted}, which is greater than max allowed: "
                f"{limit} (parameter={key}, value={wanted})"
            )
    if body.get("prompt_logprobs") and body.get("stream"):
        return "`prompt_logprobs` are not available when `stream=True`. (parameter=prompt_logprobs)"
    return None


def prompt_logprobs(
    prompt: Sequence[int], num_top: int, *, stated: Stated, name: Name
) -> list[dict[str, Any] | None]:
    """Return `prompt_logprobs`: at each place the prompt's own token and the likeliest ones.

    Args:
        prompt: Tokens.
        num_top: How many of the likeliest; -1 is the vocabulary.
        stated: What the engine says.
        name: Of a token, as text.
    """
    rows: list[dict[str, Any] | None] = [None]
    for place, (previous, token) in enumerate(pairwise(prompt), start=1):
        logprobs = stated(previous, place)
        ranked = np.argsort(-logprobs, kind="stable")
        rank = int(np.flatnonzero(ranked == token)[0]) + 1
        top = ranked if num_top < 0 else ranked[:num_top]
        named = [(token, rank), *((int(t), r) for r, t in enumerate(top, start=1))]
        rows.append(
            {
                str(t): {"logprob": float(logprobs[t]), "rank": r, "decoded_token": name(t)}
                for t, r in named
            }
        )
    return rows


def sample_logprobs(
    before: Sequence[int],
    tokens: Sequence[int],
    num_top: int,
    *,
    stated: Stated,
    name: Name,
    offset: int = 0,
) -> dict[str, list[Any]]:
    """Return `logprobs` of sampled tokens.

    Args:
        before: All tokens before them, at least one.
        tokens: The sampled ones.
        num_top: How many of the likeliest at each place; -1 is the vocabulary.
        stated: What the engine says.
        name: What a token is called.
        offset: Characters of the answer before them.
    """
    made: dict[str, list[Any]] = {
        key: [] for key in ("text_offset", "token_logprobs", "tokens", "top_logprobs")
    }
    previous = before[-1]
    for place, token in enumerate(tokens, start=len(before)):
        logprobs = stated(previous, place)
        ranked = np.argsort(-logprobs, kind="stable")
        top = ranked if num_top < 0 else ranked[:num_top]
        made["text_offset"].append(offset)
        made["token_logprobs"].append(float(logprobs[token]))
        made["tokens"].append(name(token))
        made["top_logprobs"].append({name(t): float(logprobs[t]) for t in (token, *top.tolist())})
        offset += len(name(token))
        previous = token
    return made
