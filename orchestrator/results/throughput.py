"""Comparing by tokens / s alone, boots as observations: what rows without counters allow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from orchestrator.core.boot_model import BootFit, BootScore, fit_boots
from orchestrator.core.effects import pair
from orchestrator.core.estimate import Contrast
from orchestrator.core.formulas import acceptance_length, pooled
from orchestrator.core.promotion import Gate, GateSettings, cells_gate
from orchestrator.core.proof_gates import Proofs
from orchestrator.core.types import Arm, Cell
from orchestrator.results.boots import RowBoot
from orchestrator.results.question import CellLine, Outcome, Place

SAME_SPEED = 0.01
"""Arms within this share of each other are one for any user: told apart or not, no difference."""


def fit_objective(boots: Sequence[RowBoot], weights: Mapping[Cell, float]) -> BootFit | None:
    """Return the model of the boots that have every weighted cell; None without any."""
    scores = [
        BootScore(arm=boot.arm, boot=boot.name, log_score=math.log(seconds))
        for boot in boots
        if weights and (seconds := boot.objective(weights))
    ]
    return fit_boots(scores) if scores else None


def rank(
    boots: Sequence[RowBoot], fit: BootFit | None, reference: Arm | None, confidence: float
) -> tuple[Place, ...]:
    """Return all arms, the fastest first, each against the reference."""
    arms = list(dict.fromkeys(boot.arm for boot in boots))
    places = []
    for arm in arms:
        is_scored = fit is not None and arm in fit.means
        contrast = None
        if fit is not None and is_scored and reference in fit.means and arm != reference:
            assert reference is not None
            contrast = pair(fit, arm, reference, confidence=confidence)
        places.append(
            Place(
                arm=arm,
                seconds=math.exp(fit.means[arm]) if fit is not None and is_scored else None,
                contrast=contrast,
                num_boots=fit.num_boots[arm] if fit is not None and is_scored else 0,
                num_rows=sum(len(boot.rows) for boot in boots if boot.arm == arm),
            )
        )
    return tuple(sorted(places, key=lambda item: (item.seconds is None, item.seconds or 0.0)))


def conclude(
    fit: BootFit, reference: Arm, confidence: float
) -> tuple[Outcome, Arm | None, list[str]]:
    """Return the outcome, the winner, and the sentences that say it.

    The best of k challengers was picked by the rows that are to prove it, so its interval is
    widened to hold for all k at a time (Bonferroni).
    """
    best = min(fit.means, key=lambda arm: fit.means[arm])
    challengers = [arm for arm in fit.means if arm != reference]
    if not challengers:
        return "cannot_tell", None, [f"{reference.label} is the only arm in these cells."]
    missed = (1 - confidence) / len(challengers)
    # To the digits that are printed, and never to 1.
    level = round(1 - missed, max(4, 2 - math.floor(math.log10(missed))))
    if best == reference:
        text = f"{reference.label} is the fastest of {len(fit.means)} arms."
        closest = min(challengers, key=lambda arm: fit.means[arm])
        words = pair(fit, closest, reference, confidence=level).in_words
        return "keep", reference, [text, f"{closest.label} comes closest: {words}."]
    contrast = pair(fit, best, reference, confidence=level)
    text = f"{best.label} against {reference.label}: {contrast.in_words}."
    widened = (
        f"The interval is of {100 * level:g} %, so that it holds although {best.label} was "
        f"picked as the best of {len(challengers)} by these very rows."
    )
    said = [text, *([widened] if len(challengers) > 1 and contrast.low is not None else [])]
    if contrast.low is None or contrast.high is None:
        return "cannot_tell", None, said
    if contrast.high < 0:
        return "winner", best, said
    if max(-contrast.low, contrast.high) <= math.log1p(SAME_SPEED):
        return "no_difference", None, [*said, f"They are within {SAME_SPEED:.0%} of each other."]
    return "cannot_tell", None, [*said, f"These rows cannot tell {best.label} from it."]


def cell_lines(
    boots: Sequence[RowBoot], reference: Arm | None, confidence: float
) -> tuple[CellLine, ...]:
    """Return every arm in every cell, each against the reference there."""
    cells = sorted({row.cell for boot in boots for row in boot.rows})
    return tuple(line for cell in cells for line in _cell(boots, cell, reference, confidence))


def cell_contrasts(
    lines: Sequence[CellLine], arm: Arm, reference: Arm, cells: Sequence[Cell]
) -> dict[Cell, Contrast]:
    """Return the arm's contrasts with the reference in these cells."""
    return {
        line.cell: line.contrast
        for line in lines
        if line.arm == arm
        and line.base == reference
        and line.contrast is not None
        and line.cell in cells
    }


def throughput_gates(
    contrast: Contrast | None, contrasts: Mapping[Cell, Contrast], arm: Arm
) -> tuple[Gate, ...]:
    """Return the gates as far as rows of tokens / s can answer them."""
    shown = None if contrast is None or contrast.high is None else contrast.high < 0
    words = "no interval" if contrast is None else contrast.in_words
    return (
        Gate(name="better", passed=shown, reason=words, required=True),
        cells_gate(contrasts, GateSettings()),
        *unanswered_gates(arm),
    )


def unanswered_gates(arm: Arm) -> tuple[Gate, ...]:
    """Return the gates that rows cannot answer, each with what would."""
    missing = {
        "kv": "rows do not say what the KV cache holds: engine_facts.json of a trial does",
        "ttft": "asked of a study, with policy.ttft_tolerance",
        "in_force": f"rows do not prove that {arm.label} was in force in the engine",
    }
    gates = [Gate(name=name, passed=None, reason=text) for name, text in missing.items()]
    return (*gates, *Proofs().gates(arm))


def _cell(
    boots: Sequence[RowBoot], cell: Cell, reference: Arm | None, confidence: float
) -> Iterator[CellLine]:
    scores = [
        BootScore(arm=boot.arm, boot=boot.name, log_score=math.log(seconds))
        for boot in boots
        if (seconds := boot.seconds_per_token(cell))
    ]
    if not scores:
        return
    fit = fit_boots(scores)
    order = sorted(fit.means, key=lambda arm: fit.means[arm])
    base = reference if reference in fit.means else order[-1]
    assert base is not None
    for arm in order:
        rows = [
            row
            for boot in boots
            if boot.arm == arm
            for row in boot.rows
            if row.cell == cell and row.is_valid
        ]
        blocks = [row.block for row in rows if row.block is not None and row.has_counters]
        counted = blocks and len(blocks) == len(rows) and not arm.is_baseline
        yield CellLine(
            cell=cell,
            arm=arm,
            tok_s=cell.streams / math.exp(fit.means[arm]),
            runs=tuple(row.tok_s for row in rows if row.tok_s is not None),
            length=acceptance_length(pooled([b.counters for b in blocks])) if counted else None,
            given_lengths=tuple(r.given_length for r in rows if r.given_length is not None),
            contrast=None if arm == base else pair(fit, arm, base, confidence=confidence),
            base=base,
        )
