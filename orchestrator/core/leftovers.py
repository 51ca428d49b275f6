"""Which of the things that studies left may be removed, and why the others are left alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum


class Kind(StrEnum):
    """What a thing is, in the order in which they are removed."""

    APPLICATION = "Serve application"
    LEASE = "lease"
    BOOT = "boot"
    """Processes, port, shared memory and folder of a boot that nobody answers for."""
    AUDIT = "audit folder"
    TUNE = "Tune folder"
    STATE = "study state"


class Condition(StrEnum):
    """How far a study is, by its state on a node's disk."""

    RUNNING = "running"
    """A driver holds it."""
    UNFINISHED = "unfinished"
    ENDED = "ended"
    """It has its verdict."""
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """One thing that a study left, or may still use."""

    kind: Kind
    name: str
    """By which it is removed, unique of its kind on its node."""
    node: str
    """Host name; "Ray" for what is the cluster's."""
    study_id: str | None = None
    """None where it does not say whose it is."""
    detail: str = ""
    size_bytes: int | None = None
    age_s: float | None = None
    is_kept_because: str | None = None
    """Why it is left alone; None: it may be removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What is known beside the things themselves."""

    conditions: Mapping[str, Condition]
    """Of studies by id, on all nodes that were asked."""
    is_claimed: bool
    """Whether a study or promotion is under way on the Ray that was asked."""
    is_whole: bool
    """Whether every node of a Ray was asked and has answered."""
    asked: frozenset[str] = frozenset()
    """Studies that a person named: of these also what a resume needs goes."""


def judge(found: Iterable[Leftover], known: Circumstances) -> list[Leftover]:
    """Return the things with the reason why they are left alone, those to be removed first.

    With studies named, only what is of these; without, whatever is there.
    """
    judged = [
        replace(item, is_kept_because=_keeps(item, known))
        for item in found
        if not known.asked or item.study_id in known.asked
    ]
    order = list(Kind)
    return sorted(
        judged,
        key=lambda item: (
            item.is_kept_because is not None,
            order.index(item.kind),
            item.node,
            item.name,
        ),
    )


def worst(conditions: Collection[Condition]) -> Condition:
    """Return the condition of a study that several nodes know, the one that keeps most."""
    return min(conditions, key=list(Condition).index)


def _keeps(item: Leftover, known: Circumstances) -> str | None:
    """Return why a thing is left alone."""
    condition = None if item.study_id is None else known.conditions.get(item.study_id)
    if condition is Condition.RUNNING:
        return "its study runs"
    is_somebody_at_it = known.is_claimed or Condition.RUNNING in known.conditions.values()
    if item.kind in (Kind.APPLICATION, Kind.LEASE):
        return _UNDER_WAY if known.is_claimed else None
    if item.kind is Kind.BOOT:
        # Nobody answers for it. Only of a study that runs it is that study's to end, and one whose
        # state could not be written is known by its claim alone.
        is_unknown = known.is_claimed and Condition.RUNNING not in known.conditions.values()
        return _UNDER_WAY if is_unknown else None
    if condition is Condition.ENDED:
        return None
    if condition is not Condition.UNFINISHED and is_somebody_at_it:
        return _UNDER_WAY  # a study whose state cannot be written or read is known by its claim
    if condition is not None:
        reason = f"{_OF_STATE[condition]}; --study {item.study_id} removes it"
        return None if item.study_id in known.asked else reason
    return None if known.is_whole else "whether its study is over is not known on this node alone"


_UNDER_WAY = "a study or promotion is under way"
_OF_STATE = {
    Condition.UNFINISHED: "its study can be resumed",
    Condition.UNREADABLE: "the state of its study cannot be read",
}
