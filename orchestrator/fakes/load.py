"""The load in virtual time, against the engine on a ``FakeBoard``."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.core.requests import (
    LoadResult,
    Moment,
    RequestFault,
    RequestRecord,
    Span,
    TokenSource,
)
from orchestrator.errors import TransientError
from orchestrator.fakes.board import FakeBoard, RunningEngine
from orchestrator.ports import LoadRequest, Observe

PROMPT_TOKENS = 64
NUM_PROMPTS = 64
PREFILL_S = 0.050
WARMUP_TOKENS = 16
FAILURES_BEFORE_GIVING_UP = 3
SILENCE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What one engine step did for one stream."""

    drafted: int
    accepted: int
    emitted: int


@dataclass(slots=True)
class _Timeline:
    """The steps of all streams, counted by the engine as time reaches them."""

    engine: RunningEngine
    step_s: float
    steps: list[tuple[float, _Step | None]] = field(default_factory=list)
    """Time and step; None is a prefill with its token."""
    _done: int = 0

    def advance(self, until_s: float) -> None:
        """Let the engine count what has happened by now."""
        self.steps[self._done :] = sorted(self.steps[self._done :], key=lambda item: item[0])
        while self._done < len(self.steps) and self.steps[self._done][0] <= until_s:
            _count(self.engine, self.steps[self._done][1])
            self._done += 1


class FakeLoad:
    """Implements ``ports.LoadClient`` on a board.

    Requests of one (seed, cell, stream, turn) see the same random numbers whatever the arm, so
    arms pair as they do on a real engine.

    Args:
        board: The board whose engine is loaded.
        block_s: Virtual seconds of the window.
        max_tokens: Output tokens of every request.
    """

    def __init__(self, board: FakeBoard, *, block_s: float = 30.0, max_tokens: int = 128) -> None:
        self._board = board
        self._block_s = block_s
        self._max_tokens = max_tokens

    def run(self, request: LoadRequest, observe: Observe) -> LoadResult:
        """Warm up, measure one window in virtual time, and move the engine's counters."""
        try:
            engine = self._engine(request)
        except TransientError as error:
            return _dead(request, observe, str(error))
        step_s = self._board.block_step_time_s(request.cell.streams, seed=request.seed)
        warm = _Timeline(engine, step_s)
        for stream in range(request.cell.streams):
            self._ask(warm, request, stream=stream, turn=-1, started_s=0.0)
        warm.advance(float("inf"))
        observe(Moment.BEFORE)
        self._strike(engine)
        if not engine.is_alive:
            return _dead(request, observe, "connection reset", is_warm=True)
        if engine.hangs:
            return self._silent(request, observe)
        return self._measure(request, observe, step_s)

    def _measure(self, request: LoadRequest, observe: Observe, step_s: float) -> LoadResult:
        engine = self._engine(request)
        timeline = _Timeline(engine, step_s)
        first = [
            self._ask(timeline, request, stream=stream, turn=0, started_s=0.0)
            for stream in range(request.cell.streams)
        ]
        open_s = max(_end_s(record) for record in first)
        close_s = open_s + self._block_s
        records = [*first, *self._records(timeline, request, first, close_s=close_s)]
        engine.num_running = request.cell.streams
        for moment, at_s in (
            (Moment.OPEN, open_s),
            (Moment.DURING, (open_s + close_s) / 2),
            (Moment.CLOSE, close_s),
        ):
            timeline.advance(at_s)
            if moment is Moment.DURING:
                engine.counters.generation_tokens += engine.faults.foreign_tokens
            observe(moment)
        engine.num_running = 0
        timeline.advance(float("inf"))
        self._board.clock.sleep(max((_end_s(record) for record in records), default=0.0))
        observe(Moment.AFTER)
        return LoadResult(
            records=tuple(sorted(records, key=lambda record: record.started_s)),
            opening=Span(start_s=open_s, end_s=open_s),
            closing=Span(start_s=close_s, end_s=close_s),
        )

    def _silent(self, request: LoadRequest, observe: Observe) -> LoadResult:
        """Return the load of an engine that takes requests and gives no token."""
        self._board.clock.sleep(SILENCE_S)
        result = _dead(request, observe, f"no stream got a token for {SILENCE_S:g} s", is_warm=True)
        return replace(result, num_lost_streams=0, silent_s=SILENCE_S)

    def _engine(self, request: LoadRequest) -> RunningEngine:
        if request.base_url.rstrip("/") != self._board.base_url:
            raise TransientError(f"no engine answers at {request.base_url}")
        return self._board.engine()

    def _strike(self, engine: RunningEngine) -> None:
        """Let the fault of this block happen."""
        block = engine.num_blocks
        engine.num_blocks += 1
        if engine.faults.death_in_block == block:
            engine.is_alive = False
        if engine.faults.hang_in_block == block:
            engine.hangs = True
        if engine.faults.restart_in_block == block:
            self._board.restart()

    def _records(
        self,
        timeline: _Timeline,
        request: LoadRequest,
        first: Sequence[RequestRecord],
        *,
        close_s: float,
    ) -> Iterator[RequestRecord]:
        """Yield what each stream asks after its first answer."""
        for stream, answer in enumerate(first):
            now_s, turn = _end_s(answer), 1
            while now_s < close_s:
                record = self._ask(timeline, request, stream=stream, turn=turn, started_s=now_s)
                yield record
                now_s, turn = _end_s(record), turn + 1

    def _ask(
        self,
        timeline: _Timeline,
        request: LoadRequest,
        *,
        stream: int,
        turn: int,
        started_s: float,
    ) -> RequestRecord:
        cell, engine, step_s = request.cell, timeline.engine, timeline.step_s
        request_id = f"{cell.key}-{request.seed}-{stream}-{turn}"
        prompt = random.Random(f"{request.seed}/{stream}/{turn}").randrange(NUM_PROMPTS)
        prompt_id = f"{cell.workload}-{prompt}"
        engine.num_requests += 1
        every = engine.faults.reset_every
        if every is not None and engine.num_requests % every == 0:
            error = f"ClientOSError: connection reset after {step_s:.3f} s"
            return _failed(request_id, prompt_id, started_s=started_s, error=error)
        max_tokens = WARMUP_TOKENS if turn < 0 else self._max_tokens
        rates = self._board.acceptance.rates(engine.arm, cell.temperature, prompt_id=prompt_id)
        if engine.faults.is_garbage:
            rates = (0.0,) * len(rates)
        steps = _decode(rates, max_tokens=max_tokens, rng=random.Random(request_id))
        ttft_s = PREFILL_S + step_s
        times = tuple(ttft_s + index * step_s for index in range(len(steps) + 1))
        timeline.steps += zip((started_s + t for t in times), (None, *steps), strict=True)
        return RequestRecord(
            request_id=request_id,
            prompt_id=prompt_id,
            prompt_tokens=PROMPT_TOKENS,
            output_tokens=max_tokens,
            token_source=TokenSource.USAGE,
            finish_reason="length",
            started_s=started_s,
            ttft_s=ttft_s,
            e2e_s=times[-1],
            chunk_times_s=times,
            chunk_tokens=_running_total(steps),
            max_tokens=max_tokens,
            cached_tokens=0,
            text="a " * max_tokens if engine.faults.is_garbage else _words(request_id, max_tokens),
        )


def _decode(rates: tuple[float, ...], *, max_tokens: int, rng: random.Random) -> list[_Step]:
    """Return the steps after the prefill's token; the last drafts are trimmed to what is left."""
    steps: list[_Step] = []
    emitted = 1
    while emitted < max_tokens:
        drafted = min(len(rates), max_tokens - emitted - 1)
        # One number a step, against falling rates: the accepted drafts are a prefix, and a better
        # arm accepts at least as many on the same number.
        luck = rng.random()
        accepted = sum(luck < rate for rate in rates[:drafted])
        steps.append(_Step(drafted=drafted, accepted=accepted, emitted=accepted + 1))
        emitted += accepted + 1
    return steps


def _running_total(steps: list[_Step]) -> tuple[int, ...]:
    totals = [1]
    for step in steps:
        totals.append(totals[-1] + step.emitted)
    return tuple(totals)


def _count(engine: RunningEngine, step: _Step | None) -> None:
    counters = engine.counters
    if step is None:
        counters.prompt_tokens += PROMPT_TOKENS
        counters.generation_tokens += 1
        return
    counters.generation_tokens += step.emitted
    if step.drafted:
        counters.num_drafts += 1
        counters.num_draft_tokens += step.drafted
        counters.num_accepted_tokens += step.accepted
        for position in range(step.accepted):
            counters.accepted_per_pos[position] += 1


def _words(request_id: str, num_tokens: int) -> str:
    rng = random.Random(f"{request_id}/text")
    return " ".join(f"w{rng.randrange(1000)}" for _ in range(num_tokens))


def _failed(request_id: str, prompt_id: str, *, started_s: float, error: str) -> RequestRecord:
    return RequestRecord(
        request_id=request_id,
        prompt_id=prompt_id,
        prompt_tokens=None,
        output_tokens=None,
        token_source=TokenSource.NONE,
        finish_reason=None,
        started_s=started_s,
        ttft_s=None,
        e2e_s=None,
        chunk_times_s=(),
        fault=RequestFault.CONNECTION,
        error=error,
    )


def _end_s(record: RequestRecord) -> float:
    return record.started_s + (record.e2e_s if record.e2e_s is not None else PREFILL_S)


def _dead(
    request: LoadRequest, observe: Observe, error: str, *, is_warm: bool = False
) -> LoadResult:
    """Return the load of an engine that answers nothing: every stream gives up."""
    if not is_warm:
        observe(Moment.BEFORE)
    observe(Moment.AFTER)
    streams = range(request.cell.streams)
    records = [
        _failed(
            f"{request.cell.key}-{request.seed}-{stream}-{turn}",
            "none",
            started_s=0.0,
            error=error,
        )
        for stream in streams
        for turn in range(FAILURES_BEFORE_GIVING_UP)
    ]
    return LoadResult(
        records=tuple(records), opening=None, closing=None, num_lost_streams=len(streams)
    )
