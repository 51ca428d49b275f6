"""Whether a node has the memory back that an engine held, and how long that is waited for.

On unified memory the kernel gets an engine's memory back some time after its processes have ended.
What other programs of the node do moves the same figure, so memory that does not come back is told
and fails nothing: the next boot is judged by ``node_health.judge_for_boot`` on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.core.node_health import GIB, MIB, NodeNeeds, keeps_from_boot
from orchestrator.core.node_state import NodeState

RETURN_TOLERANCE_SHARE = 0.02
"""Of all memory: what may be missing of what was available before the engine's start. Logs, file
names and page tables of a boot stay in the kernel's caches for a while."""
MIN_RETURN_TOLERANCE_BYTES = GIB
"""On a small machine."""
WAIT_S = 120.0
"""Longest wait for memory that is on its way."""
STEADY_S = 20.0
"""Memory that has not risen for this long is held by something that stays."""
RISE_BYTES = 256 * MIB
"""Less is no rise: so much comes and goes on a machine that does other things."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The memory of a node at one moment of a wait."""

    at_s: float
    """Since the wait began."""
    mem_available_bytes: int | None


def memory_owed(before: NodeState, now: NodeState, needs: NodeNeeds) -> str | None:
    """Return what a node still misses after an engine's end, or None when it is as before.

    It is as before when as much memory is available, within the tolerance, and the next engine
    would not be refused for it where this one was not.

    Args:
        before: The node before the engine's start.
        now: The node after its end.
        needs: What the next engine will want.
    """
    reason = keeps_from_boot(now, needs)
    if reason is not None and keeps_from_boot(before, needs) is None:
        return reason
    was, available = before.mem_available_bytes, now.mem_available_bytes
    if was is None or available is None or was - available <= return_tolerance_bytes(before):
        return None
    return (
        f"{available / GIB:.1f} GiB of memory are available after the engine's end, "
        f"{(was - available) / GIB:.1f} GiB less than before its start"
    )


def return_tolerance_bytes(state: NodeState) -> int:
    """Return how many bytes may be missing after an engine's end."""
    share = RETURN_TOLERANCE_SHARE * (state.mem_total_bytes or 0)
    return max(MIN_RETURN_TOLERANCE_BYTES, round(share))


def gives_up(looks: Sequence[Look]) -> bool:
    """Return whether a wait for memory is over although it is not there.

    Args:
        looks: All of the wait, in the order of time. A platform that tells no memory is not waited
            for longer than one whose memory does not rise.
    """
    if not looks:
        return False
    now_s, since_s = looks[-1].at_s, looks[-1].at_s - STEADY_S
    if now_s >= WAIT_S:
        return True
    if looks[0].at_s > since_s:
        return False
    known = [
        (look.at_s, look.mem_available_bytes)
        for look in looks
        if look.mem_available_bytes is not None
    ]
    earlier = [size for at_s, size in known if at_s <= since_s]
    lately = [size for at_s, size in known if at_s > since_s]
    if not lately:
        return True
    return bool(earlier) and max(lately) - max(earlier) < RISE_BYTES
