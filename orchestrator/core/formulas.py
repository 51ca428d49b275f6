"""The measured quantities, one function each. Undefined is None, never 0."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from orchestrator.core.types import Block, CounterSnapshot

MAX_FACTOR = 1e6
"""A bound of a ratio above this says no more than infinity."""
_ADDED = (
    *("generation_tokens", "prompt_tokens", "num_drafts", "num_draft_tokens"),
    *("num_accepted_tokens", "prefix_cache_queries", "prefix_cache_hits", "num_preemptions"),
)
"""Counters of a difference that are numbers; gauges have none."""


def pooled(deltas: Sequence[CounterSnapshot]) -> CounterSnapshot:
    """Return the counters of several windows as those of one; what any window lacks is None.

    Positions are added when all windows count equally many, else None.
    """
    positions = [delta.num_accepted_tokens_per_pos for delta in deltas]
    known = [position for position in positions if position is not None]
    same = len(known) == len(positions) and len({len(position) for position in known}) == 1
    sums = {name: _sum(getattr(delta, name) for delta in deltas) for name in _ADDED}
    return CounterSnapshot(
        generation_tokens=sums.pop("generation_tokens"),
        prompt_tokens=sums.pop("prompt_tokens"),
        **sums,
        num_accepted_tokens_per_pos=tuple(map(sum, zip(*known, strict=True))) if same else None,
    )


def stream_seconds(blocks: Iterable[Block]) -> float | None:
    """Return the time that streams were busy in the windows, summed over streams.

    Formula: sum of duration_s * streams; in the open loop, where the load decides how many
    requests run, duration_s * effective_concurrency.

    Returns:
        Seconds; None when the engine's gauge is not known of a block of the open loop.
    """
    total = 0.0
    for block in blocks:
        cell = block.cell
        running = block.effective_concurrency if cell.is_open_loop else cell.streams
        if running is None:
            return None
        total += block.duration_s * running
    return total


def acceptance_length(delta: CounterSnapshot) -> float | None:
    """Return the mean tokens emitted per verification step, the bonus token counted.

    Formula: 1 + num_accepted_tokens / num_drafts. In [1, num_speculative_tokens + 1].

    Returns:
        Tokens per step, or None when nothing was drafted.
    """
    if delta.num_accepted_tokens is None or not delta.num_drafts:
        return None
    return 1 + delta.num_accepted_tokens / delta.num_drafts


def acceptance_rate(delta: CounterSnapshot) -> float | None:
    """Return the share of drafted tokens that was accepted, 0 to 1; None when none was drafted.

    Formula: num_accepted_tokens / num_draft_tokens.
    """
    if delta.num_accepted_tokens is None or not delta.num_draft_tokens:
        return None
    return delta.num_accepted_tokens / delta.num_draft_tokens


def acceptance_rate_per_position(delta: CounterSnapshot) -> tuple[float | None, ...] | None:
    """Return the unconditional acceptance rates by position, each 0 to 1.

    Formula: num_accepted_tokens_per_pos[i] / num_drafts. Their sum + 1 is the acceptance length.

    Returns:
        [num_speculative_tokens]; every entry None when nothing was drafted; None when the engine
        publishes no positions.
    """
    if delta.num_accepted_tokens_per_pos is None:
        return None
    drafts = delta.num_drafts
    return tuple(
        accepted / drafts if drafts else None for accepted in delta.num_accepted_tokens_per_pos
    )


def output_throughput(tokens: float | None, seconds: float) -> float | None:
    """Return output tokens / s of all streams by wall; None without tokens or time."""
    if not tokens or seconds <= 0:
        return None
    return tokens / seconds


def step_time_s(
    delta: CounterSnapshot,
    *,
    busy_s: float | None,
    output_tokens: int,
    speculates: bool,
) -> float | None:
    """Return the wall seconds of one engine step.

    Formula: busy_s / num_drafts where the arm speculates and busy_s / output_tokens where it does
    not: each stream drafts once a step, or emits one token.

    Args:
        delta: Counters over the window.
        busy_s: ``stream_seconds`` of the window; None where it is not known.
        output_tokens: Output tokens of all streams in the window.
        speculates: Whether the arm drafts.

    Returns:
        Seconds, or None when no step was counted or the busy time is not known.
    """
    stream_steps = delta.num_drafts if speculates else output_tokens
    if not stream_steps or busy_s is None or busy_s <= 0:
        return None
    return busy_s / stream_steps


def quantile(values: Sequence[float], q: float) -> float | None:
    """Return the q-quantile (linear between order statistics); None without values."""
    return float(np.quantile(values, q)) if len(values) else None


def _sum(values: Iterable[float | None]) -> float | None:
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def factor_of(log_factor: float) -> float:
    """Return exp(log_factor); infinite above MAX_FACTOR, as bounds from very few boots can be."""
    return math.inf if log_factor > math.log(MAX_FACTOR) else math.exp(log_factor)
