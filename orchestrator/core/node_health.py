"""Whether a node can be measured on, or booted on, and if not, why not.

A value that the platform does not tell is not judged: it can never make a verdict worse. So a node
without a GPU is fit as far as GPUs go, and "fit" claims no more than that nothing known is wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.core.node_state import Fitness, GpuProcess, NodeState, NodeVerdict

GIB = 2**30
MIB = 2**20

BUSY_CLOCK_FLOOR_MHZ = {"gb10": 1000.0}
"""SM clock by kind of node under which a busy board is stuck, whatever it says of its maximum.
GB10: 3003 MHz by the driver, 2100 to 3000 under load; boards whose power delivery went wrong stay
at 500 to 850 MHz without a throttle reason (reports of owners, drivers 580.95 to 580.159)."""

BUSY_UTILISATION = 0.5
"""From here on the GPU counts as busy; an idle one may clock low."""
MIN_BUSY_CLOCK_SHARE = 0.5
"""Of the maximal SM clock, while busy. Sound GB10 boards ran at 0.7 to 1.0 of it, clocks locked to
2100 MHz included, stuck ones at 0.17 to 0.28."""
MAX_TEMPERATURE_C = 90.0
"""A GB10 slows itself down at 94 C: nvidia-smi gave 81 C as 13 C below that limit."""
MAX_LOAD_PER_CORE = 2.0
"""Of the load average: twice as many runnable processes as cores delay client and engine."""
MAX_SWAP_GROWTH_BYTES = 16 * MIB
"""Between two states: the kernel moves a few idle pages out at any time."""

UNFIT_REASONS = frozenset({"HwThermalSlowdown", "SwThermalSlowdown", "HwPowerBrakeSlowdown"})
"""NVML: the clock is cut because of heat, the hardware ones by half or more."""
HARDWARE_SLOWDOWN = "HwSlowdown"
"""NVML: cut by half or more, by heat, power brake or overcurrent, "may be also reported during
PState or clock change". So it voids a number only if the GPU was busy."""
CHOSEN_REASONS = frozenset({"ApplicationsClocksSetting"})
"""The owner has set the clocks, which is how clocks are held still; not a fault."""

ENGINE_TITLE = "VLLM::"
"""How vLLM names its processes: ``VLLM::EngineCore``, ``VLLM::Worker``."""
DESKTOP_PROCESSES = frozenset(
    {
        *("Xorg", "Xwayland", "gnome-shell", "gnome-remote-desktop-daemon", "gnome-initial-setup"),
        *("gnome-control-center", "gdm", "mutter", "kwin_x11", "kwin_wayland", "plasmashell"),
        *("sddm-greeter", "xfwm4", "weston", "xdg-desktop-portal-gnome"),
    }
)
"""Programs that draw a desktop: a DGX Spark comes with GNOME, whose idle processes hold a context
of 18 to 43 MB each (gpustat on one) and start no kernels."""
DESKTOP_MEMORY_BYTES = GIB
"""A desktop process that holds more does more than draw an idle desktop."""

_SEVERITY = {Fitness.FIT: 0, Fitness.DEGRADED: 1, Fitness.UNFIT: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNeeds:
    """What a node is held against."""

    engine_memory_bytes: int | None = None
    """What the engine will take at its boot: its share of the memory x all of it; None: unknown."""
    engine_counts_page_cache: bool = False
    """Whether the engine's own check counts reclaimable memory as free. CUDA's figure does not; on
    a GPU that CUDA calls integrated, vLLM's ``MemorySnapshot`` asks for MemAvailable instead (read
    in 0.28.0 and 0.32.0), older builds and forks do not."""
    min_mem_available_bytes: int | None = None
    """Floor of MemAvailable: below it a board with unified memory does not kill a process but
    hangs as a whole. None: not judged."""


DEFAULT_NEEDS = NodeNeeds()


def judge(
    states: Sequence[NodeState],
    *,
    own_pids: Collection[int] | None = None,
    needs: NodeNeeds = DEFAULT_NEEDS,
) -> NodeVerdict:
    """Judge a node by its states before, during and after a block.

    The clock can be judged only if a state was taken under load. Memory is held against the floor
    and not against what the engine takes, since the engine has it already.

    Args:
        states: In the order of time; without any, nothing is known and the node is fit.
        own_pids: Processes of the measured engine; all other processes on the GPU are in the way.
            None: the engine's processes are not known, so no process is judged.
        needs: What the node is held against.
    """
    processes = () if own_pids is None else _others(states, own_pids)
    return worst(
        [
            *_clock(states),
            *_throttling(states),
            *_floor(states, needs),
            *_swap(states),
            *_temperature(states),
            *_load(states),
            *(_in_the_way(process) for process in processes),
        ]
    )


def judge_for_boot(
    state: NodeState, needs: NodeNeeds = DEFAULT_NEEDS, *, own_pids: Collection[int] = ()
) -> NodeVerdict:
    """Judge whether an engine can be booted on a node in this state.

    Args:
        state: The node now.
        needs: What the engine will want.
        own_pids: Processes that may be on the GPU.
    """
    return worst(
        [
            judge([state], needs=needs),
            *_boot_memory(state, needs),
            *(_blocks_boot(process) for process in _others([state], own_pids)),
        ]
    )


def keeps_from_boot(state: NodeState, needs: NodeNeeds = DEFAULT_NEEDS) -> str | None:
    """Return why no engine can be booted now, if that may pass by itself, else None.

    Memory that an engine held, and its processes, go some time after its end. Whatever is named
    here makes ``judge_for_boot`` say unfit.
    """
    verdicts = [
        *_floor([state], needs),
        *_boot_memory(state, needs),
        *(_blocks_boot(process) for process in _others([state], ())),
    ]
    unfit = [verdict for verdict in verdicts if verdict.fitness is Fitness.UNFIT]
    return worst(unfit).reason or None


def worst(verdicts: Iterable[NodeVerdict]) -> NodeVerdict:
    """Return the worst fitness of all verdicts, with all their reasons, the worst first."""
    doubts = {v.reason: v.fitness for v in verdicts if v.fitness is not Fitness.FIT}
    if not doubts:
        return NodeVerdict(fitness=Fitness.FIT, reason="")
    ranked = sorted(doubts, key=lambda reason: -_SEVERITY[doubts[reason]])
    return NodeVerdict(fitness=doubts[ranked[0]], reason="; ".join(ranked))


def _unfit(reason: str) -> NodeVerdict:
    return NodeVerdict(fitness=Fitness.UNFIT, reason=reason)


def _degraded(reason: str) -> NodeVerdict:
    return NodeVerdict(fitness=Fitness.DEGRADED, reason=reason)


def _is_busy(state: NodeState) -> bool:
    return state.utilisation is not None and state.utilisation >= BUSY_UTILISATION


def _clock(states: Sequence[NodeState]) -> Iterator[NodeVerdict]:
    """Find the lowest clock of a busy GPU under its floor; one such state voids the block."""
    slow = [
        (state.sm_clock_mhz, state)
        for state in states
        if state.sm_clock_mhz is not None
        and _is_busy(state)
        and state.sm_clock_mhz < _clock_floor(state)
    ]
    if not slow:
        return
    clock_mhz, state = min(slow, key=lambda pair: pair[0])
    most = "" if state.sm_clock_max_mhz is None else f" of {state.sm_clock_max_mhz:.0f}"
    power = "" if state.power_w is None else f", {state.power_w:.1f} W"
    reasons = ", ".join(state.throttle_reasons or ()) or "none given"
    yield _unfit(
        f"the SM clock is stuck at {clock_mhz:.0f}{most} MHz while busy "
        f"({state.utilisation:.0%}{power}; throttle reasons: {reasons}): "
        "a GB10 recovers when it is off its power for a minute"
    )


def _clock_floor(state: NodeState) -> float:
    """Return the lowest sound clock in MHz of a busy GPU; 0 where nothing is known of it."""
    by_kind = BUSY_CLOCK_FLOOR_MHZ.get(state.kind, 0.0)
    return max(by_kind, MIN_BUSY_CLOCK_SHARE * (state.sm_clock_max_mhz or 0.0))


def _throttling(states: Sequence[NodeState]) -> Iterator[NodeVerdict]:
    unfit: set[str] = set()
    doubtful: set[str] = set()
    for state in states:
        for name in set(state.throttle_reasons or ()) - CHOSEN_REASONS:
            cut = name in UNFIT_REASONS or (name == HARDWARE_SLOWDOWN and _is_busy(state))
            (unfit if cut else doubtful).add(name)
    if unfit:
        yield _unfit(f"the GPU is slowed down: {', '.join(sorted(unfit))}")
    if doubtful - unfit:
        yield _degraded(f"the GPU's clock is limited: {', '.join(sorted(doubtful - unfit))}")


def floor_breach(states: Sequence[NodeState], needs: NodeNeeds) -> str | None:
    """Return why no engine may go on here: a state had less memory than the floor; else None."""
    known = [s.mem_available_bytes for s in states if s.mem_available_bytes is not None]
    return below_floor(min(known, default=None), needs)


def below_floor(available: int | None, needs: NodeNeeds) -> str | None:
    """Return why no engine may go on with so many bytes available; None where it may."""
    floor = needs.min_mem_available_bytes
    if floor is None or available is None or available >= floor:
        return None
    return (
        f"{_gib(available)} of memory are available, under the floor of {_gib(floor)}: "
        "a board with unified memory hangs when it runs out"
    )


def _floor(states: Sequence[NodeState], needs: NodeNeeds) -> Iterator[NodeVerdict]:
    reason = floor_breach(states, needs)
    if reason is not None:
        yield _unfit(reason)


def _swap(states: Sequence[NodeState]) -> Iterator[NodeVerdict]:
    used = [s.swap_used_bytes for s in states if s.swap_used_bytes is not None]
    growth = max((later - min(used[: i + 1]) for i, later in enumerate(used)), default=0)
    if growth > MAX_SWAP_GROWTH_BYTES:
        yield _degraded(f"the swap in use grew by {growth / MIB:.0f} MiB meanwhile")


def _temperature(states: Sequence[NodeState]) -> Iterator[NodeVerdict]:
    hottest = max((s.temperature_c for s in states if s.temperature_c is not None), default=None)
    if hottest is not None and hottest > MAX_TEMPERATURE_C:
        yield _degraded(
            f"the GPU is at {hottest:.0f} C, over {MAX_TEMPERATURE_C:.0f} C and close to "
            "where it slows down: look at its cooling"
        )


def _load(states: Sequence[NodeState]) -> Iterator[NodeVerdict]:
    loads = [
        (state.load_average_1m / state.num_cores, state)
        for state in states
        if state.load_average_1m is not None and state.num_cores
    ]
    share, state = max(loads, key=lambda pair: pair[0], default=(0.0, None))
    if state is not None and share > MAX_LOAD_PER_CORE:
        yield _degraded(
            f"the load average is {state.load_average_1m:.1f} on {state.num_cores} cores: "
            "other work delays the client and the engine"
        )


def _boot_memory(state: NodeState, needs: NodeNeeds) -> Iterator[NodeVerdict]:
    wanted, available = needs.engine_memory_bytes, state.mem_available_bytes
    if wanted is None or available is None:
        return
    if available < wanted:
        yield _unfit(
            f"out of memory: {_gib(available)} are available and the engine wants {_gib(wanted)}"
        )
        return
    floor = needs.min_mem_available_bytes
    if floor is not None and available - wanted < floor:
        yield _unfit(
            f"the engine wants {_gib(wanted)} and would leave {_gib(available - wanted)} of "
            f"memory, under the floor of {_gib(floor)}: give it less"
        )
    cached = page_cache_in_the_way(state, needs)
    if cached is not None and not needs.engine_counts_page_cache:
        yield _degraded(cached)


def page_cache_in_the_way(state: NodeState, needs: NodeNeeds) -> str | None:
    """Return what to do where an engine that counts free memory only finds too little of it.

    None where enough is free, where it would not suffice with the page cache either, and where the
    node does not tell.
    """
    wanted, available = needs.engine_memory_bytes, state.mem_available_bytes
    free = state.mem_free_bytes
    if wanted is None or available is None or free is None or not free < wanted <= available:
        return None
    return (
        f"reclaimable page cache: the engine's own check will fail, since {_gib(free)} are "
        f"free and it wants {_gib(wanted)}, although {_gib(available)} are available: as root, "
        "sync; echo 3 > /proc/sys/vm/drop_caches"
    )


def _others(states: Sequence[NodeState], own_pids: Collection[int]) -> list[GpuProcess]:
    """Return the processes on the GPU in any state that are neither own nor a desktop's."""
    found = {process.pid: process for state in states for process in state.gpu_processes or ()}
    return [
        process
        for pid, process in sorted(found.items())
        if pid not in own_pids and not _is_desktop(process)
    ]


def _is_desktop(process: GpuProcess) -> bool:
    words = (process.name or "").split()
    return (
        bool(words)
        and words[0].rpartition("/")[2] in DESKTOP_PROCESSES
        and (process.memory_bytes or 0) <= DESKTOP_MEMORY_BYTES
    )


def _in_the_way(process: GpuProcess) -> NodeVerdict:
    return _degraded(f"another process holds the GPU: {_describe(process)}")


def _blocks_boot(process: GpuProcess) -> NodeVerdict:
    if not (process.name or "").startswith(ENGINE_TITLE):
        return _in_the_way(process)
    return _unfit(
        f"another engine holds the GPU: {_describe(process)}; "
        "if its server is gone end this process by its id, else wait"
    )


def _describe(process: GpuProcess) -> str:
    memory = "" if process.memory_bytes is None else f", {_gib(process.memory_bytes)}"
    return f"pid {process.pid}, {process.name or 'name unknown'}{memory}"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
