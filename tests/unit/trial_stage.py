"""One trial on a board in memory, and ports of it that fail."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from core_samples import make_arm

from orchestrator.core.requests import LoadResult
from orchestrator.core.types import Arm, Boot, Cell
from orchestrator.fakes.board import FakeBoard, Faults
from orchestrator.fakes.engine import FakeEngine
from orchestrator.fakes.load import FakeLoad
from orchestrator.fakes.world import FakeNode
from orchestrator.ports import LoadClient, LoadRequest, Node, Observe, Prover
from orchestrator.trial import (
    Trial,
    TrialPorts,
    TrialSpec,
)
from orchestrator.trial_log import TrialLog

ARM = make_arm()
CELLS = tuple(Cell(streams=s, temperature=t) for s in (1, 2, 4) for t in (0.7, 1.0))


def make_spec(arm: Arm = ARM, *, replicate: int = 0, blocks_per_cell: int = 1) -> TrialSpec:
    return TrialSpec(
        trial_id="trial-a",
        arm=arm,
        replicate=replicate,
        cells=CELLS,
        blocks_per_cell=blocks_per_cell,
        model="specpilot",
        seed=7,
    )


@dataclass
class Stage:
    """One trial on a board of its own."""

    faults: Faults = field(default_factory=Faults)
    spec: TrialSpec = field(default_factory=make_spec)
    log: TrialLog = field(default_factory=TrialLog)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.board = FakeBoard("node-3", faults={self.spec.arm: self.faults})
        self.engine = FakeEngine(self.board)
        self.load: LoadClient = FakeLoad(self.board, block_s=8.0, max_tokens=64)
        self.node: Node = FakeNode("node-3")

    def trial(self, prover: Prover | None = None) -> Trial:
        ports = TrialPorts(
            engine=self.engine,
            load=self.load,
            log=self.log,
            node=self.node,
            clock=self.board.clock,
            prover=prover,
        )
        return Trial(self.spec, ports, self.said.append)

    def run(self) -> Boot:
        """Do what Tune does with a trial, to its end."""
        trial = self.trial()
        trial.setup()
        while not trial.ended:
            trial.step()
        boot = trial.finish()
        trial.cleanup()
        return boot


class RecordingLoad:
    """Notes what was asked, and opens no window in the blocks whose numbers it is given."""

    def __init__(self, inner: LoadClient, *, lost: frozenset[int] = frozenset()) -> None:
        self._inner = inner
        self._lost = lost
        self.requests: list[LoadRequest] = []

    def run(self, request: LoadRequest, observe: Observe) -> LoadResult:
        self.requests.append(request)
        result = self._inner.run(request, observe)
        if len(self.requests) - 1 in self._lost:
            return replace(result, opening=None, closing=None)
        return result
