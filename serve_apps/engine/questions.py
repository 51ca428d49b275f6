"""Questions that a supervisor asks its engine over HTTP."""

from __future__ import annotations

import json
from typing import Any

from serve_apps.engine.http import EngineHttp, HttpError


async def get_json(http: EngineHttp, path: str, *, timeout_s: float) -> dict[str, Any] | None:
    """Return the JSON object at a path, or None when there is none."""
    try:
        answer = await http.request("GET", path, timeout_s=timeout_s)
        value = json.loads(answer.body) if answer.status == 200 else None
    except (*HttpError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


async def is_healthy(http: EngineHttp, *, timeout_s: float) -> bool:
    """Return whether /health answers 200 in time."""
    try:
        return (await http.request("GET", "/health", timeout_s=timeout_s)).status == 200
    except HttpError:
        return False


async def complete_once(
    http: EngineHttp, *, model: str, prompt: str, max_tokens: int, timeout_s: float
) -> str | None:
    """Ask for one greedy completion.

    Returns:
        None when tokens were generated, else what happened instead.
    """
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    try:
        answer = await http.request("POST", "/v1/completions", timeout_s=timeout_s, body=body)
    except HttpError as error:
        return f"no completion came within {timeout_s:.0f} s ({type(error).__name__})"
    text = answer.body.decode(errors="replace")
    if answer.status != 200:
        return f"a completion is answered with HTTP {answer.status}: {text[:300]}"
    try:
        num_tokens = json.loads(text)["usage"]["completion_tokens"]
    except (ValueError, KeyError, TypeError, RecursionError):
        num_tokens = None
    return None if num_tokens else f"a completion came back without tokens: {text[:300]}"
