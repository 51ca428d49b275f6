"""What a study measured, and the questions that its conclusion asks of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.core.comparable import comparable_boots
from orchestrator.core.estimate import (
    Contrast,
    boot_objective,
    compare,
    compare_cell,
    compare_ttft,
    geometric_mean,
    known_arms,
)
from orchestrator.core.promotion import (
    Gate,
    GateSettings,
    better_gate,
    cells_gate,
    in_force_gate,
    kv_gate,
    synthetic_gate,
    ttft_gate,
    untested_gates,
    valid_gate,
)
from orchestrator.core.summary import ArmSummary
from orchestrator.core.types import Arm, BoardModel, Boot, Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The measurements of a study with the settings under which they are read."""

    boots: tuple[Boot, ...]
    weights: Mapping[Cell, float]
    board: BoardModel | None
    incumbent: Arm | None
    reference: Arm | None
    scores: Mapping[Arm, tuple[float, ...]]
    summaries: Mapping[Arm, ArmSummary]
    settings: GateSettings
    confidence: float

    @property
    def fixed(self) -> frozenset[Arm]:
        """Arms whose score is known without boots."""
        return known_arms(self.scores, self.board)

    @property
    def finalists(self) -> tuple[Arm, ...]:
        """Replicated arms, and those known without; all scored arms when none is replicated."""
        replicated = tuple(
            arm for arm, values in self.scores.items() if len(values) > 1 or arm in self.fixed
        )
        return replicated if set(replicated) - self.fixed else tuple(self.scores)

    def contrast(self, a: Arm, b: Arm) -> Contrast:
        """Compare two arms over all their boots."""
        return compare(self.scores, a=a, b=b, confidence=self.confidence, fixed=self.fixed)

    def contrasts(self) -> dict[Arm, Contrast]:
        """Compare every scored arm with the reference."""
        reference = self.reference
        if reference is None or reference not in self.scores:
            return {}
        return {arm: self.contrast(arm, reference) for arm in self.scores if arm != reference}

    def boots_of(self, arm: Arm) -> tuple[Boot, ...]:
        """Return the arm's boots, whatever their end."""
        return tuple(boot for boot in self.boots if boot.arm == arm)

    def seconds(self, arm: Arm) -> float:
        """Return the geometric mean of the arm's scores."""
        mean = geometric_mean(self.scores[arm])
        assert mean is not None
        return mean

    def tied_with(self, arm: Arm) -> tuple[Arm, ...]:
        """Return the other finalists whose interval against ``arm`` includes no difference."""
        return tuple(
            other
            for other in self.finalists
            if other != arm and self.contrast(other, arm).excludes_zero is False
        )

    def copies(self) -> dict[Arm, int]:
        """Return by arm the boots that repeat an earlier one's counters to the token."""
        counts: dict[Arm, int] = {}
        for arm, values in self.scores.items():
            objectives = [
                boot_objective(boot, self.weights, self.board)
                for boot in comparable_boots(self.boots)
                if boot.arm == arm
            ]
            counts[arm] = sum(value is not None for value in objectives) - len(values)
        return counts


def ask_gates(evidence: Evidence, arm: Arm, reference: Arm) -> tuple[Gate, ...]:
    """Ask every gate; the first is ``better``.

    An arm's first score chose it as a finalist and does not count as fresh. The reference is in
    the final whatever it scores, so all its boots do.
    """
    fixed = evidence.fixed
    fresh = compare(
        {
            other: values if other == reference or other in fixed else values[1:]
            for other, values in evidence.scores.items()
        },
        a=arm,
        b=reference,
        confidence=evidence.confidence,
        fixed=fixed,
    )
    cells = {
        cell: compare_cell(
            evidence.boots,
            cell=cell,
            a=arm,
            b=reference,
            board=evidence.board,
            confidence=evidence.confidence,
        )
        for cell in evidence.weights
    }
    ttft = {
        cell: compare_ttft(
            evidence.boots, cell=cell, a=arm, b=reference, confidence=evidence.confidence
        )
        for cell in evidence.weights
    }
    settings, boots = evidence.settings, evidence.boots_of(arm)
    return (
        better_gate(fresh, fixed=(arm in fixed, reference in fixed), settings=settings),
        cells_gate(cells, settings),
        kv_gate(boots, settings),
        ttft_gate(ttft, settings, modelled=evidence.board is not None),
        in_force_gate(arm, boots),
        valid_gate(boots, tuple(evidence.weights)),
        synthetic_gate(arm),
        *untested_gates(),
    )
