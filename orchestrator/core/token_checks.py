"""Whether client and engine agree on the tokens of a block, and the engine with itself."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.core.types import Block, Invalid, Invalidity

TOKEN_TOLERANCE = 0.01
"""Largest relative distance between the engine's and the client's output tokens."""
MAX_SHORT_SHARE = 0.1
"""Largest share of answers that ended early although ends were to be ignored."""
STEP_TOLERANCE = 0.05
"""Largest relative distance between acceptance length / step time and the throughput."""
MAX_EDGE_SHARE = 0.2
"""Largest share of the window's tokens that may have moved while its edges were read: half of it
is how wrong the window's length may be."""
MIN_TOKENS_PER_STREAM = 16
"""Fewest tokens of a stream that make a window; a step or two more or less count for too much."""
PROMPT_TOLERANCE = 0.05
"""Largest relative distance of the prompt tokens; engines differ in what they count of a prompt
that they preempted."""
_UNDRAFTED_PER_REQUEST = 2
"""Tokens of a request without a draft: the prefill's, and the last where no draft fits."""


def short_answers(num_short: int, num_answers: int) -> Iterator[Invalidity]:
    """Yield a reason when too many answers ended before ``max_tokens`` under ``ignore_eos``."""
    if num_answers and num_short / num_answers > MAX_SHORT_SHARE:
        yield Invalidity(
            kind=Invalid.TRUNCATED,
            detail=f"{num_short} of {num_answers} answers are shorter than max_tokens although "
            "ends are ignored: the context is too small for prompt and answer",
        )


def uncounted_answers(num_uncounted: int, num_answers: int) -> Iterator[Invalidity]:
    """Yield a reason when tokens of too many answers were counted by nobody.

    Their tokens lack in the throughput, and without the engine's counters nothing else shows it.
    Where no answer was counted, ``find_invalid`` says so.
    """
    if num_uncounted < num_answers and num_uncounted > TOKEN_TOLERANCE * num_answers:
        yield Invalidity(
            kind=Invalid.TOKENS,
            detail=f"{num_uncounted} of {num_answers} answers carry neither usage nor another "
            "count of their tokens",
        )


def excess_answers(num_excess: int, num_answers: int) -> Iterator[Invalidity]:
    """Yield a reason when answers hold more tokens than were asked for: the counts are wrong."""
    if num_excess:
        yield Invalidity(
            kind=Invalid.TOKENS,
            detail=f"{num_excess} of {num_answers} answers hold more tokens than max_tokens by "
            "their usage: the server counts something else, or ignores max_tokens",
        )


def check_counts(block: Block, *, needs_counters: bool) -> Iterator[Invalidity]:
    """Yield what is not counted at all, or too little of it."""
    if block.audit.engine_window is None and needs_counters:
        yield Invalidity(
            kind=Invalid.COUNTERS,
            detail="the engine's vllm:generation_tokens is not known, so other traffic cannot be "
            "ruled out",
        )
    fewest = MIN_TOKENS_PER_STREAM * (1 if block.cell.is_open_loop else block.cell.streams)
    if 0 < block.output_tokens < fewest:
        yield Invalidity(
            kind=Invalid.TOKENS,
            detail=f"{block.output_tokens} output tokens in {block.duration_s:.2f} s are too few "
            f"to measure by ({fewest} are the least): the window is too short",
        )
    if block.output_tokens <= 0:
        yield Invalidity(
            kind=Invalid.TOKENS,
            # A number first: "tokens: the ..." reads as a secret where texts are redacted.
            detail="0 output tokens were counted by the client in the window: the answers carry no "
            "usage, or none came",
        )


def check_tokens(block: Block) -> Iterator[Invalidity]:
    """Compare both sides' tokens, and the engine's with its steps.

    Where the totals differ the rest would only repeat it: other traffic is in the window too.
    """
    apart = [*_totals(block), *_prompts(block)]
    yield from apart or (*_edges(block), *_window(block), *_step_time(block))


def _totals(block: Block) -> Iterator[Invalidity]:
    """Compare the counts between two idle moments; nothing is on its way there."""
    audit = block.audit
    if audit.engine_total is None or audit.client_total <= 0:
        return
    engine, client = audit.engine_total, audit.client_total
    share = f"{abs(engine - client) / client:.1%} apart"
    counts = f"the engine generated {engine:.0f} tokens and the client received {client}, {share}"
    if engine > client * (1 + TOKEN_TOLERANCE) + audit.unknown_total:
        yield Invalidity(kind=Invalid.CONTAMINATED, detail=f"{counts}: other traffic")
    elif engine < client * (1 - TOKEN_TOLERANCE):
        yield Invalidity(
            kind=Invalid.TOKENS,
            detail=f"{counts}: the counters are of another engine, or usage is wrong",
        )


def _prompts(block: Block) -> Iterator[Invalidity]:
    """Compare the prompt tokens between two idle moments: other traffic may be all prefill."""
    engine, client = block.audit.engine_prompts, block.audit.client_prompts
    if engine is None or not client:
        return
    if engine > client * (1 + PROMPT_TOLERANCE) + block.audit.unknown_prompts:
        yield Invalidity(
            kind=Invalid.CONTAMINATED,
            detail=f"the engine took {engine:.0f} prompt tokens and the client sent {client}: "
            "other traffic",
        )


def _edges(block: Block) -> Iterator[Invalidity]:
    edge = block.audit.edge_tokens
    # With a few tokens a stream every chunk is at an edge; the window is then too short, and
    # check_counts says so.
    if edge > MAX_EDGE_SHARE * block.output_tokens > 0:
        yield Invalidity(
            kind=Invalid.COUNTERS,
            detail=f"{edge} of the window's {block.output_tokens} tokens moved while its edges "
            "were read: the engine's counters answer too slowly, or the window is too short",
        )


def _window(block: Block) -> Iterator[Invalidity]:
    """Compare the counts of the window; what moved while its edges were read may be on either."""
    engine, client = block.audit.engine_window, block.output_tokens
    if engine is None or client <= 0:
        return
    room = client * TOKEN_TOLERANCE + block.audit.edge_tokens + block.audit.unknown_total
    if abs(engine - client) > room:
        yield Invalidity(
            kind=Invalid.TOKENS,
            detail=f"{engine:.0f} tokens were generated by the engine within the window and "
            f"{client} received by the client; {block.audit.edge_tokens} were on their way at its "
            "edges",
        )


def _step_time(block: Block) -> Iterator[Invalidity]:
    """Compare acceptance length / step time with the throughput: both are the engine's tokens."""
    engine, drafts = block.audit.engine_window, block.counters.num_drafts
    accepted = block.counters.num_accepted_tokens
    if not engine or not drafts or accepted is None:
        return
    by_steps = drafts + accepted
    undrafted = _UNDRAFTED_PER_REQUEST * (len(block.ttft_s) + len(block.tpot_s))
    if abs(engine - by_steps) > STEP_TOLERANCE * engine + undrafted:
        yield Invalidity(
            kind=Invalid.STEP_TIME,
            detail=f"{drafts:.0f} steps and {accepted:.0f} accepted tokens make {by_steps:.0f} "
            f"tokens, and the engine generated {engine:.0f}: acceptance length / step time is not "
            "the throughput",
        )
