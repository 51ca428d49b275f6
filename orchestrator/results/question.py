"""What is asked of a file's rows, and what the answer is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from orchestrator.core.estimate import Contrast
from orchestrator.core.findings import Findings
from orchestrator.core.lines import first_of
from orchestrator.core.promotion import Gate
from orchestrator.core.types import Arm, Cell
from orchestrator.core.verdict import Verdict
from orchestrator.errors import ConfigError
from orchestrator.results.boots import RowBoot, RunsAre
from orchestrator.results.observation import Observation

Outcome = Literal["winner", "keep", "no_difference", "cannot_tell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked."""

    reference: str | None = None
    """Label or key of the arm that serves now; None takes the arm without speculation."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """The traffic's share by cell key, such as ``c1_t0.7``; empty: equal over common cells."""
    confidence: float = 0.95
    runs_are: RunsAre = "blocks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One arm over all its rows."""

    arm: Arm
    seconds: float | None
    """Objective in seconds per output token, mean over boots; None without all weighted cells."""
    contrast: Contrast | None
    """Against the reference."""
    num_boots: int
    """Boots with an objective."""
    num_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CellLine:
    """One arm in one cell, by throughput."""

    cell: Cell
    arm: Arm
    tok_s: float | None
    """All streams, from the mean seconds per token over boots."""
    runs: tuple[float, ...]
    """Each row's tok_s, in the order of the file."""
    length: float | None
    """Acceptance length; by counts, else None."""
    given_lengths: tuple[float, ...]
    """Acceptance lengths that rows state without counts."""
    contrast: Contrast | None
    """Against ``base``; None for the base itself."""
    base: Arm
    """The reference, or where it was not measured the slowest arm of the cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the rows of one engine build say."""

    engine_build: str
    outcome: Outcome
    winner: Arm | None
    """Only with ``winner`` and ``keep``."""
    reference: Arm | None
    basis: Literal["counters", "throughput"]
    """What was compared: step time and acceptance by counters, or tokens / s alone."""
    weights: Mapping[Cell, float]
    sentences: tuple[str, ...]
    limits: tuple[str, ...]
    """What the data cannot support."""
    ranking: tuple[Place, ...]
    """Without a verdict of the core."""
    verdict: Verdict | None
    """The core's, where the rows have counters."""
    gates: tuple[Gate, ...]
    findings: Findings | None
    """Effects and interactions; only where the rows have counters."""
    cells: tuple[CellLine, ...]


def find_arm(arms: Sequence[Arm], name: str | None) -> Arm | None:
    """Return the arm of that label or key, or without a name the one without speculation."""
    if name is None:
        return next((arm for arm in arms if arm.is_baseline), None)
    return next((arm for arm in arms if name in (arm.label, arm.key)), None)


def common_weights(
    boots: Sequence[RowBoot], question: Question
) -> tuple[dict[Cell, float], tuple[str, ...]]:
    """Return the traffic's share by cell, summing to 1, and what is to be said of it.

    Empty where no cell was measured of all arms and none was asked for.

    Raises:
        ConfigError: A cell that was asked for is in no row, or its name fits two.
    """
    cells = _cells_by_arm(boots)
    every = sorted(set().union(*cells.values())) if cells else []
    if question.weights:
        return _asked(every, question.weights), ()
    common = [cell for cell in every if all(cell in own for own in cells.values())]
    weights = {cell: 1 / len(common) for cell in common}
    said = []
    if len(common) > 1:
        said.append(
            f"No --weights: the {len(common)} cells that all arms have count alike, which is "
            "nobody's traffic."
        )
    for cell in every:
        absent = [arm.label for arm, own in cells.items() if cell not in own]
        if absent and common:
            said.append(f"{cell.key} is not in the objective: not measured of {first_of(absent)}.")
    return weights, tuple(said)


def _cells_by_arm(boots: Sequence[RowBoot]) -> dict[Arm, set[Cell]]:
    cells: dict[Arm, set[Cell]] = {}
    for boot in boots:
        cells.setdefault(boot.arm, set()).update(row.cell for row in boot.rows if row.is_valid)
    return cells


def _asked(cells: Sequence[Cell], weights: Mapping[str, float]) -> dict[Cell, float]:
    found: dict[Cell, float] = {}
    for key, weight in weights.items():
        fitting = [cell for cell in cells if cell.key == key]
        if len(fitting) != 1:
            known = ", ".join(dict.fromkeys(cell.key for cell in cells))
            problem = (
                f"no row is of the cell {key}"
                if not fitting
                else f"{key} is there for several workloads: "
                + ", ".join(cell.workload for cell in fitting)
            )
            remedy = f"there are: {known}" if not fitting else "leave all but one out"
            raise ConfigError("--weights", problem, remedy)
        found[fitting[0]] = weight
    total = sum(found.values())
    return {cell: weight / total for cell, weight in found.items()}


def lacks_counters(observations: Sequence[Observation]) -> tuple[Observation, ...]:
    """Return the rows that do not say what acceptance is computed from."""
    return tuple(item for item in observations if not item.has_counters)
