"""Whether a measured block may count, and if not, every reason why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from orchestrator.core.formulas import acceptance_length, acceptance_rate_per_position, pooled
from orchestrator.core.types import (
    Arm,
    Block,
    Cell,
    Fitness,
    Invalid,
    Invalidity,
    NodeVerdict,
)

TOKEN_TOLERANCE = 0.01
"""Largest relative distance between the engine's and the client's output tokens."""
MAX_FAILED_SHARE = 0.1
"""Largest share of failed requests: one reset among sixteen streams is no reason to lose a cell."""
MAX_CACHED_SHARE = 0.05
"""Largest share of prompt tokens from the prefix cache; a chat template's first block is normal."""
MAX_SHORT_SHARE = 0.1
"""Largest share of answers that ended early although ends were to be ignored."""
MIN_RUNNING_SHARE = 0.8
"""Of the cell's streams, what the engine must have been seen running at least once. Not the mean:
between two answers of a stream lies a round trip, which is long against the answers of a toy."""
MAX_WAITING_SHARE = 0.1
"""Of the cell's streams, the most that may wait for their turn on average."""
STEP_TOLERANCE = 0.05
"""Largest relative distance between acceptance length / step time and the throughput."""
MAX_SCALING = 2.2
"""Largest factor of throughput for twice the streams: a step serves them all at best for free, and
10 % is left for noise."""
_FEWEST_DRAFTS = 100
"""Drafts below which an acceptance of 0 may be chance: 0.95 ** 100 is 0.6 %."""
_POOR_FIRST_POSITION = 0.1
_UNDRAFTED_PER_REQUEST = 2
"""Tokens of a request without a draft: the prefill's, and the last where no draft fits."""


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
        _counted,
        lambda item, _: _tokens(item),
        _drafting,
        lambda item, _: _acceptance(item),
        lambda item, _: _concurrency(item),
        _cached,
        lambda item, _: _node(item.node),
    )
    return tuple(found for check in checks for found in check(block, expected))


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


def _counted(block: Block, expected: Expectations) -> Iterator[Invalidity]:
    if block.audit.engine_window is None and expected.needs_counters:
        yield Invalidity(
            kind=Invalid.COUNTERS,
            detail="the engine's vllm:generation_tokens is not known, so other traffic cannot be "
            "ruled out",
        )
    if block.output_tokens <= 0:
        yield Invalidity(
            kind=Invalid.TOKENS,
            detail="the client counted no output tokens in the window: the answers carry no usage, "
            "or none came",
        )


def _tokens(block: Block) -> Iterator[Invalidity]:
    """Compare both sides' tokens, and the engine's with its steps.

    Where the totals differ the rest would only repeat it: other traffic is in the window too.
    """
    apart = list(_totals(block))
    yield from apart or (*_window(block), *_step_time(block))


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


def _window(block: Block) -> Iterator[Invalidity]:
    """Compare the counts of the window; what moved while its edges were read may be on either."""
    engine, client = block.audit.engine_window, block.output_tokens
    if engine is None or client <= 0:
        return
    room = client * TOKEN_TOLERANCE + block.audit.edge_tokens + block.audit.unknown_total
    if abs(engine - client) > room:
        yield Invalidity(
            kind=Invalid.TOKENS,
            detail=f"within the window the engine generated {engine:.0f} tokens and the client "
            f"received {client}; {block.audit.edge_tokens} were on their way at its edges",
        )


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
        problem = f"{drafts:.0f} drafts and no accepted token: draft or engine is broken"
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


def _concurrency(block: Block) -> Iterator[Invalidity]:
    running, streams = block.most_running, block.cell.streams
    if running is None or block.cell.is_open_loop or streams == 1:
        return
    waiting = block.mean_waiting or 0.0
    if running < MIN_RUNNING_SHARE * streams or waiting > MAX_WAITING_SHARE * streams:
        yield Invalidity(
            kind=Invalid.CONCURRENCY,
            detail=f"the engine ran {running:.0f} of {streams} streams at most and let "
            f"{waiting:.1f} wait: max_num_seqs, the KV cache or the path to it holds them back",
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
