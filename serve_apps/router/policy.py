"""Which engine gets a request, and what a client may ask for. Pure."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from serve_apps.engine.spec import BOOT_ALIAS_PREFIX

APP_HEADER = "x-specpilot-app"
"""Request header that pins one engine application (for verification).

A client may pin only where no key is asked for, and only what has a weight, be it 0.
"""
OWN_HEADER = "x-specpilot-token"
"""Request header by which specpilot's own requests prove themselves."""
READ_TIMEOUT_HEADER = "x-specpilot-read-timeout"
"""Response header for Serve's proxy, see ``proxy``: seconds without a byte read."""
VERSION_HEADER = "x-specpilot-version"
"""Response header: the engine application that answered."""
MAX_CLIENT_STREAMS = 1000
"""Client requests under way at once of one router: below its deployment's own limit, beyond which
Serve queues without a word."""
HEALTH = "/health"
"""Path that is open without a key."""

_ALLOWED = {
    "/v1/chat/completions": ("POST",),
    "/v1/completions": ("POST",),
    "/v1/models": ("GET",),
    "/tokenize": ("POST",),
    HEALTH: ("GET",),
    "/version": ("GET",),
}
# The engine does no authentication of its own: credentials end at the router. A body that was read
# as JSON is in no other coding, and an engine must not read another one out of it.
_DROPPED_HEADERS = frozenset(
    {"authorization", "content-encoding", "cookie", "host", APP_HEADER, OWN_HEADER}
)


class Refusal(NamedTuple):
    """Why a request is not answered."""

    status: int
    message: str
    code: str | None = None
    """OpenAI's code; None is the status."""
    headers: Mapping[str, str] = MappingProxyType({})


def refusal(method: str, path: str) -> Refusal | None:
    """Return why a request is not one that clients may make, or None.

    Only what is listed passes: an engine in development mode also has routes that show its
    configuration and reset its caches.
    """
    methods = _ALLOWED.get(path)
    if methods is None:
        return Refusal(404, f"{_shown(path)} is not served here")
    if method not in methods:
        text = f"{_shown(method)} is not allowed on {path}"
        return Refusal(405, text, headers={"Allow": ", ".join(methods)})
    return None


def _shown(text: str) -> str:
    return text if text.isprintable() else ascii(text)


def upstream_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the request headers that the engine gets."""
    return {name: value for name, value in headers.items() if name not in _DROPPED_HEADERS}


def checked_weights(weights: Mapping[str, float]) -> dict[str, float]:
    """Return the weights.

    Raises:
        ValueError: When one is negative or not a number.
    """
    for app, weight in weights.items():
        if not weight >= 0:
            raise ValueError(f"weights.{app}: must be 0 or more, got {weight!r}")
    return dict(weights)


def order(weights: Mapping[str, float], pinned: str | None, source: random.Random) -> list[str]:
    """Return the engine applications to try, first choice first.

    The first is drawn by weight; the others stand by for when it is not there. A pinned request
    goes to its engine or nowhere, and an engine of weight 0 gets pinned requests only.
    """
    if pinned is not None:
        return [pinned]
    left = {app: weight for app, weight in weights.items() if weight > 0}
    chosen: list[str] = []
    while left:
        app = source.choices(list(left), list(left.values()))[0]
        chosen.append(app)
        del left[app]
    return chosen


def error_body(refused: Refusal) -> dict[str, object]:
    """Return an error in OpenAI's shape."""
    kind = "service_unavailable_error" if refused.status >= 500 else "invalid_request_error"
    code = refused.code or refused.status
    return {"error": {"message": refused.message, "type": kind, "param": None, "code": code}}


def without_boot_names(body: bytes) -> bytes:
    """Return the answer of /v1/models without the names by which boots prove their identity.

    Raises:
        ValueError: It is no list of models.
    """
    try:
        answer = json.loads(body)
        cards = [card for card in answer["data"] if not card["id"].startswith(BOOT_ALIAS_PREFIX)]
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("no list of models") from error
    return json.dumps({**answer, "data": cards}).encode()
