"""Whether a measured block may count."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.core.formulas import acceptance_rate_per_position
from orchestrator.core.types import Arm, Block

_TOKEN_TOLERANCE = 0.01
"""Largest relative distance between the engine's and the client's generated tokens."""
_FEWEST_DRAFTS = 100
"""Drafts below which an acceptance of 0 may be chance: 0.95 ** 100 is 0.6 %."""
_POOR_FIRST_POSITION = 0.1


def check_block(block: Block, arm: Arm, *, max_failed_share: float = 0.0) -> str | None:
    """Return why the block gets no score, in one sentence, or None for a valid block.

    Args:
        block: The block as measured.
        arm: The arm that served it.
        max_failed_share: Largest share of failed requests that a block may have, 0 to 1.
    """
    return (
        _failed_requests(block, max_failed_share)
        or _foreign_traffic(block)
        or _drafting(block, arm)
        or _acceptance(block, arm)
    )


def draft_doubt(blocks: Sequence[Block]) -> str | None:
    """Return a sentence when the draft itself looks broken, else None.

    A first position that accepts under 10 % speaks of a wrong draft, not of speculation.
    """
    drafts = sum(block.counters.num_drafts or 0.0 for block in blocks)
    first = sum((block.counters.num_accepted_tokens_per_pos or (0.0,))[0] for block in blocks)
    if drafts < _FEWEST_DRAFTS or first / drafts >= _POOR_FIRST_POSITION:
        return None
    return (
        f"the first draft position is accepted in {first / drafts:.1%} of {drafts:.0f} drafts: "
        "draft broken? (a wrong or mismatched draft, rather than speculation that does not help)"
    )


def _failed_requests(block: Block, max_failed_share: float) -> str | None:
    if block.num_requests < 1:
        return "no request ended in the block"
    if block.num_failed / block.num_requests > max_failed_share:
        return f"{block.num_failed} of {block.num_requests} requests failed"
    if block.output_tokens <= 0:
        return "the block has no output tokens"
    return None


def _foreign_traffic(block: Block) -> str | None:
    engine = block.counters.generation_tokens
    if engine is None:
        return (
            "the engine does not publish vllm:generation_tokens, "
            "so other traffic cannot be ruled out"
        )
    share = abs(engine - block.output_tokens) / block.output_tokens
    if share <= _TOKEN_TOLERANCE:
        return None
    return (
        f"the engine generated {engine:.0f} tokens and the client received {block.output_tokens}, "
        f"{share:.1%} apart: other traffic, or lost answers"
    )


def _drafting(block: Block, arm: Arm) -> str | None:
    drafts = block.counters.num_drafts
    if arm.is_baseline:
        if drafts:
            return f"the engine drafted {drafts:.0f} times although the arm does not speculate"
        return None
    if drafts is None or block.counters.num_accepted_tokens is None:
        return "the engine does not publish vllm:spec_decode counters although the arm speculates"
    if drafts == 0:
        return "the engine drafted nothing although the arm speculates"
    return None


def _acceptance(block: Block, arm: Arm) -> str | None:
    if arm.is_baseline:
        return None
    drafts, accepted = block.counters.num_drafts, block.counters.num_accepted_tokens
    assert drafts is not None
    if accepted == 0 and drafts >= _FEWEST_DRAFTS:
        return f"{drafts:.0f} drafts and no accepted token: draft or engine is broken"
    return _rising_rates(block)


def _rising_rates(block: Block) -> str | None:
    by_position = acceptance_rate_per_position(block.counters) or ()
    rates = [rate for rate in by_position if rate is not None]
    for position in range(1, len(rates)):
        if rates[position] > rates[position - 1]:
            return (
                f"the acceptance rate rises from {rates[position - 1]:.3f} to "
                f"{rates[position]:.3f} at draft position {position}; accepted tokens are a "
                "prefix under every rule, so the counters are corrupt"
            )
    return None
