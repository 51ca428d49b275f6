"""Memory under its floor ends what is under way, at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from trial_stage import Stage, make_spec

from orchestrator.core.failures import Failure, FailureKind, boot_error
from orchestrator.core.node_health import GIB, NodeNeeds
from orchestrator.core.requests import LoadResult
from orchestrator.core.types import Arm, BootStatus, EngineFacts, Invalid
from orchestrator.fakes.engine import FakeEngine
from orchestrator.fakes.load import FakeLoad
from orchestrator.fakes.world import FakeNode, fake_node_state
from orchestrator.memory_guard import MemoryGuard
from orchestrator.ports import LoadRequest, Observe

FLOOR = NodeNeeds(min_mem_available_bytes=3 * GIB)
SPEC = replace(make_spec(), needs=FLOOR, memory_look_s=0.005)
PATIENCE_S = 30.0


class KilledEngine(FakeEngine):
    """Notes that it is killed."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage.board)
        self.killed = threading.Event()

    def kill(self) -> None:
        super().kill()
        self.killed.set()


def drained(node: FakeNode) -> None:
    """Take the node's memory."""
    node.state = replace(fake_node_state("node-3"), mem_available_bytes=2 * GIB)


def stage_with(node: FakeNode) -> tuple[Stage, KilledEngine]:
    stage = Stage(spec=SPEC)
    engine = KilledEngine(stage)
    stage.engine, stage.node = engine, node
    return stage, engine


def test_memory_that_falls_during_the_boot_ends_the_boot_at_once() -> None:
    node = FakeNode("node-3")
    stage, _ = stage_with(node)

    class Booting(KilledEngine):
        def start(self, arm: Arm, on_progress: Callable[[str], None]) -> EngineFacts:
            on_progress(f"booting {arm.label}")
            drained(node)
            assert self.killed.wait(PATIENCE_S), "nobody ended the boot"
            raise boot_error(Failure(FailureKind.EXITED, "exited by signal 9"))

    stage.engine = Booting(stage)

    boot = stage.run()

    assert (boot.status, boot.failure) == (BootStatus.FAILED, FailureKind.MEMORY_FLOOR)
    assert boot.reason.startswith("ended while it booted: 2.0 GiB of memory are available")


def test_memory_that_falls_within_a_block_ends_the_load_and_the_boot() -> None:
    node = FakeNode("node-3")
    stage, engine = stage_with(node)

    class Draining(FakeLoad):
        def run(self, request: LoadRequest, observe: Observe) -> LoadResult:
            drained(node)
            assert engine.killed.wait(PATIENCE_S), "nobody ended the engine"
            node.state = fake_node_state("node-3")
            return super().run(request, observe)

    stage.load = Draining(stage.board)

    boot = stage.run()

    assert boot.failure is FailureKind.MEMORY_FLOOR
    assert "under the floor of 3.0 GiB" in boot.reason
    assert [block.invalid[0].kind for block in boot.blocks] == [Invalid.NODE]


def test_memory_above_its_floor_lets_everything_be() -> None:
    stage, engine = stage_with(FakeNode("node-3"))

    boot = stage.run()

    assert (boot.status, boot.failure) == (BootStatus.OK, None)
    assert not engine.killed.is_set()


def test_guard_without_a_floor_looks_at_nothing() -> None:
    class Blind(FakeNode):
        def memory_available(self) -> int | None:
            raise AssertionError("nobody asked")

    stage = Stage()
    engine = KilledEngine(stage)
    before = threading.active_count()

    with MemoryGuard(Blind(), engine, NodeNeeds(), look_s=0.001) as guard:
        assert threading.active_count() == before

    assert guard.breach is None


def test_guard_kills_again_what_started_after_a_kill() -> None:
    node = FakeNode("node-3")
    drained(node)
    kills = threading.Semaphore(0)

    class Counting(FakeEngine):
        def kill(self) -> None:
            kills.release()

    with MemoryGuard(node, Counting(Stage().board), FLOOR, look_s=0.001) as guard:
        assert all(kills.acquire(timeout=PATIENCE_S) for _ in range(3))

    assert guard.breach is not None
