"""Who can reach what is started, and what must then keep strangers out."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from orchestrator.errors import ConfigError

_OPEN = ("open", None)
"""Sources of keys that ask for none."""
_KEYS_REMEDY = (
    "set production.api_keys to file:/absolute/path or env:VARIABLE, or production.http_host to "
    "127.0.0.1"
)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches what listens on the host.

    A name other than ``localhost`` counts as reached by others, whatever it resolves to here.
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """Where a cluster listens, and what it asks for there."""

    http_host: str
    """Host that Serve's proxy listens on, or will."""
    api_keys: str | None
    """Where the router finds, or will find, its clients' keys; ``open`` and None ask for none."""
    asks_token: bool
    """Whether Ray answers nobody without its token."""


def require_keys(http_host: str, api_keys: str | None) -> None:
    """Check that a route which others reach asks for keys.

    Args:
        http_host: Where Serve's proxy listens.
        api_keys: As ``Exposure.api_keys``.

    Raises:
        ConfigError: It does not.
    """
    if not is_loopback(http_host) and api_keys in _OPEN:
        raise ConfigError(
            "production.api_keys",
            f"the route on '{http_host}' is reached from other machines and would ask for no key",
            _KEYS_REMEDY,
        )


def reached_note(http_host: str, api_keys: str | None) -> str | None:
    """Return the sentence of a plan about a route that others reach; None where they do not."""
    if is_loopback(http_host):
        return None
    return (
        f"production.http_host: '{http_host}' is reached from other machines. Clients need a key "
        f"of {api_keys}; Ray must ask for its token (RAY_AUTH_MODE=token), which is checked when "
        "it is joined"
    )


def require_guarded(found: Exposure) -> None:
    """Check that nothing which others reach is open to them.

    Ray 2.60's control store, raylets and workers listen on all interfaces, whatever address a node
    was given, loopback included; so a token is asked for on every network.

    Raises:
        ConfigError: Something is.
    """
    require_keys(found.http_host, found.api_keys)
    if not found.asks_token:
        raise ConfigError(
            "RAY_AUTH_MODE",
            "Ray asks nobody for a token, and its ports listen on all interfaces: whoever reaches "
            "them can run code here",
            "`ray get-auth-token --generate`, copy ~/.ray/auth_token to all nodes, and start Ray "
            "on them with RAY_AUTH_MODE=token",
        )
