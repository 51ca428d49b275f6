"""What trials tell on its way to the tracker, and whether all that was measured has arrived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.types import Block, Boot


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing that the tracker is to be told of a trial: one of its three parts is there."""

    trial_id: str
    params: dict[str, Any] | None = None
    """Of a run that begins; a run that has begun gets those that it lacks."""
    block: Block | None = None
    boot: Boot | None = None
    """Of a run that ends."""
    artifacts: dict[str, str] = field(default_factory=dict)
    """Of a run that ends: text by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """What trials have told so far, as the study's state keeps it.

    Whoever changes it changes ``study_file.FORMAT``.
    """

    pending: tuple[Entry, ...] = ()
    """What the tracker may not have yet, in the order in which it was told."""
    measured: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Ids of all blocks that reached the study, by trial; also of boots that count nowhere."""
    runs: dict[str, str] = field(default_factory=dict)
    """Id of the tracker's run by trial, as far as it has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCheck:
    """Blocks in the tracker beside blocks measured, by id; all empty where each is there once."""

    lost: tuple[str, ...]
    """Measured, and not in the tracker."""
    double: tuple[str, ...]
    """More than once in the tracker."""
    unknown: tuple[str, ...]
    """In the tracker, and never measured."""


def check_blocks(measured: Mapping[str, Sequence[str]], stored: Mapping[str, int]) -> BlockCheck:
    """Hold what the tracker has against what was measured.

    Args:
        measured: Ids of blocks by trial: ``Records.measured``.
        stored: How often the tracker has each block, by id: ``Tracker.block_counts``.
    """
    ids = [block_id for blocks in measured.values() for block_id in blocks]
    return BlockCheck(
        lost=tuple(sorted(block_id for block_id in ids if not stored.get(block_id))),
        double=tuple(sorted(block_id for block_id, count in stored.items() if count > 1)),
        unknown=tuple(sorted(stored.keys() - set(ids))),
    )
