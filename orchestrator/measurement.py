"""One block, from the load to the judged record: the path that trials and ``measure`` share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from orchestrator.core.checks import Expectations, find_invalid
from orchestrator.core.exposition import EngineCounters, delta, parse_counters
from orchestrator.core.node_health import NodeNeeds, judge
from orchestrator.core.node_state import NodeState
from orchestrator.core.requests import LoadResult, Moment, RequestRecord, Span
from orchestrator.core.token_checks import excess_answers, short_answers, uncounted_answers
from orchestrator.core.types import Block, CounterSnapshot, Invalid, Invalidity
from orchestrator.core.window import (
    audit,
    chunk_gaps,
    concurrency,
    ended_within,
    started_within,
)
from orchestrator.errors import EngineRestarted, MeasurementError, TransientError
from orchestrator.load.sanity import garbage_reason
from orchestrator.ports import LoadClient, LoadRequest, Node

_NO_COUNTERS = CounterSnapshot(generation_tokens=None, prompt_tokens=None)
_NEVER = Span(start_s=0.0, end_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruments:
    """What a block is measured with."""

    load: LoadClient
    metrics_text: Callable[[], str] | None
    """Reads the engine's exposition; None where the engine has none."""
    node: Node | None
    """The engine's node; None when it is not this machine."""
    needs: NodeNeeds
    """What the node must offer."""
    own_pids: Callable[[], frozenset[int]] | None = None
    """Tells the engine's own processes, which may hold the GPU; None where they are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockOrder:
    """Which block to measure, and what it is held against."""

    boot_id: str
    index: int
    request: LoadRequest
    expected: Expectations
    ignores_eos: bool = True
    """Whether answers go on to ``max_tokens``."""

    @property
    def block_id(self) -> str:
        """Unique: boot id, cell key and index."""
        return f"{self.boot_id}/{self.request.cell.key}/{self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A judged block and the requests behind it."""

    block: Block
    records: tuple[RequestRecord, ...]


def measure_block(order: BlockOrder, instruments: Instruments) -> Measured:
    """Run the load of one block and judge what came of it.

    Whatever goes wrong under the load makes the block invalid and is named; nothing is raised for
    it, and nothing is read from the engine or the node on the load's own thread.
    """
    observer = _Observer(instruments)
    own_pids = _pids(instruments)
    result = instruments.load.run(order.request, observer)
    counters, faults = observer.counters()
    block = _block(order, result, counters)
    if own_pids is not None:
        # An engine that died tells no processes, and its own would be another's.
        own_pids |= _pids(instruments) or frozenset()
    node = judge(observer.states, own_pids=own_pids, needs=instruments.needs)
    block = replace(
        block,
        node=None if instruments.node is None else node,
        node_states=tuple(observer.states),
        effective_concurrency=_mean(counters.running),
        most_running=max(counters.running, default=None),
        mean_waiting=_mean(counters.waiting),
    )
    found = (*faults, *find_invalid(block, order.expected), *_answers(order, result))
    invalid = (*_silence(result), *_once(found))
    return Measured(block=replace(block, invalid=invalid), records=result.records)


def _pids(instruments: Instruments) -> frozenset[int] | None:
    return None if instruments.own_pids is None else instruments.own_pids()


@dataclass(frozen=True, slots=True, kw_only=True)
class _WindowCounters:
    """The engine's counters over the window and between the idle moments around it."""

    window: CounterSnapshot = _NO_COUNTERS
    total: CounterSnapshot = _NO_COUNTERS
    running: tuple[float, ...] = ()
    """The gauge of running requests at each look inside the window; empty where there is none."""
    waiting: tuple[float, ...] = ()


class _Observer:
    """Takes down what engine and node say at each moment; reads it when the load is over.

    Parsing an exposition takes tens of milliseconds in which chunks would be stamped late.
    """

    def __init__(self, instruments: Instruments) -> None:
        self._metrics_text = instruments.metrics_text
        self._node = instruments.node
        self._texts: list[tuple[Moment, str]] = []
        self._error: str | None = None
        self.states: list[NodeState] = []

    def __call__(self, moment: Moment) -> None:
        if self._metrics_text is not None:
            try:
                self._texts.append((moment, self._metrics_text()))
            except TransientError as error:
                self._error = self._error or f"at {moment}: {error}"
        # Not at the edges: the longer they take the less is known of when they were.
        if self._node is not None and moment not in (Moment.OPEN, Moment.CLOSE):
            self.states.append(self._node.snapshot())

    def counters(self) -> tuple[_WindowCounters, tuple[Invalidity, ...]]:
        """Return the differences, or why there are none."""
        if self._metrics_text is None:
            return _WindowCounters(), ()
        try:
            read = [(moment, parse_counters(text)) for moment, text in self._texts]
            # In their order, so that a restart between any two is seen.
            steps = [delta(a, b) for (_, a), (_, b) in pairwise(read)]
            at: dict[Moment, EngineCounters] = dict(read)
            if self._error is not None or not steps:
                raise MeasurementError(f"counters not read {self._error or 'at two moments'}")
            return (
                _WindowCounters(
                    window=_difference(at, Moment.OPEN, Moment.CLOSE),
                    total=_difference(at, Moment.BEFORE, Moment.AFTER),
                    running=_gauge(read, "num_requests_running"),
                    waiting=_gauge(read, "num_requests_waiting"),
                ),
                (),
            )
        except EngineRestarted as error:
            kind, detail = Invalid.RESTARTED, str(error)
        except MeasurementError as error:
            kind, detail = Invalid.COUNTERS, str(error)
        return _WindowCounters(), (Invalidity(kind=kind, detail=detail),)


def _difference(
    at: Mapping[Moment, EngineCounters], first: Moment, last: Moment
) -> CounterSnapshot:
    if first not in at or last not in at:
        return _NO_COUNTERS
    return delta(at[first], at[last])


def _gauge(read: Sequence[tuple[Moment, EngineCounters]], name: str) -> tuple[float, ...]:
    inside = (Moment.OPEN, Moment.DURING, Moment.CLOSE)
    values = [getattr(counters.total, name) for moment, counters in read if moment in inside]
    return tuple(value for value in values if value is not None)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _block(order: BlockOrder, result: LoadResult, counters: _WindowCounters) -> Block:
    records, window = result.records, result.window or _NEVER
    done = [record for record in records if record.fault is None]
    ended = ended_within(done, window)
    return Block(
        block_id=order.block_id,
        boot_id=order.boot_id,
        index=order.index,
        cell=order.request.cell,
        duration_s=window.duration_s,
        counters=counters.window,
        audit=audit(result, window_counters=counters.window, total_counters=counters.total),
        num_requests=len(records),
        num_failed=result.num_failed,
        num_refused=result.num_refused,
        num_delayed=result.num_delayed,
        num_lost_streams=result.num_lost_streams,
        client_concurrency=concurrency(records, window),
        errors=dict(Counter(r.error for r in records if r.error is not None).most_common(5)),
        ttft_s=_known(record.ttft_s for record in started_within(done, window)),
        tpot_s=_known(record.tpot_s for record in ended),
        chunk_gap_s=chunk_gaps(done, window),
        finish_reasons=dict(Counter(record.finish_reason or "unknown" for record in done)),
        prompt_tokens=_total(record.prompt_tokens for record in done),
        cached_tokens=_total(record.cached_tokens for record in done),
    )


def _silence(result: LoadResult) -> tuple[Invalidity, ...]:
    """Return the cause of all else that is wrong where the engine stopped to answer."""
    if result.silent_s is None:
        return ()
    detail = f"no stream got a token for {result.silent_s:.0f} s with requests open"
    return (Invalidity(kind=Invalid.SILENT, detail=detail),)


def _answers(order: BlockOrder, result: LoadResult) -> list[Invalidity]:
    """Return what the answers themselves show."""
    done = [record for record in result.records if record.fault is None]
    asked = [(r.output_tokens, r.max_tokens) for r in done]
    counted = [(tokens, most) for tokens, most in asked if tokens is not None and most]
    found = [
        *uncounted_answers(sum(r.output_tokens is None for r in done), len(done)),
        *excess_answers(sum(tokens > most for tokens, most in counted), len(counted)),
    ]
    if order.ignores_eos:
        found += short_answers(sum(tokens < most for tokens, most in counted), len(counted))
    reason = garbage_reason(tuple(record.text for record in done))
    if reason is not None:
        found.append(Invalidity(kind=Invalid.GARBAGE, detail=reason))
    return found


def _known(values: Iterable[float | None]) -> tuple[float, ...]:
    return tuple(value for value in values if value is not None)


def _total(values: Iterable[int | None]) -> int | None:
    known = list(values)
    if not known or any(value is None for value in known):
        return None
    return sum(value for value in known if value is not None)


def _once(invalid: Sequence[Invalidity]) -> tuple[Invalidity, ...]:
    """Drop the consequences of a lack of counters where its cause is named."""
    kinds = {item.kind for item in invalid[:1]}
    if kinds & {Invalid.RESTARTED, Invalid.COUNTERS}:
        return (invalid[0], *(i for i in invalid[1:] if i.kind is not Invalid.COUNTERS))
    return tuple(invalid)
