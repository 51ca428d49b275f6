"""A running server of which only the address is known: its models and its counters."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request

from orchestrator.errors import ConfigError, TransientError

TIMEOUT_S = 10.0

# No environment proxies: a proxy would answer for the server.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def base_url(url: str, where: str) -> str:
    """Return the address without a slash at its end and without ``/v1``.

    Raises:
        ConfigError: It is no http address.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(where, f"'{url}' is no http address", "write it as http://host:port/v1")
    return url.rstrip("/").removesuffix("/v1")


def is_local(url: str) -> bool:
    """Return whether the address is of this machine's loopback interface."""
    host = urllib.parse.urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def served_models(base: str, *, api_key: str | None = None) -> tuple[str, ...]:
    """Return the names of the models that a server offers, in its order.

    Raises:
        TransientError: No server answers, or it is not OpenAI-compatible.
    """
    text = _get(f"{base}/v1/models", api_key=api_key)
    try:
        names = tuple(str(item["id"]) for item in json.loads(text)["data"])
    except (ValueError, KeyError, TypeError) as error:
        raise TransientError(f"{base}/v1/models is no list of models: {text[:80]!r}") from error
    if not names:
        raise TransientError(f"{base}/v1/models offers no model")
    return names


def metrics_text(url: str) -> str:
    """Return a Prometheus exposition.

    Raises:
        TransientError: There is none at the address.
    """
    return _get(url)


def _get(url: str, *, api_key: str | None = None) -> str:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    request = urllib.request.Request(url, headers=headers)
    try:
        with _OPENER.open(request, timeout=TIMEOUT_S) as response:
            body: bytes = response.read()
    except urllib.error.HTTPError as error:
        raise TransientError(f"{url} answers HTTP {error.code}") from error
    except (OSError, ValueError) as error:
        raise TransientError(f"{url} does not answer: {error}") from error
    return body.decode("utf-8", errors="replace")
