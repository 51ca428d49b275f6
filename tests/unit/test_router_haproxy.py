"""Where HAProxy listens once its configuration is mended."""

from __future__ import annotations

import re

import pytest
from ray.serve._private.haproxy_templates import HAPROXY_CONFIG_TEMPLATE

from serve_apps.router.haproxy import mended

CONFIG = re.sub(
    r"\{\{.*?\}\}", "1",
    HAPROXY_CONFIG_TEMPLATE.replace("{{ config.frontend_host }}", "*"),
)  # fmt: skip
"""As Ray writes it, its conditions still in it, with production open to others."""


def binds(config: str) -> list[str]:
    return re.findall(r"^\s*bind (\S+)", config, re.MULTILINE)


def test_statistics_come_to_loopback_and_production_stays_where_it_was() -> None:
    assert binds(CONFIG)[:2] == [":1", "*:1"]
    assert binds(mended(CONFIG))[:2] == ["127.0.0.1:1", "*:1"]
    assert binds(mended(CONFIG))[-1] == "127.0.0.1:1"


def test_socket_is_its_users_alone() -> None:
    assert " mode 666 " in CONFIG
    assert " mode 666 " not in mended(CONFIG)


def test_mending_again_changes_nothing() -> None:
    assert mended(mended(CONFIG)) == mended(CONFIG)


@pytest.mark.parametrize(
    ("old", "new"),
    [("listen stats", "listen numbers"), ("bind :1", "bind 1.2.3.4:1"), ("mode 666", "mode 777")],
)
def test_configuration_of_another_kind_is_refused(old: str, new: str) -> None:
    with pytest.raises(ValueError, match="of another kind"):
        mended(CONFIG.replace(old, new))
