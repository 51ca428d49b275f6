"""The measured quantities, one function each. Undefined is None, never 0."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.core.types import CounterSnapshot


def acceptance_length(delta: CounterSnapshot) -> float | None:
    """Return the mean tokens emitted per verification step, the bonus token counted.

    Formula: 1 + num_accepted_tokens / num_drafts. In [1, num_speculative_tokens + 1].

    Returns:
        Tokens per step, or None when nothing was drafted.
    """
    raise NotImplementedError


def acceptance_rate(delta: CounterSnapshot) -> float | None:
    """Return the share of drafted tokens that was accepted, 0 to 1; None when none was drafted.

    Formula: num_accepted_tokens / num_draft_tokens.
    """
    raise NotImplementedError


def acceptance_rate_per_position(delta: CounterSnapshot) -> tuple[float | None, ...] | None:
    """Return the unconditional acceptance rates by position, each 0 to 1.

    Formula: num_accepted_tokens_per_pos[i] / num_drafts. Their sum + 1 is the acceptance length.

    Returns:
        [num_speculative_tokens]; every entry None when nothing was drafted; None when the engine
        publishes no positions.
    """
    raise NotImplementedError


def output_throughput(tokens: float | None, seconds: float) -> float | None:
    """Return output tokens / s of all streams by wall; None without tokens or time."""
    raise NotImplementedError


def stream_throughput(tokens: float | None, seconds: float, *, streams: int) -> float | None:
    """Return output tokens / s of one user: output throughput / streams; None without data."""
    raise NotImplementedError


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
    raise NotImplementedError


def quantile(values: Sequence[float], q: float) -> float | None:
    """Return the q-quantile (linear between order statistics); None without values."""
    raise NotImplementedError
