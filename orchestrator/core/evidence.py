"""What a study measured, and the questions that its conclusion asks of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from orchestrator.core.comparison import Comparison, Measured, measured
from orchestrator.core.estimate import Contrast
from orchestrator.core.promotion import (
    Gate,
    GateSettings,
    better_gate,
    cells_gate,
    in_force_gate,
    kv_gate,
    synthetic_gate,
    ttft_gate,
    valid_gate,
)
from orchestrator.core.proof_gates import Proofs
from orchestrator.core.summary import ArmSummary
from orchestrator.core.types import Arm, BoardModel, Boot, Cell


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The measurements of a study with the settings under which they are read."""

    boots: tuple[Boot, ...]
    weights: Mapping[Cell, float]
    board: BoardModel | None
    incumbent: Arm | None
    reference: Arm | None
    measured: Measured
    comparison: Comparison
    """Of the objectives."""
    summaries: Mapping[Arm, ArmSummary]
    settings: GateSettings
    confidence: float
    chosen: Arm | None = None
    """The arm that the race chose; None where no race did."""
    chosen_by: Collection[str] | None = None
    """Trial ids of the boots by which the race chose; None where it does not say."""
    proofs: Proofs = field(default_factory=Proofs)
    """What is shown of arms besides their speed."""

    @property
    def scored(self) -> tuple[Arm, ...]:
        """Arms with a scored boot, in the order of the space."""
        return tuple(arm for arm in self.summaries if arm in self.comparison.boots)

    @cached_property
    def set_aside(self) -> Mapping[Arm, str]:
        """Scored arms that cannot win whatever their speed, and why; the reference is not asked."""
        return {arm: reason for arm, reason in self._shown.items() if arm != self.reference}

    @cached_property
    def reference_fault(self) -> str | None:
        """What the proofs show against the reference, which is compared with all the same."""
        return None if self.reference is None else self._shown.get(self.reference)

    @cached_property
    def _shown(self) -> Mapping[Arm, str]:
        return self.proofs.set_aside(self.scored)

    @property
    def candidates(self) -> tuple[Arm, ...]:
        """Scored arms that may win."""
        return tuple(arm for arm in self.scored if arm not in self.set_aside)

    @property
    def finalists(self) -> tuple[Arm, ...]:
        """Replicated arms, and those known without; all scored arms when none is replicated."""
        fixed = self.comparison.fixed
        replicated = tuple(
            arm for arm in self.scored if len(self.comparison.boots[arm]) > 1 or arm in fixed
        )
        arms = replicated if set(replicated) - fixed else self.scored
        return tuple(arm for arm in arms if arm not in self.set_aside)

    def contrast(self, a: Arm, b: Arm) -> Contrast:
        """Compare two arms over all their boots."""
        return self.comparison.contrast(a, b, confidence=self.confidence)

    def contrasts(self) -> dict[Arm, Contrast]:
        """Compare every scored arm with the reference."""
        reference = self.reference
        if reference is None or reference not in self.scored:
            return {}
        return {arm: self.contrast(arm, reference) for arm in self.scored if arm != reference}

    def fresh_contrast(self, arm: Arm, reference: Arm) -> Contrast:
        """Compare an arm with the reference without the arm's boots that chose it.

        The luckiest of many is not as fast as it looked. Where the race does not say which boots
        chose, the arm's first did. The reference is compared whatever it scores, so all its boots
        count; those of other arms tell how far boots lie apart.
        """
        chose = self.chosen_by
        if chose is None:
            chose = {boot.trial_id for boot in self.comparison.boots.get(arm, ())[:1]}
        kept = arm in {reference, *self.comparison.fixed}
        fresh = [
            boot
            for boot in self.measured.boots
            if kept or boot.arm != arm or boot.trial_id not in chose
        ]
        taken = measured(fresh, cells=tuple(self.weights), board=self.board)
        return taken.compare(self.weights).contrast(arm, reference, confidence=self.confidence)

    def boots_of(self, arm: Arm) -> tuple[Boot, ...]:
        """Return the arm's boots, whatever their end."""
        return tuple(boot for boot in self.boots if boot.arm == arm)

    def seconds(self, arm: Arm) -> float:
        """Return the objective of a scored arm."""
        seconds = self.comparison.seconds(arm)
        assert seconds is not None
        return seconds

    def tied_with(self, arm: Arm) -> tuple[Arm, ...]:
        """Return the other finalists whose interval against ``arm`` includes no difference."""
        return tuple(
            other
            for other in self.finalists
            if other != arm and self.contrast(other, arm).excludes_zero is False
        )


def ask_gates(evidence: Evidence, arm: Arm, reference: Arm) -> tuple[Gate, ...]:
    """Ask every gate; the first is ``better``."""
    confidence, fixed = evidence.confidence, evidence.comparison.fixed
    fresh = evidence.fresh_contrast(arm, reference)
    cells = {
        cell: evidence.measured.compare({cell: 1.0}).contrast(arm, reference, confidence=confidence)
        for cell in evidence.weights
    }
    ttft = {
        cell: evidence.measured.compare_ttft(cell, a=arm, b=reference, confidence=confidence)
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
        *evidence.proofs.gates(arm),
    )
