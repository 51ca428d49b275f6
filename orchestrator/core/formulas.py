"""The measured quantities, one function each. Undefined is None, never 0."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from orchestrator.core.types import CounterSnapshot


def pooled(deltas: Sequence[CounterSnapshot]) -> CounterSnapshot:
    """Return the counters of several windows as those of one; what any window lacks is None.

    Positions are added when all windows count equally many, else None.
    """
    positions = [delta.num_accepted_tokens_per_pos for delta in deltas]
    known = [position for position in positions if position is not None]
    same = len(known) == len(positions) and len({len(position) for position in known}) == 1
    return CounterSnapshot(
        generation_tokens=_sum(delta.generation_tokens for delta in deltas),
        prompt_tokens=_sum(delta.prompt_tokens for delta in deltas),
        num_drafts=_sum(delta.num_drafts for delta in deltas),
        num_draft_tokens=_sum(delta.num_draft_tokens for delta in deltas),
        num_accepted_tokens=_sum(delta.num_accepted_tokens for delta in deltas),
        num_accepted_tokens_per_pos=tuple(map(sum, zip(*known, strict=True))) if same else None,
    )


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
    duration_s: float,
    streams: int,
    output_tokens: int,
    speculates: bool,
) -> float | None:
    """Return the wall seconds of one engine step.

    Formula: duration_s / steps, with steps = num_drafts / streams where the arm speculates and
    output_tokens / streams where it does not: each stream drafts once a step, or emits one token.

    Returns:
        Seconds, or None when no step was counted.
    """
    stream_steps = delta.num_drafts if speculates else output_tokens
    if not stream_steps or duration_s <= 0:
        return None
    return duration_s * streams / stream_steps


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
