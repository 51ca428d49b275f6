"""Whether the cells of one boot can all be true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.core.formulas import acceptance_length, pooled
from orchestrator.core.types import Block, Cell, Invalid, Invalidity

MAX_SCALING = 2.2
"""Largest factor of throughput for twice the streams: a step serves them all at best for free, and
10 % is left for noise."""


def check_scaling(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """Return the blocks of one boot, those marked that contradict each other by their scaling.

    Twice the streams cannot give more than twice the throughput: either the smaller cell was
    disturbed or the larger one counts what is not its own. Which one is not known, so both are
    marked. Where both cells know their acceptance length it is taken out first, since it varies
    with the text by more than the limit leaves room for.
    """
    rates = _rates(blocks)
    reasons: dict[Cell, Invalidity] = {}
    for cell, rate in rates.items():
        double = replace(cell, streams=2 * cell.streams)
        if cell.is_open_loop or double not in rates:
            continue
        factor = _factor(rate, rates[double])
        if factor > MAX_SCALING:
            detail = (
                f"{double.key} has {factor:.2f} times the throughput of {cell.key} with twice the "
                f"streams (limit {MAX_SCALING:g}): one of them is wrong"
            )
            reasons[cell] = reasons[double] = Invalidity(kind=Invalid.SCALING, detail=detail)
    return tuple(
        replace(block, invalid=(reasons[block.cell],))
        if block.is_valid and block.cell in reasons
        else block
        for block in blocks
    )


@dataclass(frozen=True, slots=True)
class _Rate:
    """Throughput of one cell, and its acceptance length where that is known."""

    tokens_per_s: float
    length: float | None


def _rates(blocks: Sequence[Block]) -> dict[Cell, _Rate]:
    rates: dict[Cell, _Rate] = {}
    for cell in {block.cell for block in blocks}:
        own = [block for block in blocks if block.cell == cell and block.is_valid]
        tokens = sum(block.output_tokens for block in own)
        if not tokens:
            continue
        length = acceptance_length(pooled([block.counters for block in own]))
        rates[cell] = _Rate(tokens / sum(block.duration_s for block in own), length)
    return rates


def _factor(single: _Rate, double: _Rate) -> float:
    factor = double.tokens_per_s / single.tokens_per_s
    if single.length is None or double.length is None:
        return factor
    return factor * single.length / double.length
