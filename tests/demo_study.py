"""The demo's study, made small, and a local cluster to run it on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.local.cluster import LocalCluster, Ports
from infra.local.processes import members

STUDY = Path("conf/study/demo.yaml")
SMALL = (
    "search.num_speculative_tokens=[7]",
    "search.rejection_sample_method=[block]",
    "load.temperatures=[0.7]",
)
STAND_IN = (*SMALL, "engine.launcher=serve_apps.engine.fake")
"""The same on the shipped stand-in engine."""
QUICK_PROMOTION = "production.verify_requests=2"


@contextmanager
def local_cluster(state_dir: Path) -> Iterator[LocalCluster]:
    """Start a cluster; nothing of it is left after its stop."""
    cluster = LocalCluster(state_dir=state_dir, ports=Ports())
    cluster.start()
    try:
        yield cluster
    finally:
        servers = [server for server in cluster.servers if server.alive]
        sessions = frozenset(os.getsid(server.process.pid) for server in servers)
        left = cluster.stop()
    assert left == [], "processes of the cluster survived"
    assert members(cluster.tag, sessions) == []
