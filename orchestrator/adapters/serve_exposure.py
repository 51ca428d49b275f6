"""What Ray and Serve ask of whoever reaches them, seen from outside."""

from __future__ import annotations

import urllib.error
import urllib.request
from http.client import HTTPException

from orchestrator.adapters.serve_production import declared_keys, serve_details
from orchestrator.core.exposure import Exposure
from orchestrator.errors import ConfigError

ASK_TIMEOUT_S = 10.0
_SERVE_API = "/api/serve/applications/"


def exposure(
    dashboard_url: str,
    *,
    name: str,
    http_host: str,
    api_keys: str | None,
) -> Exposure:
    """Return who reaches a running Ray, and what it asks them for.

    Serve listens where whoever started it said, and keeps the keys that were declared: that counts
    before what this study says.

    Args:
        dashboard_url: Address of Ray's dashboard.
        name: Name of the router's application.
        http_host: Where Serve will listen if it does not run yet.
        api_keys: Where the study says that the keys are; None leaves what is declared.

    Raises:
        ConfigError: The dashboard does not answer.
        TransientError: Serve's API does not.
    """
    asks_token = _asks_token(dashboard_url)
    details = serve_details(dashboard_url)
    options = (details.get("http_options") or {}) if details.get("proxies") else {}
    return Exposure(
        http_host=str(options.get("host", http_host)),
        api_keys=api_keys or declared_keys(details, name),
        asks_token=asks_token,
    )


def _asks_token(dashboard_url: str) -> bool:
    """Return whether Ray refuses who has no token.

    The mode of this process says nothing: one that has a token joins a Ray that asks for none.
    """
    # No proxy: its refusal would pass for Ray's.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(dashboard_url + _SERVE_API, timeout=ASK_TIMEOUT_S):
            return False
    except urllib.error.HTTPError as error:
        error.close()
        if error.code < 500:  # whatever else it says, it said it without a token
            return error.code in (401, 403)
        raise _silent(dashboard_url, error) from error
    except (OSError, HTTPException) as error:
        raise _silent(dashboard_url, error) from error


def _silent(dashboard_url: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"ray at '{dashboard_url}'", f"its dashboard does not answer ({error})",
        "start the head with `--include-dashboard true`",
    )  # fmt: skip
