"""Which arm gets the next boot.

The rule now: coverage first, then fresh boots for the finalists. No step assumes that neighbouring
depths score alike. The decision is a pure function of the state, so that a later rule replaces
``next_boot`` and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from orchestrator.core.types import Arm


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceSettings:
    """The budget of a race."""

    num_finalists: int
    """Arms that get fresh boots; the incumbent comes on top."""
    boots_per_finalist: int
    """Scored boots of each finalist altogether, the first included."""
    max_boots: int
    """Boots of the whole study, failed ones included."""
    seed: int
    """Orders the coverage."""
    confidence: float
    """Coverage of the intervals; rules that stop early need it, the rule now does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceState:
    """What has happened so far. Arms that a mapping does not name have none."""

    arms: tuple[Arm, ...]
    incumbent: Arm | None
    scores: Mapping[Arm, Sequence[float]]
    """Objective of each scored boot in seconds, in the order of the boots."""
    dead: frozenset[Arm] = frozenset()
    """Arms that cannot run here or are not in force."""
    issued: Mapping[Arm, int] = field(default_factory=dict)
    """Boots started so far, running ones included."""
    failed: Mapping[Arm, int] = field(default_factory=dict)
    """Boots that ended without a score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceDecision:
    """What to do now, and why."""

    kind: Literal["boot", "wait", "finished"]
    reason: str
    arm: Arm | None = None
    """Only with ``boot``."""
    replicate: int | None = None
    """Only with ``boot``: the number of boots that the arm had before."""


def next_boot(state: RaceState, settings: RaceSettings) -> RaceDecision:
    """Decide on the next boot.

    Coverage in a seeded order; then the best ``num_finalists`` arms by their first score plus the
    reference (the incumbent, else the baseline), round by round, every second round reversed, so
    that a drift of the node meets all alike. A failed boot is retried once an arm.
    """
    raise NotImplementedError


def expected_boots(num_arms: int, settings: RaceSettings) -> int:
    """Return the boots of a race in which nothing fails."""
    raise NotImplementedError
