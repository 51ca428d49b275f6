"""Run a function on every node of the Ray that this process has joined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

WAIT_S = 60.0
"""Longest wait for the nodes: a worker has to start there first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """What became of the call on one node."""

    node: str
    """Its host name and the start of Ray's id."""
    value: Any = None
    error: str | None = None
    """Why there is no value."""


def on_every_node(
    function: Callable[..., Any], *args: object, wait_s: float = WAIT_S
) -> list[NodeAnswer]:
    """Call a function on each living node at once, beside whatever runs there.

    Args:
        function: Of a module that every node has.
        *args: Its arguments.
        wait_s: Longest wait for all of them.
    """
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # Ray's
    calls = {}
    for node in nodes:
        if node["Alive"]:
            name = f"{node['NodeManagerHostname']} ({node['NodeID'][:6]})"
            place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            task = ray.remote(function).options(
                num_cpus=0, scheduling_strategy=place, max_retries=0
            )
            calls[task.remote(*args)] = name
    done, late = ray.wait(list(calls), num_returns=len(calls), timeout=wait_s)
    answers = [_answer(calls[ref], ref) for ref in done]
    for ref in late:
        ray.cancel(ref, force=True)
        answers.append(NodeAnswer(node=calls[ref], error=f"no answer in {wait_s:g} s"))
    return answers


def _answer(node: str, ref: Any) -> NodeAnswer:
    try:
        return NodeAnswer(node=node, value=ray.get(ref))
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()
        return NodeAnswer(node=node, error=reason[-1] if reason else type(error).__name__)
