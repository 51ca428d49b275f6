"""What can happen to a study's processes, and how it is done to those of one local cluster."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from infra.chaos.disk import SmallDisk
from infra.chaos.memory import MemoryGroup
from infra.chaos.namespace import Namespace
from infra.chaos.site import Site, send
from infra.local.processes import StartError
from serve_apps.engine import procfs

STUDY_NODE = 1
"""Index of the node that trials run on; production has the head."""
CUT_S = (2.0, 12.0)
"""How long what is not killed for good stays away, seconds."""
NODE_START_S = 300.0


class Kind(StrEnum):
    """A fault by its victim."""

    DRIVER = "driver killed"
    INTERRUPT = "driver interrupted (SIGINT)"
    TERMINATE = "driver told to end (SIGTERM)"
    TRIAL = "trial actor killed"
    REPLICA = "replica killed"
    ENGINE = "engine killed"
    ENGINE_STOPPED = "engine stopped (SIGSTOP)"
    RAYLET = "raylet killed"
    NETWORK = "network of the node cut"
    MLFLOW = "MLflow killed"
    MLFLOW_STOPPED = "MLflow stopped (SIGSTOP)"
    REAPER = "reaper killed"
    CONTROLLER = "Serve's controller killed"
    HEAD = "Ray's control store killed"
    DISK = "disk full"
    MEMORY = "engine killed by the kernel for memory"


ASKED = frozenset({Kind.HEAD, Kind.DISK, Kind.MEMORY})
"""Only where asked for: production does not survive the first, and the others need a place made
for them. So what a seed draws of the others stays the same."""
NODE_IS_AWAY = frozenset({Kind.RAYLET, Kind.NETWORK, Kind.HEAD})
"""Faults for whose length the study's node is not started again."""
DRIVER_SEES = frozenset({Kind.HEAD})
"""Faults that last until the study's driver has ended by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of one study."""

    kind: Kind
    at_s: float
    """Seconds after the study's first start; where there is no victim then, as soon as there is."""
    lasts_s: float
    """Until the victim is back, where it does not come back by itself."""


def draw(rng: random.Random, kinds: Sequence[Kind], *, length_s: float) -> list[Fault]:
    """Return one to three faults of one study, the earliest first.

    Args:
        rng: Source of all chance.
        kinds: To choose from.
        length_s: Usual length of a study.
    """
    number = rng.choice((1, 1, 2, 3))
    faults = [
        Fault(kind=rng.choice(kinds), at_s=rng.uniform(0.0, length_s), lasts_s=rng.uniform(*CUT_S))
        for _ in range(number)
    ]
    return sorted(faults, key=lambda fault: fault.at_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What the site stands on, where it is its own and can be taken away."""

    network: Namespace | None = None
    """Of the study's node."""
    memory: MemoryGroup | None = None
    """Of the study's node."""
    disk: SmallDisk | None = None
    """With the state folder: the studies' states, the logs, MLflow."""

    @property
    def prefix(self) -> Sequence[str]:
        """Words before the command of the study's node."""
        parts = (self.memory, self.network)
        return [word for part in parts if part is not None for word in part.prefix]


class Striker:
    """Does faults to the processes of one site.

    Args:
        site: Of the study.
        ground: That it stands on.
    """

    def __init__(self, site: Site, ground: Ground) -> None:
        self._site = site
        self._ground = ground
        self._strikes: Mapping[Kind, Callable[[int], bool]] = {
            Kind.DRIVER: lambda driver: send([driver], signal.SIGKILL),
            Kind.INTERRUPT: lambda driver: send([driver], signal.SIGINT),
            Kind.TERMINATE: lambda driver: send([driver], signal.SIGTERM),
            Kind.TRIAL: lambda _: send(site.titled("ray::SpecTrial"), signal.SIGKILL),
            Kind.REPLICA: lambda _: send(site.titled("ray::ServeReplica:trial-"), signal.SIGKILL),
            Kind.ENGINE: lambda _: send(site.trial_engines(), signal.SIGKILL),
            Kind.ENGINE_STOPPED: lambda _: send(site.trial_engines(), signal.SIGSTOP),
            Kind.RAYLET: lambda _: send(self._raylet(), signal.SIGKILL),
            Kind.NETWORK: lambda _: self._cut(),
            Kind.MLFLOW: lambda _: send(self._mlflow(), signal.SIGKILL),
            Kind.MLFLOW_STOPPED: lambda _: send(self._mlflow(), signal.SIGSTOP),
            Kind.REAPER: lambda _: send(site.titled("ray::Reaper"), signal.SIGKILL),
            Kind.CONTROLLER: lambda _: send(site.titled("ray::ServeController"), signal.SIGKILL),
            Kind.HEAD: lambda _: send(self._control_store(), signal.SIGKILL),
            Kind.DISK: lambda _: self._fill(),
            Kind.MEMORY: lambda _: self._press(),
        }
        self._mends: Mapping[Kind, Callable[[], None]] = {
            Kind.HEAD: self._restart_ray,
            Kind.DISK: self._free,
            Kind.RAYLET: self._end_node,
            Kind.NETWORK: self._connect,
            Kind.MLFLOW: site.cluster.start_mlflow,
            Kind.MLFLOW_STOPPED: lambda: _resume(self._mlflow()),
        }

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What can be done here and is done unasked."""
        return tuple(
            kind
            for kind in Kind
            if kind not in ASKED and (kind is not Kind.NETWORK or self._ground.network is not None)
        )

    def strike(self, kind: Kind, driver: subprocess.Popen[str]) -> bool:
        """Do it; return whether there was a victim."""
        return self._strikes[kind](driver.pid)

    def mend(self, kind: Kind) -> None:
        """Bring back what does not come back by itself."""
        if kind in self._mends:
            self._mends[kind]()

    def _mlflow(self) -> list[int]:
        session = self._site.cluster.server("mlflow").process.pid
        of_cluster = self._site.processes(lambda _: True)
        return [pid for pid in of_cluster if procfs.session(pid) == session]

    def _raylet(self) -> list[int]:
        address = self._site.cluster.addresses[STUDY_NODE]
        return [
            pid
            for pid in self._site.processes(lambda line: "raylet/raylet" in line)
            if f"--node_ip_address={address}" in procfs.command_line(pid)
        ]

    def start_node(self) -> None:
        """Start the study's node, or start it again, and wait until Ray has it.

        Ray gives up a node that is not up within 30 s; it is started again, as a system does that
        keeps it running.

        Raises:
            StartError: It does not come.
        """
        cluster = self._site.cluster
        deadline = time.monotonic() + NODE_START_S
        # One that was killed counts as alive until the head misses it.
        while not (before := self._site.node_ids()) and time.monotonic() < deadline:
            time.sleep(0.5)
        cluster.start_node(STUDY_NODE)
        while not self._site.node_ids() - before:
            if time.monotonic() > deadline:
                raise StartError(f"the study's node is not up after {NODE_START_S:.0f} s")
            if self._server.poll() is not None:
                cluster.start_node(STUDY_NODE)
            time.sleep(0.5)

    def keep_node(self) -> None:
        """Start the study's node again if it has ended, as Ray ends one that was away too long.

        Raises:
            StartError: It does not come.
        """
        if self._server.poll() is not None:
            self.start_node()

    def _end_node(self) -> None:
        """Wait until what is left of a node whose raylet was killed has gone."""
        server = self._server
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(timeout=30)
        if server.poll() is None:
            server.kill()
            server.wait()

    @property
    def _server(self) -> subprocess.Popen[bytes]:
        return self._site.cluster.server(f"ray-{STUDY_NODE + 1}").process

    def _cut(self) -> bool:
        assert self._ground.network is not None
        self._ground.network.cut()
        return True

    def _connect(self) -> None:
        assert self._ground.network is not None
        self._ground.network.connect()

    def _fill(self) -> bool:
        assert self._ground.disk is not None
        self._ground.disk.fill()
        return True

    def _free(self) -> None:
        assert self._ground.disk is not None
        self._ground.disk.free()

    def _press(self) -> bool:
        assert self._ground.memory is not None
        engines = self._site.trial_engines()
        return bool(engines) and self._ground.memory.press(engines)

    def _control_store(self) -> list[int]:
        return [*self._site.processes(lambda line: "gcs/gcs_server" in line)]

    def _restart_ray(self) -> None:
        """Bring Ray back without its memory, and production with it, as operations.md says."""
        self._site.cluster.restart_ray()
        self.start_node()
        status, said = self._site.command("sync")
        if status != 0:
            raise StartError(f"'sync' does not bring production back:\n{said}")


def _resume(pids: Sequence[int]) -> None:
    send(pids, signal.SIGCONT)
