"""What others reach is guarded, or the start is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.exposure import Exposure, is_loopback, require_guarded, require_keys
from orchestrator.errors import ConfigError

KEYS = "file:/etc/specpilot/keys"
CLOSED = Exposure(http_host="127.0.0.1", api_keys=None, asks_token=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost", "a.localhost"])
def test_loopback_is_known(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    [
        *("0.0.0.0", "::", "", "10.0.0.10", "192.168.1.2", "fe80::1", "gb10-head", "head.lan"),
        *("127.0.0.1.example.org", "localhost.example.org", "notlocalhost", "0", "2130706433"),
    ],
)
def test_everything_else_is_reached_by_others(host: str) -> None:
    assert not is_loopback(host)


@given(st.ip_addresses())
def test_only_loopback_addresses_are_loopback(address: object) -> None:
    text = str(address)
    assert is_loopback(text) == (text.startswith("127.") or text == "::1")


@pytest.mark.parametrize("keys", [None, "open"])
@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.10", "gb10-head"])
def test_route_that_others_reach_without_keys_is_refused(host: str, keys: str | None) -> None:
    with pytest.raises(ConfigError, match=r"production\.api_keys.*file:/absolute/path") as error:
        require_keys(host, keys)
    assert host in str(error.value)
    require_keys(host, KEYS)
    require_keys("127.0.0.1", keys)


def test_ray_without_a_token_is_refused_wherever_it_is() -> None:
    """Its ports listen on all interfaces, whatever address a node has."""
    require_guarded(CLOSED)
    with pytest.raises(ConfigError, match=r"RAY_AUTH_MODE.*ray get-auth-token --generate"):
        require_guarded(replace(CLOSED, asks_token=False))


def test_token_does_not_stand_for_keys() -> None:
    with pytest.raises(ConfigError, match=r"production\.api_keys"):
        require_guarded(replace(CLOSED, http_host="0.0.0.0"))
    require_guarded(replace(CLOSED, http_host="0.0.0.0", api_keys=KEYS))
