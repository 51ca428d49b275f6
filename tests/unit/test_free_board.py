"""A board that a trial has just left takes Ray a while to count as free."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator import cluster
from orchestrator.cluster import Cluster, require_free_board
from orchestrator.config import CONF_DIR, load_config
from orchestrator.errors import ConfigError

CONFIG = load_config(CONF_DIR / "study" / "demo.yaml")
FULL = Cluster(dashboard_url="http://127.0.0.1:1", num_trial_nodes=0)


def test_board_that_is_freed_late_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [FULL, FULL, replace(FULL, num_trial_nodes=1)]
    monkeypatch.setattr(cluster, "join_ray", lambda _config: looks.pop(0))
    monkeypatch.setattr("time.sleep", lambda _seconds: None)

    assert require_free_board(CONFIG).num_trial_nodes == 1
    assert looks == []


def test_board_that_stays_taken_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "join_ray", lambda _config: FULL)

    with pytest.raises(ConfigError, match="no board is free: every 'GB10'"):
        require_free_board(CONFIG, wait_s=0.0)
