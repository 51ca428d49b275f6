"""What makes a node fit, doubtful or unfit, and that what is not known is not judged."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.node_health import (
    GIB,
    MIB,
    NodeNeeds,
    judge,
    judge_for_boot,
    worst,
)
from orchestrator.core.node_state import Fitness, GpuProcess, NodeState, NodeVerdict
from orchestrator.fakes.world import fake_node_state

FIT, DEGRADED, UNFIT = Fitness.FIT, Fitness.DEGRADED, Fitness.UNFIT
SEVERITY = {FIT: 0, DEGRADED: 1, UNFIT: 2}
GOOD = fake_node_state(kind="gb10")
IDLE = replace(GOOD, sm_clock_mhz=208.0, power_w=4.0, utilisation=0.0)
UNKNOWN = NodeState(
    node_id="n",
    kind="gb10",
    hostname="n",
    mem_available_bytes=None,
    mem_total_bytes=None,
    load_average_1m=None,
)
STUCK = replace(GOOD, sm_clock_mhz=799.0, power_w=19.5, utilisation=0.96, throttle_reasons=())
"""CASES E07."""
ORPHAN = GpuProcess(pid=4711, name="VLLM::EngineCore", memory_bytes=104 * GIB)
"""CASES E05."""


def on_gpu(*processes: GpuProcess) -> NodeState:
    return replace(GOOD, gpu_processes=processes)


def with_memory(free: int | None, cached: int | None, available: int | None) -> NodeState:
    def size(gib: int | None) -> int | None:
        return None if gib is None else gib * GIB

    return replace(
        GOOD,
        mem_free_bytes=size(free),
        page_cache_bytes=size(cached),
        mem_available_bytes=size(available),
    )


def test_judge_without_states_or_values_is_fit_with_no_claim() -> None:
    fit = NodeVerdict(fitness=FIT, reason="")

    assert judge([]) == judge([UNKNOWN]) == judge([GOOD, IDLE], own_pids=()) == fit
    assert judge_for_boot(UNKNOWN, NodeNeeds(engine_memory_bytes=1, min_mem_available_bytes=1)) == (
        fit
    )


# The clock


def test_judge_busy_board_at_799_mhz_without_a_throttle_flag_is_unfit_by_clock() -> None:
    verdict = judge([IDLE, GOOD, STUCK, IDLE])

    assert verdict.fitness is UNFIT
    assert "SM clock is stuck at 799 of 3003 MHz" in verdict.reason
    assert "96%, 19.5 W; throttle reasons: none given" in verdict.reason


def test_judge_stuck_gb10_is_unfit_where_the_driver_tells_no_maximum() -> None:
    stuck = replace(STUCK, sm_clock_max_mhz=None, power_w=None, throttle_reasons=None)

    assert judge([stuck]).fitness is UNFIT
    assert judge([replace(stuck, kind="other")]).fitness is FIT


@pytest.mark.parametrize(
    "state",
    [
        IDLE,
        replace(STUCK, utilisation=None),
        replace(STUCK, utilisation=0.49),
        replace(STUCK, sm_clock_mhz=None),
        replace(STUCK, sm_clock_mhz=2100.0, throttle_reasons=("ApplicationsClocksSetting",)),
        replace(STUCK, sm_clock_mhz=1502.0),
    ],
    ids=["idle", "busy?", "half idle", "clock?", "locked by the owner", "at the floor"],
)
def test_judge_clock_that_is_sound_or_not_known_is_no_fault(state: NodeState) -> None:
    assert judge([state]).fitness is FIT


def test_judge_names_the_lowest_clock_once() -> None:
    reason = judge([STUCK, replace(STUCK, sm_clock_mhz=630.0), STUCK]).reason

    assert reason.count("stuck") == 1
    assert "630" in reason


# Throttling, heat, load, swap


@pytest.mark.parametrize(
    ("reasons", "utilisation", "expected"),
    [
        (("HwThermalSlowdown",), 0.0, UNFIT),
        (("SwThermalSlowdown",), None, UNFIT),
        (("HwPowerBrakeSlowdown",), 0.9, UNFIT),
        (("HwSlowdown",), 0.9, UNFIT),
        (("HwSlowdown",), 0.0, DEGRADED),
        (("HwSlowdown",), None, DEGRADED),
        (("SwPowerCap",), 0.9, DEGRADED),
        (("SyncBoost",), 0.9, DEGRADED),
        (("0x800",), 0.9, DEGRADED),
        (("ApplicationsClocksSetting",), 0.9, FIT),
        ((), 0.9, FIT),
    ],
)
def test_judge_throttle_reasons_by_what_they_do(
    reasons: tuple[str, ...], utilisation: float | None, expected: Fitness
) -> None:
    verdict = judge([replace(GOOD, throttle_reasons=reasons, utilisation=utilisation)])

    assert verdict.fitness is expected
    assert (reasons[0] in verdict.reason) if expected is not FIT else verdict.reason == ""


def test_judge_reason_that_both_limits_and_cuts_is_named_once() -> None:
    cut = replace(GOOD, throttle_reasons=("HwSlowdown", "SwPowerCap"))
    idle = replace(cut, utilisation=0.0)

    reason = judge([idle, cut]).reason

    assert reason == "the GPU is slowed down: HwSlowdown; the GPU's clock is limited: SwPowerCap"


@pytest.mark.parametrize(("celsius", "expected"), [(90.0, FIT), (90.5, DEGRADED), (None, FIT)])
def test_judge_temperature_over_90_is_a_doubt(celsius: float | None, expected: Fitness) -> None:
    assert judge([GOOD, replace(GOOD, temperature_c=celsius)]).fitness is expected


@pytest.mark.parametrize(
    ("load", "cores", "expected"),
    [(40.0, 20, FIT), (40.1, 20, DEGRADED), (40.1, None, FIT), (40.1, 0, FIT), (None, 20, FIT)],
)
def test_judge_load_is_held_against_the_cores(
    load: float | None, cores: int | None, expected: Fitness
) -> None:
    assert judge([replace(GOOD, load_average_1m=load, num_cores=cores)]).fitness is expected


@pytest.mark.parametrize(
    ("used_mib", "expected"),
    [
        ([500, 500, 500], FIT),
        ([500, 400, 300], FIT),
        ([0, 16], FIT),
        ([0, 17], DEGRADED),
        ([500, None, 517], DEGRADED),
        ([500, 400, 450], DEGRADED),
        ([500, 600, 0], DEGRADED),
    ],
)
def test_judge_swap_counts_by_its_growth(used_mib: list[int | None], expected: Fitness) -> None:
    states = [
        replace(GOOD, swap_used_bytes=None if used is None else used * MIB) for used in used_mib
    ]

    assert judge(states).fitness is expected


# Memory


@pytest.mark.parametrize(
    ("available", "floor", "expected"),
    [(3, 4, UNFIT), (4, 4, FIT), (3, None, FIT), (None, 4, FIT)],
)
def test_judge_available_memory_under_the_floor_is_unfit(
    available: int | None, floor: int | None, expected: Fitness
) -> None:
    needs = NodeNeeds(min_mem_available_bytes=None if floor is None else floor * GIB)

    verdict = judge([GOOD, with_memory(1, 3, available)], needs=needs)

    assert verdict.fitness is expected
    assert "out of memory" not in verdict.reason


def test_judge_block_is_not_held_against_memory_that_its_engine_has() -> None:
    needs = NodeNeeds(engine_memory_bytes=85 * GIB)

    assert judge([with_memory(10, 3, 12)], needs=needs).fitness is FIT


def test_boot_with_reclaimable_page_cache_in_the_way_says_so_and_what_to_do() -> None:
    verdict = judge_for_boot(with_memory(40, 60, 98), NodeNeeds(engine_memory_bytes=85 * GIB))

    assert verdict.fitness is DEGRADED
    assert "reclaimable page cache: the engine's own check will fail" in verdict.reason
    assert "40.0 GiB are free and it wants 85.0 GiB" in verdict.reason
    assert "drop_caches" in verdict.reason
    assert "out of memory" not in verdict.reason


def test_boot_of_an_engine_that_counts_the_page_cache_as_free_is_fit() -> None:
    needs = NodeNeeds(engine_memory_bytes=85 * GIB, engine_counts_page_cache=True)

    assert judge_for_boot(with_memory(40, 60, 98), needs).fitness is FIT


def test_boot_that_not_even_available_memory_allows_is_out_of_memory() -> None:
    verdict = judge_for_boot(with_memory(40, 60, 84), NodeNeeds(engine_memory_bytes=85 * GIB))

    assert verdict.fitness is UNFIT
    assert verdict.reason.startswith("out of memory: 84.0 GiB")
    assert "page cache" not in verdict.reason


def test_boot_that_would_go_under_the_floor_is_unfit_before_it_does() -> None:
    needs = NodeNeeds(engine_memory_bytes=85 * GIB, min_mem_available_bytes=14 * GIB)

    verdict = judge_for_boot(with_memory(95, 5, 98), needs)

    assert verdict.fitness is UNFIT
    assert "would leave 13.0 GiB of memory, under the floor of 14.0 GiB" in verdict.reason


@pytest.mark.parametrize(
    ("free", "available"), [(95, 98), (40, None), (None, 98), (85, 85), (None, None)]
)
def test_boot_with_enough_or_unknown_memory_is_fit(free: int | None, available: int | None) -> None:
    needs = NodeNeeds(engine_memory_bytes=85 * GIB)

    assert judge_for_boot(with_memory(free, None, available), needs).fitness is FIT


# Other processes


def test_boot_beside_an_orphaned_engine_is_unfit_and_names_its_id() -> None:
    verdict = judge_for_boot(on_gpu(ORPHAN))

    assert verdict.fitness is UNFIT
    assert "another engine holds the GPU: pid 4711, VLLM::EngineCore, 104.0 GiB" in verdict.reason
    assert judge_for_boot(on_gpu(ORPHAN), own_pids={4711}).fitness is FIT


def test_judge_engine_of_another_beside_ours_is_a_doubt() -> None:
    ours = replace(ORPHAN, pid=1)

    assert judge([on_gpu(ours)], own_pids={1}).fitness is FIT
    verdict = judge([on_gpu(ours), on_gpu(ours, ORPHAN), on_gpu(ours)], own_pids={1})

    assert verdict.fitness is DEGRADED
    assert "another process holds the GPU: pid 4711, VLLM::EngineCore" in verdict.reason


def test_judge_without_knowing_the_engine_s_processes_judges_none() -> None:
    assert judge([on_gpu(ORPHAN)]).fitness is FIT
    assert judge([on_gpu(ORPHAN)], own_pids=()).fitness is DEGRADED


@pytest.mark.parametrize(
    ("name", "memory", "expected"),
    [
        ("/usr/lib/xorg/Xorg", 43 * MIB, FIT),
        ("/usr/bin/gnome-shell --mode=user", None, FIT),
        ("/usr/bin/gnome-shell", 2 * GIB, DEGRADED),
        ("python3", 10 * MIB, DEGRADED),
        (None, None, DEGRADED),
        ("", None, DEGRADED),
    ],
)
def test_process_of_an_idle_desktop_is_not_in_the_way(
    name: str | None, memory: int | None, expected: Fitness
) -> None:
    state = on_gpu(GpuProcess(pid=9, name=name, memory_bytes=memory))

    assert judge([state], own_pids=()).fitness is expected
    assert judge_for_boot(state).fitness is expected


# Together


def test_worst_verdict_wins_and_all_reasons_stand_worst_first() -> None:
    doubt = NodeVerdict(fitness=DEGRADED, reason="a doubt")
    fault = NodeVerdict(fitness=UNFIT, reason="a fault")
    fit = NodeVerdict(fitness=FIT, reason="")

    assert worst([doubt, fit, fault, doubt]) == NodeVerdict(
        fitness=UNFIT, reason="a fault; a doubt"
    )
    assert worst([fit]) == worst([]) == fit


def maybe(values: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.none() | values


NAMES = ("HwSlowdown", "HwThermalSlowdown", "SwPowerCap", "ApplicationsClocksSetting")
PROCESSES = st.builds(
    GpuProcess,
    pid=st.integers(1, 4),
    name=st.sampled_from(["Xorg", "python3", "VLLM::EngineCore"]) | st.none(),
    memory_bytes=st.none() | st.integers(0, 110 * GIB),
)
VALUES: dict[str, st.SearchStrategy[object]] = {
    "mem_available_bytes": maybe(st.integers(0, 120 * GIB)),
    "mem_total_bytes": maybe(st.just(120 * GIB)),
    "load_average_1m": maybe(st.floats(0, 100)),
    "num_cores": maybe(st.integers(1, 20)),
    "mem_free_bytes": maybe(st.integers(0, 120 * GIB)),
    "page_cache_bytes": maybe(st.integers(0, 120 * GIB)),
    "swap_used_bytes": maybe(st.integers(0, 64 * MIB)),
    "sm_clock_mhz": maybe(st.floats(0, 3003)),
    "sm_clock_max_mhz": maybe(st.floats(1000, 3003)),
    "power_w": maybe(st.floats(0, 140)),
    "temperature_c": maybe(st.floats(20, 100)),
    "utilisation": maybe(st.floats(0, 1)),
    "throttle_reasons": maybe(st.lists(st.sampled_from(NAMES), unique=True).map(tuple)),
    "gpu_processes": maybe(st.lists(PROCESSES, max_size=3, unique_by=lambda p: p.pid).map(tuple)),
}
STATES = st.builds(
    NodeState,
    node_id=st.just("n"),
    kind=st.sampled_from(["gb10", "cpu"]),
    hostname=st.just("n"),
    **VALUES,
)
NEEDS = st.builds(
    NodeNeeds,
    engine_memory_bytes=st.none() | st.integers(1, 120 * GIB),
    engine_counts_page_cache=st.booleans(),
    min_mem_available_bytes=st.none() | st.integers(0, 20 * GIB),
)


def test_property_strategies_cover_every_value_of_a_state() -> None:
    assert {item.name for item in fields(NodeState)} == {"node_id", "kind", "hostname", *VALUES}


def severity(verdict: NodeVerdict) -> int:
    return SEVERITY[verdict.fitness]


@given(st.lists(STATES, min_size=1, max_size=4), NEEDS)
def test_judge_is_never_better_than_one_of_its_states_and_fit_has_no_reason(
    states: list[NodeState], needs: NodeNeeds
) -> None:
    verdict = judge(states, own_pids={1}, needs=needs)

    assert (verdict.fitness is FIT) == (verdict.reason == "")
    for state in states:
        alone = judge([state], own_pids={1}, needs=needs)
        assert severity(verdict) >= severity(alone)
        assert severity(judge_for_boot(state, needs)) >= severity(judge([state], needs=needs))


@given(st.lists(STATES, min_size=1, max_size=4), NEEDS, st.data())
def test_judge_knowing_less_is_never_worse(
    states: list[NodeState], needs: NodeNeeds, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(states) - 1))
    forgotten = dict.fromkeys(data.draw(st.sets(st.sampled_from(sorted(VALUES)))))
    poorer = [*states]
    poorer[index] = replace(states[index], **forgotten)  # type: ignore[arg-type]  # all optional

    for own in (None, {1}):
        assert severity(judge(poorer, own_pids=own, needs=needs)) <= severity(
            judge(states, own_pids=own, needs=needs)
        )
    assert severity(judge_for_boot(poorer[index], needs)) <= severity(
        judge_for_boot(states[index], needs)
    )


@given(st.lists(STATES, min_size=1, max_size=4), st.data())
def test_judge_order_matters_for_swap_alone(states: list[NodeState], data: st.DataObject) -> None:
    steady = [replace(state, swap_used_bytes=0) for state in states]
    unique = [replace(state, gpu_processes=()) for state in steady]
    shuffled = data.draw(st.permutations(unique))

    assert judge(shuffled, own_pids=()).fitness is judge(unique, own_pids=()).fitness
    assert judge([*unique, *unique], own_pids=()) == judge(unique, own_pids=())


@given(STATES, NEEDS)
def test_judge_same_state_again_changes_nothing(state: NodeState, needs: NodeNeeds) -> None:
    once = judge([state], own_pids=(), needs=needs)

    assert judge([state, state, state], own_pids=(), needs=needs) == once
