"""What others reach is guarded, or the start is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.exposure import Exposure, is_loopback, require_guarded, require_keys
from orchestrator.errors import ConfigError

KEYS = "file:/etc/specpilot/keys"
CLOSED = Exposure(
    http_host="127.0.0.1", api_keys=None, ray_hosts=("127.0.0.2", "127.0.0.1"), asks_token=False
)


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


@pytest.mark.parametrize(
    "reached",
    [
        {"http_host": "0.0.0.0", "api_keys": KEYS},
        {"ray_hosts": ("10.0.0.10", "127.0.0.1")},
        {"ray_hosts": ("127.0.0.2", "10.0.0.10")},
    ],
)
def test_ray_that_others_reach_without_a_token_is_refused(reached: dict[str, object]) -> None:
    found = replace(CLOSED, **reached)  # type: ignore[arg-type]  # fields by name
    with pytest.raises(ConfigError, match=r"RAY_AUTH_MODE.*ray get-auth-token --generate"):
        require_guarded(found)
    require_guarded(replace(found, asks_token=True))


def test_nothing_is_asked_of_what_this_machine_keeps_to_itself() -> None:
    require_guarded(CLOSED)
