"""Memory that an engine held is waited for by measurement, and what stays away fails nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trial_stage import Stage, make_spec

from orchestrator.core.memory_return import (
    MIN_RETURN_TOLERANCE_BYTES,
    RISE_BYTES,
    STEADY_S,
    WAIT_S,
    Look,
    gives_up,
    memory_owed,
    return_tolerance_bytes,
)
from orchestrator.core.node_health import GIB, MIB, NodeNeeds, judge_for_boot, keeps_from_boot
from orchestrator.core.node_state import Fitness, GpuProcess, NodeState
from orchestrator.core.types import BootStatus
from orchestrator.errors import TransientError
from orchestrator.fakes.engine import FakeEngine
from orchestrator.fakes.world import FakeClock, FakeNode, fake_node_state
from orchestrator.node_wait import await_node, wait_while

NEEDS = NodeNeeds(engine_memory_bytes=85 * GIB, engine_counts_page_cache=True)
BEFORE = fake_node_state()


def with_available(gib: float | None) -> NodeState:
    size = None if gib is None else round(gib * GIB)
    return replace(BEFORE, mem_available_bytes=size)


def scripted(sizes: Iterable[float | None]) -> FakeNode:
    states = [with_available(size) for size in sizes]
    node = FakeNode(script=states)
    node.state = states[-1]
    return node


@pytest.mark.parametrize(
    ("available", "is_owed"), [(100.0, False), (97.7, False), (97.5, True), (12.0, True)]
)
def test_memory_within_two_percent_of_what_was_is_back(available: float, is_owed: bool) -> None:
    assert (memory_owed(BEFORE, with_available(available), NodeNeeds()) is not None) == is_owed


def test_memory_that_is_owed_is_said_in_figures() -> None:
    assert memory_owed(BEFORE, with_available(20), NodeNeeds()) == (
        "20.0 GiB of memory are available after the engine's end, 80.0 GiB less than before its "
        "start"
    )


def test_memory_that_would_refuse_the_next_boot_is_owed_within_the_tolerance_too() -> None:
    before, now = with_available(85.5), with_available(84.5)

    assert memory_owed(before, now, NodeNeeds()) is None
    assert memory_owed(before, now, NEEDS) == (
        "out of memory: 84.5 GiB are available and the engine wants 85.0 GiB"
    )


def test_engine_that_still_holds_the_gpu_is_owed() -> None:
    core = GpuProcess(pid=77, name="VLLM::EngineCore", memory_bytes=None)
    now = replace(BEFORE, gpu_processes=(core,))

    owed = memory_owed(BEFORE, now, NEEDS)

    assert owed is not None
    assert "another engine holds the GPU: pid 77" in owed


@pytest.mark.parametrize("unknown", ["before", "now"])
def test_memory_that_a_platform_does_not_tell_is_not_owed(unknown: str) -> None:
    states = {"before": BEFORE, "now": with_available(1)} | {unknown: with_available(None)}

    assert memory_owed(states["before"], states["now"], NodeNeeds()) is None


sizes = st.one_of(st.none(), st.floats(0, 120))
free = st.integers(
    0, 120 * GIB
)  # page cache makes an engine's own check fail, which waits for none
states = st.builds(lambda a, f: replace(with_available(a), mem_free_bytes=f), sizes, free)
needs = st.builds(
    NodeNeeds,
    engine_memory_bytes=st.one_of(st.none(), st.integers(0, 120 * GIB)),
    min_mem_available_bytes=st.one_of(st.none(), st.integers(0, 20 * GIB)),
    engine_counts_page_cache=st.booleans(),
)


@given(states, needs)
def test_what_keeps_from_a_boot_makes_it_unfit(state: NodeState, wanted: NodeNeeds) -> None:
    keeps = keeps_from_boot(state, wanted) is not None

    assert keeps == (judge_for_boot(state, wanted).fitness is Fitness.UNFIT)


@given(states, states, needs)
def test_node_that_owes_nothing_is_as_bootable_as_before(
    before: NodeState, now: NodeState, wanted: NodeNeeds
) -> None:
    if memory_owed(before, now, wanted) is None and keeps_from_boot(before, wanted) is None:
        assert judge_for_boot(now, wanted).fitness is not Fitness.UNFIT


@given(states, needs)
def test_node_that_is_as_before_owes_nothing(state: NodeState, wanted: NodeNeeds) -> None:
    assert memory_owed(state, state, wanted) is None


def test_tolerance_on_a_small_or_unknown_machine_is_a_gib() -> None:
    small = replace(BEFORE, mem_total_bytes=16 * GIB)
    unknown = replace(BEFORE, mem_total_bytes=None)

    assert return_tolerance_bytes(small) == MIN_RETURN_TOLERANCE_BYTES
    assert return_tolerance_bytes(unknown) == MIN_RETURN_TOLERANCE_BYTES


def looks_of(sizes: Iterable[int | None]) -> list[Look]:
    return [Look(at_s=float(s), mem_available_bytes=size) for s, size in enumerate(sizes)]


def test_wait_goes_on_while_memory_rises_and_no_longer_than_its_limit() -> None:
    rising = looks_of(second * MIB * 50 for second in range(round(WAIT_S) + 1))

    assert not any(gives_up(rising[:count]) for count in range(len(rising)))
    assert gives_up(rising)


@pytest.mark.parametrize("size", [GIB, None])
def test_wait_for_memory_that_does_not_rise_is_given_up_early(size: int | None) -> None:
    steady = looks_of([size] * 60)
    ends = [count for count in range(len(steady)) if gives_up(steady[:count])]

    assert ends[0] == round(STEADY_S) + 1


def test_wait_is_not_prolonged_by_what_comes_and_goes() -> None:
    busy = looks_of(GIB + (second % 3) * (RISE_BYTES // 3) for second in range(40))

    assert gives_up(busy[: round(STEADY_S) + 5])


@given(st.lists(st.one_of(st.none(), st.integers(0, 120 * GIB)), max_size=200))
def test_every_wait_ends(sizes: list[int | None]) -> None:
    looks = looks_of(sizes)

    assert gives_up(looks) or len(looks) <= WAIT_S


def test_node_whose_memory_comes_back_late_is_waited_for() -> None:
    node, clock, told = scripted([30, 60, 100]), FakeClock(), list[str]()

    state = await_node(with_available(12), node, clock, needs=NEEDS, told=told.append)

    assert state.mem_available_bytes == 100 * GIB
    assert clock.monotonic() == 3.0
    assert told == ["out of memory: 12.0 GiB are available and the engine wants 85.0 GiB"]


def test_node_in_order_is_not_waited_for() -> None:
    node, clock = FakeNode(), FakeClock()

    await_node(BEFORE, node, clock, needs=NEEDS, told=lambda _why: None)

    assert (node.num_snapshots, clock.monotonic()) == (0, 0.0)


def test_wait_returns_what_never_came() -> None:
    node, clock = scripted([12]), FakeClock()

    state, left = wait_while(lambda _state: "nothing", with_available(12), node, clock)

    assert (state.mem_available_bytes, left) == (12 * GIB, "nothing")
    assert clock.monotonic() == STEADY_S


def boot_on(node: FakeNode) -> tuple[Stage, BootStatus, str]:
    stage = Stage(spec=replace(make_spec(), needs=NEEDS))
    stage.node = node
    boot = stage.run()
    return stage, boot.status, boot.reason


def test_trial_waits_for_the_memory_of_the_boot_before_it() -> None:
    stage, status, reason = boot_on(scripted([12, 12, 60, 100]))

    assert (status, reason) == (BootStatus.OK, "")
    assert "waits for its node: out of memory" in stage.said[0]


def test_trial_whose_memory_stays_away_counts_and_says_so() -> None:
    stage = Stage(spec=replace(make_spec(), needs=NEEDS))
    node = FakeNode("node-3")
    stage.node = node
    trial = stage.trial()
    trial.setup()
    while not trial.ended:
        trial.step()
    node.state = with_available(90)

    boot = trial.finish()

    assert boot.status is BootStatus.OK
    assert boot.reason == (
        "90.0 GiB of memory are available after the engine's end, 10.0 GiB less than before its "
        "start"
    )


def test_trial_has_ended_its_engine_before_its_record_is_there() -> None:
    stage = Stage()
    trial = stage.trial()
    trial.setup()
    while not trial.ended:
        trial.step()

    trial.finish()

    with pytest.raises(TransientError):
        stage.board.engine()


class Sticking(FakeEngine):
    """An engine that cannot be ended."""

    def stop(self) -> None:
        raise TransientError("of study/trial-a is left: survived SIGKILL: 77: VLLM::EngineCore")


def test_trial_whose_engine_cannot_be_ended_counts_and_says_so() -> None:
    stage = Stage()
    stage.engine = Sticking(stage.board)
    trial = stage.trial()
    trial.setup()
    while not trial.ended:
        trial.step()

    boot = trial.finish()

    assert boot.status is BootStatus.OK
    assert "the end of the engine: of study/trial-a is left: survived SIGKILL: 77" in boot.reason


@given(
    first_s=st.floats(0.0001, 1.0),
    steps_s=st.lists(st.floats(0.2, 3.0), min_size=1, max_size=80),
    known=st.booleans(),
)
def test_wait_whose_looks_come_at_any_moment_has_an_answer(
    first_s: float, steps_s: list[float], *, known: bool
) -> None:
    looks = [Look(at_s=first_s, mem_available_bytes=GIB if known else None)]
    for step_s in steps_s:
        looks.append(replace(looks[-1], at_s=looks[-1].at_s + step_s))
        if looks[-1].at_s - first_s < STEADY_S and looks[-1].at_s < WAIT_S:
            assert not gives_up(looks)
        elif looks[-1].at_s > first_s + STEADY_S:
            assert gives_up(looks)


def test_memory_that_is_told_late_is_no_rise() -> None:
    told = [None] * 5 + [GIB] * 40

    looks = [Look(at_s=float(i), mem_available_bytes=size) for i, size in enumerate(told)]

    assert next(n for n in range(1, len(looks)) if gives_up(looks[:n])) <= round(STEADY_S) + 7
