"""Whether a measured block may count, and if not, every reason why."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.core.formulas import acceptance_length, acceptance_rate_per_position
from orchestrator.core.node_state import Fitness, NodeVerdict
from orchestrator.core.token_checks import check_counts, check_tokens
from orchestrator.core.types import Arm, Block, Invalid, Invalidity

MAX_FAILED_SHARE = 0.1
"""Largest share of failed requests: one reset among sixteen streams is no reason to lose a cell."""
MAX_CACHED_SHARE = 0.5
"""Largest share of prompt tokens from the prefix cache. What stands before the salt is in every
prompt: 10 to 20 % with a chat template or tools. A prompt that is measured again is nearly all of
it cached."""
MIN_RUNNING_SHARE = 0.8
"""Of the cell's streams, what the engine must have been seen running at least once. Not the mean:
between two answers of a stream lies a round trip, which is long against the answers of a toy."""
MAX_WAITING_SHARE = 0.25
"""Of the cell's streams, the most that may wait for their turn on average; a prompt waits for the
prefill of another as a matter of course."""
MIN_ASKING_SHARE = 0.75
"""Of the cell's streams, what the client must have had under way on average; the rest is the way
from one answer to the next question."""
MIN_ASKING_SHARE_FAILED = 0.95
"""The same where requests were refused or failed, whose streams then wait or hang."""
BACKLOG_SIGMAS = 2.0
"""Arrivals beyond those served, in standard deviations of a Poisson count; a steady open loop
gains and loses only as many as are under way."""
_FEWEST_DRAFTS = 100
"""Drafts below which an acceptance of 0 may be chance: 0.95 ** 100 is 0.6 %."""
_POOR_FIRST_POSITION = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectations:
    """What a block is held against."""

    arm: Arm | None = None
    """The arm that was booted; None for a server of which nothing is known."""
    needs_counters: bool = True
    """Whether a block without the engine's counters is worth nothing."""
    allows_cache: bool = False
    """Whether prompts may come from the prefix cache."""


def find_invalid(block: Block, expected: Expectations) -> tuple[Invalidity, ...]:
    """Return every reason why the block gets no score; empty for a valid block.

    What only a study can know (texts, other cells, a restart) is added by the caller.
    """
    if block.duration_s <= 0:
        return (*_requests(block), *_node(block.node))
    checks: tuple[Callable[[Block, Expectations], Iterator[Invalidity]], ...] = (
        lambda item, _: _requests(item),
        lambda item, rules: check_counts(item, needs_counters=rules.needs_counters),
        lambda item, _: check_tokens(item),
        _drafting,
        lambda item, _: _acceptance(item),
        lambda item, _: _concurrency(item),
        _cached,
        lambda item, _: _node(item.node),
    )
    return tuple(found for check in checks for found in check(block, expected))


def draft_doubt(blocks: Sequence[Block]) -> str | None:
    """Return a sentence when the draft itself looks broken, else None.

    A first position that accepts under 10 % speaks of a wrong draft, not of speculation. Blocks
    without counters by position say nothing.
    """
    counted = [
        (block.counters.num_drafts, block.counters.num_accepted_tokens_per_pos[0])
        for block in blocks
        if block.counters.num_drafts and block.counters.num_accepted_tokens_per_pos
    ]
    drafts, first = (sum(values) for values in zip((0.0, 0.0), *counted, strict=True))
    if drafts < _FEWEST_DRAFTS or first / drafts >= _POOR_FIRST_POSITION:
        return None
    return (
        f"the first draft position is accepted in {first / drafts:.1%} of {drafts:.0f} drafts: "
        "draft broken? (a wrong or mismatched draft, rather than speculation that does not help)"
    )


def _requests(block: Block) -> Iterator[Invalidity]:
    def reason(detail: str) -> Invalidity:
        return Invalidity(kind=Invalid.REQUESTS, detail=detail)

    example = f", for example: {next(iter(block.errors))}" if block.errors else ""
    done = block.num_requests - block.num_refused
    if done < 1:
        refused = f", {block.num_refused} refused" if block.num_refused else ""
        yield reason(f"no request was answered{refused}{example}")
    elif block.num_failed / done > MAX_FAILED_SHARE:
        yield reason(f"{block.num_failed} of {done} requests failed{example}")
    if block.num_lost_streams:
        streams = f"{block.num_lost_streams} stream{'s' * (block.num_lost_streams != 1)}"
        lost = f"{streams} gave up after failures in a row"
        yield reason(f"{lost}{example}")
    if block.num_delayed:
        yield reason(
            f"{block.num_delayed} arrivals found all {block.cell.streams} connections busy: "
            "the load is not open"
        )
    if block.duration_s <= 0 and not block.num_lost_streams:
        yield reason(f"the window never opened: not every stream was busy at one time{example}")


def _drafting(block: Block, expected: Expectations) -> Iterator[Invalidity]:
    arm, drafts = expected.arm, block.counters.num_drafts
    if arm is None or block.audit.engine_window is None:
        return
    problem = None
    if arm.is_baseline:
        if drafts:
            problem = f"the engine drafted {drafts:.0f} times although the arm does not speculate"
    elif drafts is None or block.counters.num_accepted_tokens is None:
        problem = "the engine does not publish vllm:spec_decode counters; the arm speculates"
    elif drafts == 0:
        problem = "the engine drafted nothing although the arm speculates"
    else:
        length = acceptance_length(block.counters)
        most = arm.num_speculative_tokens + 1
        if length is not None and length > most:
            problem = f"{length:.3f} tokens a step are more than {most}, the depth and one"
    if problem is not None:
        yield Invalidity(kind=Invalid.ACCEPTANCE, detail=problem)


def _acceptance(block: Block) -> Iterator[Invalidity]:
    counters = block.counters
    drafts, accepted = counters.num_drafts, counters.num_accepted_tokens
    if not drafts or accepted is None:
        return
    problem = None
    if accepted == 0 and drafts >= _FEWEST_DRAFTS:
        problem = f"{drafts:.0f} drafts and no accepted token; draft or engine is broken"
    elif counters.num_draft_tokens is not None and accepted > counters.num_draft_tokens:
        problem = (
            f"{accepted:.0f} tokens were accepted of {counters.num_draft_tokens:.0f} drafted: "
            "the counters are corrupt"
        )
    problem = problem or _rising_rates(block)
    if problem is not None:
        yield Invalidity(kind=Invalid.ACCEPTANCE, detail=problem)


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


def _concurrency(block: Block) -> Iterator[Invalidity]:
    if block.cell.is_open_loop:
        yield from _backlog(block)
        return
    streams = block.cell.streams
    asking = block.client_concurrency
    has_trouble = block.num_refused or block.num_failed
    fewest = MIN_ASKING_SHARE_FAILED if has_trouble else MIN_ASKING_SHARE
    if asking is not None and asking < fewest * streams:
        yield Invalidity(
            kind=Invalid.CONCURRENCY,
            detail=f"{asking:.1f} of {streams} streams were being answered on average: the others "
            "were refused, had failed or had stalled",
        )
    running, waiting = block.most_running, block.mean_waiting or 0.0
    if running is None:
        return
    if running > streams:
        yield Invalidity(
            kind=Invalid.CONTAMINATED,
            detail=f"the engine ran {running:.0f} requests at a time and the client has {streams} "
            "streams: other traffic",
        )
    elif streams > 1 and (
        running < MIN_RUNNING_SHARE * streams or waiting > MAX_WAITING_SHARE * streams
    ):
        yield Invalidity(
            kind=Invalid.CONCURRENCY,
            detail=f"the engine ran {running:.0f} of {streams} streams at most and let "
            f"{waiting:.1f} wait: max_num_seqs, the KV cache or the path to it holds them back",
        )


def _backlog(block: Block) -> Iterator[Invalidity]:
    """Find an open loop that is no steady state: more arrives than is served."""
    arrived, served = len(block.ttft_s), len(block.tpot_s)
    if arrived - served > BACKLOG_SIGMAS * math.sqrt(arrived) + 2:
        yield Invalidity(
            kind=Invalid.CONCURRENCY,
            detail=f"{arrived} requests arrived in the window and {served} were served: the rate "
            f"of {block.cell.request_rate:g}/s is above the capacity, and times grow with the "
            "window",
        )


def _cached(block: Block, expected: Expectations) -> Iterator[Invalidity]:
    if expected.allows_cache:
        return
    counters = block.counters
    pairs = (
        (block.cached_tokens, block.prompt_tokens, "usage"),
        (counters.prefix_cache_hits, counters.prefix_cache_queries, "the engine's counters"),
    )
    for hits, asked, source in pairs:
        if hits is not None and asked and hits / asked > MAX_CACHED_SHARE:
            yield Invalidity(
                kind=Invalid.CACHED,
                detail=f"{hits / asked:.1%} of the prompt tokens came from the prefix cache by "
                f"{source}, and the study does not ask for it",
            )
            return


def _node(verdict: NodeVerdict | None) -> Iterator[Invalidity]:
    if verdict is not None and verdict.fitness is Fitness.UNFIT:
        yield Invalidity(kind=Invalid.NODE, detail=verdict.reason)
