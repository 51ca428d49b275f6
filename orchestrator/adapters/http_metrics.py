"""A running server of which only the address is known: its models and its counters."""

from __future__ import annotations

import http.client
import ipaddress
import json
import queue
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

from orchestrator.core.secrecy import hide_key, scrub
from orchestrator.errors import ConfigError, TransientError

TIMEOUT_S = 10.0
"""Longest time from the call to the last byte: a server that drips keeps nobody."""

MAX_BYTES = 64 << 20
"""Longest body that is read; an engine's exposition has some 50,000 bytes."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows nowhere: the load is sent to this address, and the key to nobody else."""

    def redirect_request(self, *_args: object, **_kwargs: object) -> None:
        return None


# No environment proxies: a proxy would answer for the server.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)


def base_url(url: str, where: str, *, form: str = "http://host:port/v1") -> str:
    """Return the address without a slash at its end and without ``/v1``.

    Args:
        url: What was given.
        where: The option that gave it.
        form: What it should look like.

    Raises:
        ConfigError: It is no http address, or holds more than host, port and path.
    """
    shown, remedy = scrub(url), f"write it as {form}"
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")
    except ValueError as error:
        raise ConfigError(where, f"'{shown}' is no http address ({error})", remedy) from error
    if parts.scheme not in ("http", "https") or not host or not _is_plain(url) or port == 0:
        raise ConfigError(where, f"'{shown}' is no http address", remedy)
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ConfigError(
            where, f"'{shown}' had a user, a query or a fragment",
            f"{remedy}; a key is given by --api-key-env",
        )  # fmt: skip
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def is_local(url: str) -> bool:
    """Return whether the address is this machine's own: loopback, or 0.0.0.0 as vLLM prints it."""
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def served_models(base: str, *, api_key: str | None = None) -> tuple[str, ...]:
    """Return the names of the models that a server offers, in its order.

    Raises:
        TransientError: No server answers, or it is not OpenAI-compatible.
    """
    text = _get(f"{base}/v1/models", api_key=api_key)
    try:
        names = tuple(str(item["id"]) for item in json.loads(text)["data"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise TransientError(f"{base}/v1/models is no list of models: {text[:80]!r}") from error
    if not all(name.isprintable() for name in names):
        raise TransientError(f"{base}/v1/models has a name with control characters")
    if not names:
        raise TransientError(f"{base}/v1/models offers no model")
    return names


def metrics_text(url: str) -> str:
    """Return a Prometheus exposition.

    Raises:
        TransientError: There is none at the address, it was cut off, or it takes too long.
    """
    return _get(url)


def _get(url: str, *, api_key: str | None = None) -> str:
    """Return the text at an address, in ``TIMEOUT_S`` altogether.

    A socket's own limit is for each of its waits, and name, handshake, headers and body may all
    come byte by byte: so a thread asks, and is left alone when the time is over.
    """
    found: queue.SimpleQueue[bytes | TransientError] = queue.SimpleQueue()
    asking = threading.Thread(target=_ask, args=(url, api_key, found), daemon=True)
    asking.start()
    try:
        body = found.get(timeout=TIMEOUT_S)
    except queue.Empty:
        raise TransientError(f"{url} has not answered in full after {TIMEOUT_S:g} s") from None
    if isinstance(body, TransientError):
        raise body
    return hide_key(body.decode("utf-8", errors="replace"), api_key)


def _ask(url: str, api_key: str | None, found: queue.SimpleQueue[bytes | TransientError]) -> None:
    try:
        found.put(_body(url, api_key, deadline_s=time.monotonic() + TIMEOUT_S))
    except TransientError as error:
        found.put(error)
    except urllib.error.HTTPError as error:
        error.close()
        found.put(_caused(f"{url} answers HTTP {error.code}", error))
    except (OSError, ValueError, http.client.HTTPException) as error:
        found.put(_caused(f"{url} does not answer: {hide_key(str(error), api_key)}", error))


def _body(url: str, api_key: str | None, *, deadline_s: float) -> bytes:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    request = urllib.request.Request(url, headers=headers)
    body = bytearray()
    with _OPENER.open(request, timeout=TIMEOUT_S) as response:
        while part := response.read1(1 << 16):
            body += part
            if len(body) > MAX_BYTES:
                size = f"{MAX_BYTES >> 20} MiB"
                raise TransientError(f"{url} sends more than {size}: no text for this")
            if time.monotonic() > deadline_s:
                raise TransientError(f"{url} drips")  # nobody waits for it any more
        # To read a part of a body does not notice its cut.
        missing = response.length
    if missing:
        raise TransientError(f"{url} was cut off: {missing} bytes are missing")
    return bytes(body)


def _caused(text: str, cause: Exception) -> TransientError:
    error = TransientError(text)
    error.__cause__ = cause
    return error


def _is_plain(url: str) -> bool:
    return url.isascii() and url.isprintable() and " " not in url and "\\" not in url
