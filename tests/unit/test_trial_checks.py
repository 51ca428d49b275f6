"""What else ends a boot or voids its blocks: the node, and cells that contradict each other."""

from __future__ import annotations

from dataclasses import replace

from trial_stage import Stage, make_spec

from orchestrator.core.node_health import GIB, NodeNeeds
from orchestrator.core.node_state import NodeState
from orchestrator.core.requests import LoadResult, Span
from orchestrator.core.types import BootStatus, Invalid
from orchestrator.fakes.world import FakeNode, fake_node_state
from orchestrator.ports import LoadClient, LoadRequest, Observe


def stuck_clock() -> NodeState:
    """E07: a board at 799 MHz that reports neither a throttle reason nor another P-state."""
    return replace(
        fake_node_state("node-3"),
        kind="gb10",
        sm_clock_mhz=799.0,
        sm_clock_max_mhz=3003.0,
        utilisation=0.96,
        power_w=19.5,
        throttle_reasons=(),
    )


def test_node_whose_clock_is_stuck_before_the_boot_is_not_booted_on() -> None:
    stage = Stage()
    stage.node = FakeNode("node-3", script=[stuck_clock()])

    boot = stage.run()

    assert boot.status is BootStatus.FAILED
    assert boot.reason.startswith("the node is unfit: the SM clock is stuck at 799")
    assert (boot.facts, boot.blocks) == (None, ())


def test_node_whose_clock_gets_stuck_under_load_voids_its_blocks() -> None:
    stage = Stage()
    node = FakeNode("node-3", script=[fake_node_state("node-3")])
    node.state = stuck_clock()
    stage.node = node

    boot = stage.run()

    assert boot.status is BootStatus.FAILED
    assert {block.invalid[0].kind for block in boot.blocks} == {Invalid.NODE}


def test_memory_under_the_floor_ends_the_trial_and_keeps_its_blocks() -> None:
    """E02: utilisation is no bound on unified memory; the floor ends the trial before the host."""
    stage = Stage(spec=replace(make_spec(), needs=NodeNeeds(min_mem_available_bytes=3 * GIB)))
    fine = fake_node_state("node-3")
    # The constructor looks once, each block three times: the second block sees the memory go.
    node = FakeNode("node-3", script=[fine] * 5)
    node.state = replace(fine, mem_available_bytes=2 * GIB)
    stage.node = node

    boot = stage.run()

    assert boot.status is BootStatus.FAILED
    assert "under the floor of 3.0 GiB" in boot.reason
    assert [block.is_valid for block in boot.blocks] == [True, False]


def test_node_with_too_little_memory_fails_the_boot_before_it_starts() -> None:
    stage = Stage(spec=replace(make_spec(), needs=NodeNeeds(engine_memory_bytes=900 * GIB)))

    boot = stage.run()

    assert boot.status is BootStatus.FAILED
    assert "out of memory" in boot.reason


class SlowedLoad:
    """A load whose blocks of one stream take three times as long as they did."""

    def __init__(self, inner: LoadClient) -> None:
        self._inner = inner

    def run(self, request: LoadRequest, observe: Observe) -> LoadResult:
        result = self._inner.run(request, observe)
        if request.cell.streams != 1:
            return result
        records = tuple(
            replace(
                record,
                started_s=3 * record.started_s,
                ttft_s=None if record.ttft_s is None else 3 * record.ttft_s,
                e2e_s=None if record.e2e_s is None else 3 * record.e2e_s,
                chunk_times_s=tuple(3 * time_s for time_s in record.chunk_times_s),
            )
            for record in result.records
        )
        return replace(
            result,
            records=records,
            opening=slowed(result.opening),
            closing=slowed(result.closing),
        )


def slowed(span: Span | None) -> Span | None:
    return None if span is None else Span(start_s=3 * span.start_s, end_s=3 * span.end_s)


def test_cells_that_contradict_each_other_are_both_void_where_time_counts() -> None:
    stage = Stage()
    stage.load = SlowedLoad(stage.load)

    boot = stage.run()

    void = {block.cell.streams for block in boot.blocks if not block.is_valid}
    assert void == {1, 2}
    assert "scaling" in boot.reason


def test_cells_that_contradict_each_other_keep_their_acceptance_under_a_board_model() -> None:
    stage = Stage(spec=replace(make_spec(), needs_timing=False))
    stage.load = SlowedLoad(stage.load)

    boot = stage.run()

    assert all(block.is_valid for block in boot.blocks)
