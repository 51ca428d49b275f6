"""Find what dead studies left on all nodes of a Ray, or on this one alone, and remove it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from orchestrator.adapters import node_leftovers, serve_reaper
from orchestrator.adapters.node_leftovers import NodeLeftovers
from orchestrator.adapters.node_tasks import NodeAnswer, on_every_node
from orchestrator.adapters.state import state_dir
from orchestrator.cluster import (
    claimed,
    connect,
    is_claimed,
    sweep_applications,
    trial_applications,
)
from orchestrator.core.leftovers import Circumstances, Condition, Kind, Leftover, judge, worst
from orchestrator.core.lines import one_line
from orchestrator.errors import ConfigError, TransientError

RAY = "Ray"
"""Stands for the node of what is the cluster's."""
_APPLICATIONS_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What was found, and what could not be looked at."""

    things: tuple[Leftover, ...]
    notes: tuple[str, ...]
    folder: str
    """The state folder, on every node the same."""
    has_ray: bool
    is_whole: bool = True
    """Whether everything was looked at: all nodes of the Ray, and its leases. Where there is no
    Ray, this node is all."""


def survey(asked: frozenset[str]) -> Survey:
    """Look at what studies left; changes nothing.

    Args:
        asked: Studies that a person named, by their ids or as these are shown.
    """
    try:
        connect()
    except ConfigError as error:
        note = f"{error.where}: {error.problem}: only this node was looked at"
        return _judged([_here()], [], asked, claim=False, has_ray=False, notes=[note])
    answers = on_every_node(node_leftovers.look, str(state_dir()))
    of_ray, notes = _of_ray()
    notes += [f"node {a.node} was not looked at: {a.error}" for a in answers if a.error]
    is_whole = not notes
    nodes = [answer.value for answer in answers if answer.value is not None]
    judged = _judged(nodes, of_ray, asked, claim=is_claimed(), has_ray=True, notes=notes)
    return replace(judged, is_whole=judged.is_whole and is_whole)


def _here() -> NodeLeftovers:
    return node_leftovers.look(str(state_dir()))


def _of_ray() -> tuple[list[Leftover], list[str]]:
    """Return what the cluster itself has of trials, and what could not be looked at."""
    applications = trial_applications()
    try:
        leases, notes = serve_reaper.leases(), list[str]()
    except TransientError as error:
        leases, notes = [], [f"leases were not looked at: {error}"]
    return [
        *(Leftover(kind=Kind.APPLICATION, name=name, node=RAY) for name in applications),
        *(
            Leftover(kind=Kind.LEASE, name=name, node=RAY)
            for name in leases
            if name not in applications
        ),
    ], notes


def _judged(
    nodes: Sequence[NodeLeftovers],
    of_ray: Iterable[Leftover],
    asked: frozenset[str],
    *,
    claim: bool,
    has_ray: bool,
    notes: list[str],
) -> Survey:
    # Several nodes of a Ray may be one machine.
    machines = {node.machine: node for node in nodes}.values()
    conditions: dict[str, Condition] = {}
    for node in machines:
        for study_id, condition in node.conditions.items():
            conditions[study_id] = worst({condition, conditions.get(study_id, condition)})
    found = [*of_ray, *(item for node in machines for item in node.found)]
    shown = {one_line(item.study_id): item.study_id for item in found if item.study_id}
    asked = asked | {shown[text] for text in asked if text in shown}
    unread = [text for node in machines for text in node.unread]
    known = Circumstances(
        conditions=conditions,
        is_claimed=claim,
        is_whole=has_ray and not notes and not unread,
        asked=asked,
    )
    if claim:
        notes = [*notes, "a study or promotion is under way on this Ray"]
    return Survey(
        things=tuple(judge(found, known)),
        notes=(*notes, *unread),
        folder=str(state_dir()),
        has_ray=has_ray,
        is_whole=not unread,
    )


def remove(found: Survey, asked: frozenset[str]) -> list[str]:
    """Remove what a survey says may be removed; return what stays, with the reason.

    Each node looks again before it removes, and the claim on the Ray is held meanwhile.

    Args:
        found: Of ``survey``.
        asked: Studies that a person named.

    Raises:
        ConfigError: A study or promotion began meanwhile.
    """
    wanted = [item for item in found.things if item.is_kept_because is None]
    left: list[str] = []
    with ExitStack() as stack:
        if any(item.node == RAY for item in wanted):
            stack.enter_context(claimed())
            left += _remove_of_ray(wanted)
        names: dict[Kind, list[str]] = {}
        for item in wanted:
            if item.node != RAY:
                names.setdefault(item.kind, []).append(item.name)
        if names:
            left += _on_nodes(found.has_ray, str(state_dir()), names, asked)
    return left


def _remove_of_ray(wanted: Iterable[Leftover]) -> list[str]:
    stays, kinds = [], {item.kind for item in wanted}
    if Kind.APPLICATION in kinds:
        sweep_applications(wait_s=_APPLICATIONS_S)
    for item in wanted:
        if item.kind is Kind.LEASE and (why := serve_reaper.release(item.name)) is not None:
            stays.append(f"lease {item.name}: {why}")
    return [*stays, *(f"application {name} is still there" for name in trial_applications())]


def _on_nodes(has_ray: bool, *args: object) -> list[str]:
    call: Callable[..., list[str]] = node_leftovers.remove
    if not has_ray:
        return call(*args)
    answers: list[NodeAnswer] = on_every_node(call, *args)
    silent = [f"node {answer.node}: {answer.error}" for answer in answers if answer.error]
    texts = [text for answer in answers for text in answer.value or ()]
    return [*dict.fromkeys(texts), *silent]
