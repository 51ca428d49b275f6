"""A prover in memory: findings that are told beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.core.types import EngineFacts, ProofPart
from orchestrator.errors import TransientError
from orchestrator.ports import Finding


@dataclass
class FakeProver:
    """Finds what it is told to; a part that it is told nothing about cannot be looked at."""

    findings: Mapping[ProofPart, Finding] = field(default_factory=dict)
    asked: list[ProofPart] = field(default_factory=list)
    is_closed: bool = False

    def prove(self, part: ProofPart, facts: EngineFacts) -> Finding:
        """Return what the part came to.

        Raises:
            TransientError: Nothing is told about the part.
        """
        self.asked.append(part)
        if part not in self.findings:
            raise TransientError(f"{facts.base_url} says nothing about it")
        return self.findings[part]

    def close(self) -> None:
        """Remember it."""
        self.is_closed = True
