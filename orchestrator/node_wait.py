"""A node before and after an engine: wait for memory by measurement, with a deadline."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from orchestrator.core.memory_return import Look, gives_up, memory_owed
from orchestrator.core.node_health import NodeNeeds, keeps_from_boot
from orchestrator.core.node_state import NodeState
from orchestrator.errors import TransientError
from orchestrator.ports import Clock, Engine, Node

POLL_S = 1.0


def wait_while(
    owed: Callable[[NodeState], str | None],
    state: NodeState,
    node: Node,
    clock: Clock,
    *,
    told: Callable[[str], None] = lambda _reason: None,
) -> tuple[NodeState, str | None]:
    """Look at a node until it owes nothing, or no more is to be expected.

    Args:
        owed: What a state lacks, None for nothing.
        state: The node's state now.
        node: The node.
        clock: Of the wait.
        told: Called once with what is waited for.

    Returns:
        The last state, and what it lacks.
    """
    started_s = clock.monotonic()
    looks: list[Look] = []
    while True:
        reason = owed(state)
        if reason is None:
            return state, None
        if not looks:
            told(reason)
        at_s = clock.monotonic() - started_s
        looks.append(Look(at_s=at_s, mem_available_bytes=state.mem_available_bytes))
        if gives_up(looks):
            return state, reason
        clock.sleep(POLL_S)
        state = node.snapshot()


def await_node(
    state: NodeState,
    node: Node,
    clock: Clock,
    *,
    needs: NodeNeeds,
    told: Callable[[str], None],
) -> NodeState:
    """Wait while what keeps a node from a boot may pass by itself, and return its last state.

    Args:
        state: The node's state now.
        node: The node.
        clock: Of the wait.
        needs: What the engine will want.
        told: Called once with what is waited for.
    """
    keeps = partial(keeps_from_boot, needs=needs)
    return wait_while(keeps, state, node, clock, told=told)[0]


def end_engine(
    engine: Engine, node: Node, clock: Clock, *, before: NodeState, needs: NodeNeeds
) -> tuple[NodeState, str | None]:
    """End an engine and wait for the memory that it held.

    Args:
        engine: The engine, whether or not its boot came up.
        node: Its node.
        clock: Of the wait.
        before: The node before the engine's start.
        needs: What the next engine will want.

    Returns:
        The node's last state, and what is left of the engine or stays away, None for nothing.
    """
    try:
        engine.stop()
    except TransientError as error:
        return node.snapshot(), f"the end of the engine: {error}"
    owed = partial(memory_owed, before, needs=needs)
    return wait_while(owed, node.snapshot(), node, clock)
