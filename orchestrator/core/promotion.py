"""The gates on the way to production, each a pure function."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.core.estimate import Contrast
from orchestrator.core.formulas import factor_of
from orchestrator.core.space import CAPABILITIES, not_in_force
from orchestrator.core.types import Arm, Block, Boot, BootStatus, Cell, Invalid

SOAK_GATE = "soak"
RAISE_BUDGET = ": raise search.max_boots"
"""What a study does about too few boots; of files it says nothing."""
_SOAK_FAULTS = frozenset(
    {Invalid.REQUESTS, Invalid.TOKENS, Invalid.RESTARTED, Invalid.TRUNCATED, Invalid.GARBAGE}
)
"""What may not happen at full concurrency. How fast it is there was promised by nobody, and how
many requests run at a time is up to the KV cache."""


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
    """Boots of each side that did not choose the arm."""
    strict: bool = False
    """Whether "cannot tell" in a cell or of the TTFT keeps the challenger out."""


def better_gate(fresh: Contrast, *, fixed: tuple[bool, bool], settings: GateSettings) -> Gate:
    """Return whether the challenger is shown faster by boots that did not choose it.

    Args:
        fresh: Challenger against the reference, from fresh boots.
        fixed: Whether the challenger's and the reference's score is known without boots.
        settings: Number of fresh boots that are needed.
    """
    needed = settings.min_fresh_boots
    short = [
        count < needed and not known for count, known in zip(fresh.num_boots, fixed, strict=True)
    ]
    if any(short):
        counts = f"{fresh.num_boots[0]} and {fresh.num_boots[1]}"
        reason = f"{counts} fresh boots, {needed} are needed of each side{RAISE_BUDGET}"
        return Gate(name="better", passed=None, reason=reason, required=True)
    shown = None if fresh.high is None else fresh.high < 0
    reason = f"from fresh boots {fresh.in_words}"
    return Gate(name="better", passed=shown, reason=reason, required=True)


def cells_gate(contrasts: Mapping[Cell, Contrast], settings: GateSettings) -> Gate:
    """Return whether no cell loses throughput beyond the tolerance.

    Non-inferiority by interval: passed when every interval excludes a loss beyond the tolerance;
    failed when a cell's estimate lies beyond it and its interval excludes no difference; else it
    cannot be told, which blocks only under a strict policy.
    """
    margin = -math.log1p(-settings.cell_tolerance) if settings.cell_tolerance < 1 else math.inf
    return _non_inferiority(
        "cells",
        {cell.key: (contrast, contrast.in_words) for cell, contrast in contrasts.items()},
        margin=margin,
        limit=f"a loss of {settings.cell_tolerance:.0%}",
        required=settings.strict,
    )


def ttft_gate(
    contrasts: Mapping[Cell, Contrast], settings: GateSettings, *, modelled: bool
) -> Gate:
    """Return whether no cell's median time to first token rises beyond the tolerance.

    Args:
        contrasts: Challenger against the reference by cell.
        settings: The tolerance; without one nothing is demanded.
        modelled: Whether step times come from a board model, so that times measured here say
            nothing of the board.
    """
    tolerance = settings.ttft_tolerance
    if tolerance is None:
        return Gate(name="ttft", passed=None, reason="not tested: policy.ttft_tolerance is not set")
    if modelled:
        reason = "not tested: times measured here say nothing of the modelled board"
        return Gate(name="ttft", passed=None, reason=reason, required=settings.strict)
    return _non_inferiority(
        "ttft",
        {cell.key: (contrast, _ttft_words(contrast)) for cell, contrast in contrasts.items()},
        margin=math.log1p(tolerance),
        limit=f"a rise of {tolerance:.0%}",
        required=settings.strict,
    )


def kv_gate(boots: Sequence[Boot], settings: GateSettings) -> Gate:
    """Return whether every boot of the challenger holds what the policy's floors demand.

    Capacity moves by 10 % between boots of one configuration, so the smallest boot counts. A
    floor that the engine gives no figure for blocks.
    """
    floors = {
        "kv_cache_tokens": settings.min_kv_cache_tokens,
        "kv_max_concurrency": settings.min_kv_max_concurrency,
    }
    facts = [boot.facts for boot in boots if boot.status is BootStatus.OK]
    shown: list[str] = []
    for key, floor in floors.items():
        if floor is None:
            continue
        values = [None if item is None else getattr(item, key) for item in facts]
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            reason = f"the engine does not say its {key}; the floor is {floor:g}"
            return Gate(name="kv", passed=None, reason=reason, required=True)
        words = f"{key} {min(known):g} at least over {len(known)} boots, floor {floor:g}"
        if min(known) < floor:
            return Gate(name="kv", passed=False, reason=words)
        shown.append(words)
    if not shown:
        reason = "not tested: policy.min_kv_cache_tokens and min_kv_max_concurrency are not set"
        return Gate(name="kv", passed=None, reason=reason)
    return Gate(name="kv", passed=True, reason="; ".join(shown))


def in_force_gate(arm: Arm, boots: Sequence[Boot]) -> Gate:
    """Return whether the arm was in force in each of its boots that ended well."""
    for boot in boots:
        if boot.status is BootStatus.NOT_IN_FORCE:
            return Gate(name="in_force", passed=False, reason=boot.reason)
    good = [boot for boot in boots if boot.status is BootStatus.OK]
    for boot in good:
        if boot.facts is None:
            reason = f"{boot.trial_id} carries no facts of its engine"
            return Gate(name="in_force", passed=None, reason=reason, required=True)
        problem = not_in_force(arm, boot.facts)
        if problem is not None:
            return Gate(name="in_force", passed=False, reason=problem)
    reason = f"the engine's resolved configuration is the arm's in {len(good)} boots"
    return Gate(name="in_force", passed=True, reason=reason)


def valid_gate(boots: Sequence[Boot], cells: Sequence[Cell]) -> Gate:
    """Return whether every boot that counts has a valid block in every cell.

    Boots that failed are named; one that turned out infeasible fails the gate.
    """
    lost = [f"{boot.trial_id}: {boot.reason}" for boot in boots if boot.status is BootStatus.FAILED]
    for boot in boots:
        if boot.status is BootStatus.INFEASIBLE:
            return Gate(name="valid", passed=False, reason=f"infeasible: {boot.reason}")
        measured = {block.cell for block in boot.blocks if block.is_valid}
        absent = [cell.key for cell in cells if cell not in measured]
        if boot.status is BootStatus.OK and absent:
            reason = f"{boot.trial_id} has no valid block in {', '.join(absent)}"
            return Gate(name="valid", passed=False, reason=_with_examples(reason, boot.blocks))
    blocks = [block for boot in boots for block in boot.blocks]
    num_valid = sum(block.is_valid for block in blocks)
    reason = f"{num_valid} of {len(blocks)} blocks are valid"
    if lost:
        reason += f"; failed boots: {'; '.join(lost)}"
    return Gate(name="valid", passed=True, reason=_with_examples(reason, blocks))


def synthetic_gate(arm: Arm) -> Gate:
    """Return whether the arm's rules may serve at all; ``synthetic`` never may."""
    for key, table in CAPABILITIES.items():
        rule = getattr(arm, key)
        if rule in table and not table[rule].production:
            reason = f"{key}={rule} does not verify drafts and never serves"
            return Gate(name="not_synthetic", passed=False, reason=reason)
    return Gate(name="not_synthetic", passed=True, reason="drafts are verified by the target")


def soak_gate(block: Block) -> Gate:
    """Return whether an engine under as many requests as it may run answers them all, and right.

    Args:
        block: One block through the production path; whether it has a score does not matter.
    """
    faults = [item for item in block.invalid if item.kind in _SOAK_FAULTS]
    at = f"{block.cell.streams} requests at a time"
    if block.num_failed:
        first = next(iter(block.errors), "no reason is known")
        reason = f"at {at}, {block.num_failed} failed: {first}"
        return Gate(name=SOAK_GATE, passed=False, reason=reason, required=True)
    if faults:
        reason = f"at {at}, " + "; ".join(f"{item.kind}: {item.detail}" for item in faults)
        return Gate(name=SOAK_GATE, passed=False, reason=reason, required=True)
    if not block.num_requests:
        reason = f"at {at}, no request ended"
        return Gate(name=SOAK_GATE, passed=None, reason=reason, required=True)
    reason = f"at {at}, all {block.num_requests} were answered"
    if block.num_refused:
        reason += f", {block.num_refused} after a refusal"
    return Gate(name=SOAK_GATE, passed=True, reason=reason, required=True)


def _non_inferiority(
    name: str,
    cells: Mapping[str, tuple[Contrast, str]],
    *,
    margin: float,
    limit: str,
    required: bool,
) -> Gate:
    judged = {key: _inferior(contrast, margin) for key, (contrast, _) in cells.items()}
    failed = [f"{key}: {cells[key][1]}" for key, inferior in judged.items() if inferior]
    if failed:
        reason = f"beyond {limit}: {'; '.join(failed)}"
        return Gate(name=name, passed=False, reason=reason, required=required)
    unknown = [f"{key}: {cells[key][1]}" for key, inferior in judged.items() if inferior is None]
    if unknown:
        reason = f"not shown that {limit} is excluded: {'; '.join(unknown)}"
        return Gate(name=name, passed=None, reason=reason, required=required)
    reason = f"the intervals of {len(cells)} cells exclude {limit}"
    return Gate(name=name, passed=True, reason=reason, required=required)


def _inferior(contrast: Contrast, margin: float) -> bool | None:
    if contrast.log_ratio is None or contrast.low is None or contrast.high is None:
        return None
    if contrast.high <= margin:
        return False
    return True if contrast.log_ratio > margin and contrast.low > 0 else None


def _ttft_words(contrast: Contrast) -> str:
    if contrast.log_ratio is None or contrast.low is None or contrast.high is None:
        return f"no interval ({contrast.reason})"
    return (
        f"{math.exp(contrast.log_ratio):.2f} times as long ({100 * contrast.confidence:g} % "
        f"interval {factor_of(contrast.low):.2f} to {factor_of(contrast.high):.2f})"
    )


def _with_examples(reason: str, blocks: Sequence[Block]) -> str:
    invalid = [block for block in blocks if not block.is_valid]
    if not invalid:
        return reason
    return f"{reason}; for example {invalid[0].cell.key}: {invalid[0].invalid_reason}"
