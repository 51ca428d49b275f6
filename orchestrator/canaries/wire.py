"""One request to a server, and all bytes of its answer."""

from __future__ import annotations

import http.client
import json
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.core.secrecy import hide_key
from orchestrator.errors import TransientError

MAX_BYTES = 16 << 20
"""Longest body that is read; an answer of a few thousand tokens has some 100 KiB as a stream."""

PART_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """An OpenAI-compatible server and the model that is asked of it."""

    base: str
    """Address without ``/v1``, as ``http_metrics.base_url`` returns it."""
    model: str
    api_key: str | None = None
    timeout_s: float = 300.0
    """Longest time from a request to the last byte of its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What came back."""

    status: int
    content_type: str
    body: bytes
    is_cut: bool = False
    """The connection ended before the body did."""


def post(server: Server, path: str, body: Mapping[str, object]) -> Response:
    """Send a JSON object and return the whole answer, of whatever status.

    No proxy stands between, and no redirect is followed: another server would be asked.

    Args:
        server: Where to.
        path: Below the server's base, for example ``/v1/chat/completions``.
        body: Sent as JSON.

    Raises:
        TransientError: No connection, no answer in time, or more than ``MAX_BYTES``.
    """
    return _exchange(server, "POST", path, json.dumps(body).encode())


def get(server: Server, path: str) -> Response:
    """Return what a server shows at a path.

    Raises:
        TransientError: As ``post``.
    """
    return _exchange(server, "GET", path, None)


def _exchange(server: Server, method: str, path: str, data: bytes | None) -> Response:
    parts = urllib.parse.urlsplit(server.base)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=server.timeout_s)
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    if server.api_key is not None:
        headers["Authorization"] = f"Bearer {server.api_key}"
    deadline_s = time.monotonic() + server.timeout_s
    try:
        connection.request(method, parts.path + path, body=data, headers=headers)
        response = connection.getresponse()
        body, is_cut = _read(connection, response, deadline_s)
        body = _without_key(body, server.api_key)
    except (OSError, http.client.HTTPException) as error:
        told = hide_key(f"{type(error).__name__}: {error}", server.api_key)
        raise TransientError(f"{path} was not answered: {told}") from error
    finally:
        connection.close()
    return Response(
        status=response.status,
        content_type=response.headers.get_content_type(),
        body=body,
        is_cut=is_cut,
    )


def _without_key(body: bytes, key: str | None) -> bytes:
    """Return a body without the key: servers repeat one that they refuse."""
    if key is None:
        return body
    # What is not UTF-8 must stay what it is, since it is to be judged.
    text = body.decode("utf-8", "surrogateescape")
    return hide_key(text, key).encode("utf-8", "surrogateescape")


def _read(
    connection: http.client.HTTPConnection, response: http.client.HTTPResponse, deadline_s: float
) -> tuple[bytes, bool]:
    """Return the body and whether it was cut.

    Raises:
        TimeoutError: It is not complete at the deadline.
        TransientError: It is too long.
    """
    body = bytearray()
    while True:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("no complete answer in time")
        if connection.sock is not None:
            connection.sock.settimeout(left_s)
        try:
            part = response.read1(PART_BYTES)
        except http.client.IncompleteRead as error:
            return bytes(body + error.partial), True
        if not part:
            return bytes(body), bool(response.length)
        body += part
        if len(body) > MAX_BYTES:
            raise TransientError(f"an answer of more than {MAX_BYTES >> 20} MiB")
