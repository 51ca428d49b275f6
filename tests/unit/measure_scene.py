"""A load whose engine and node are seen as a test says, and what measures it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from core_samples import make_arm

from orchestrator.core.checks import Expectations
from orchestrator.core.node_health import NodeNeeds
from orchestrator.core.requests import LoadResult, Moment
from orchestrator.core.types import Arm, Block, Cell, Invalid
from orchestrator.fakes.world import FakeNode
from orchestrator.measurement import BlockOrder, Instruments, Measured, measure_block
from orchestrator.ports import LoadClient, LoadRequest, Observe

ARM = make_arm()
CELL = Cell(streams=4, temperature=0.7)
Rewrite = Callable[[str], str]


def untouched(text: str) -> str:
    return text


@dataclass
class Scene:
    """A load, and what happens to the engine's text and the node at each of its moments."""

    load: LoadClient
    read: Callable[[], str]
    rewrite: dict[Moment, Rewrite] = field(default_factory=dict)
    act: Mapping[Moment, Callable[[], None]] = field(default_factory=dict)
    node: FakeNode = field(default_factory=lambda: FakeNode("node-3"))
    moment: Moment = Moment.BEFORE

    def run(self, request: LoadRequest, observe: Observe) -> LoadResult:
        """Do what the load does, and note which moment it is."""

        def look(moment: Moment) -> None:
            self.moment = moment
            self.act.get(moment, lambda: None)()
            observe(moment)

        return self.load.run(request, look)

    def text(self) -> str:
        return self.rewrite.get(self.moment, untouched)(self.read())

    def measure(
        self,
        base_url: str,
        *,
        arm: Arm | None = ARM,
        cell: Cell = CELL,
        own_pids: Callable[[], frozenset[int]] | None = None,
        ignores_eos: bool = True,
        **expected: bool,
    ) -> Measured:
        order = BlockOrder(
            boot_id="boot-a",
            index=3,
            request=LoadRequest(base_url=base_url, model="m", cell=cell, seed=5),
            expected=Expectations(arm=arm, **expected),
            ignores_eos=ignores_eos,
        )
        instruments = Instruments(
            load=self,
            metrics_text=self.text,
            node=self.node,
            needs=NodeNeeds(),
            own_pids=own_pids,
        )
        return measure_block(order, instruments)


def kinds(block: Block) -> set[Invalid]:
    return {item.kind for item in block.invalid}
