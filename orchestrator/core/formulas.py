"""The measured quantities, one function each. Undefined is None, never 0."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from orchestrator.core.types import CounterSnapshot


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


def stream_throughput(tokens: float | None, seconds: float, *, streams: int) -> float | None:
    """Return output tokens / s of one user: output throughput / streams; None without data."""
    throughput = output_throughput(tokens, seconds)
    return None if throughput is None else throughput / streams


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
