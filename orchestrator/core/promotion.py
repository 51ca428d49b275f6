"""The gates on the way to production, each a pure function, and the order of a promotion."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The answer of one gate."""

    name: str
    passed: bool | None
    """None: cannot tell, or not tested."""
    reason: str
    required: bool = False
    """Whether ``passed=None`` keeps the challenger out too."""

    @property
    def blocks(self) -> bool:
        """Whether the gate keeps the challenger out."""
        return self.passed is False or (self.passed is None and self.required)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSettings:
    """What the policy demands."""

    cell_tolerance: float = 0.05
    """Largest relative loss of throughput in one cell, 0 to 1."""
    min_kv_cache_tokens: int | None = None
    min_kv_max_concurrency: float | None = None
    ttft_tolerance: float | None = None
    """Largest relative rise of the median time to first token; None does not gate."""
    min_fresh_boots: int = 2
    """Boots of each side that did not choose the arm as a finalist."""
    strict: bool = False
    """Whether "cannot tell" in a cell or of the TTFT keeps the challenger out."""


class PromotionStep(StrEnum):
    """The steps of a promotion, in order."""

    REGISTERED = "registered"
    CHALLENGER = "challenger"
    BOOTED = "booted"
    VERIFIED = "verified"
    SHIFTED = "shifted"
    ALIASED = "aliased"
    RETIRED = "retired"


def next_step(done: AbstractSet[PromotionStep]) -> PromotionStep | None:
    """Return the first step that is not done, or None when all are."""
    return next((step for step in PromotionStep if step not in done), None)
