"""The closed loop in virtual time, against the engine on a ``FakeBoard``."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from orchestrator.core.types import LoadResult, RequestRecord, TokenSource
from orchestrator.errors import MeasurementError, TransientError
from orchestrator.fakes.board import FakeBoard, RunningEngine
from orchestrator.ports import LoadHooks, LoadRequest

PROMPT_TOKENS = 64
NUM_PROMPTS = 64
PREFILL_S = 0.050
WARMUP_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What one engine step did for one stream."""

    drafted: int
    accepted: int
    emitted: int


class FakeLoad:
    """Implements ``ports.LoadClient`` on a board.

    Requests of one (seed, cell, stream, turn) see the same random numbers whatever the arm, so
    arms pair as they do on a real engine.

    Args:
        board: The board whose engine is loaded.
        block_s: Virtual seconds in which requests start.
        max_tokens: Output tokens of every request.
    """

    def __init__(self, board: FakeBoard, *, block_s: float = 30.0, max_tokens: int = 128) -> None:
        self._board = board
        self._block_s = block_s
        self._max_tokens = max_tokens

    def run(self, request: LoadRequest, hooks: LoadHooks) -> LoadResult:
        """Warm up, measure one window in virtual time, and move the engine's counters.

        Raises:
            MeasurementError: No request of the window succeeded.
        """
        engine = self._engine(request)
        step_s = self._board.block_step_time_s(request.cell.streams, seed=request.seed)
        for stream in range(request.cell.streams):
            self._ask(engine, request, stream=stream, turn=-1, step_s=step_s, started_s=0.0)
        hooks.on_window_start()
        self._strike(engine)
        records = self._window(request, step_s)
        engine = self._engine(request)
        engine.counters.generation_tokens += engine.faults.foreign_tokens
        duration_s = max((_end_s(record) for record in records), default=0.0)
        self._board.clock.sleep(duration_s)
        hooks.on_window_end()
        return _result(records, duration_s=duration_s)

    def _engine(self, request: LoadRequest) -> RunningEngine:
        try:
            if request.base_url.rstrip("/") != self._board.base_url:
                raise TransientError(f"no engine answers at {request.base_url}")
            return self._board.engine()
        except TransientError as error:
            raise MeasurementError(f"none of 1 requests succeeded; the first: {error}") from error

    def _strike(self, engine: RunningEngine) -> None:
        """Let the fault of this block happen."""
        block = engine.num_blocks
        engine.num_blocks += 1
        if engine.faults.death_in_block == block:
            engine.is_alive = False
            raise MeasurementError("none of 1 requests succeeded; the first: connection reset")
        if engine.faults.restart_in_block == block:
            self._board.restart()

    def _window(self, request: LoadRequest, step_s: float) -> list[RequestRecord]:
        engine = self._engine(request)
        records: list[RequestRecord] = []
        for stream in range(request.cell.streams):
            now_s, turn = 0.0, 0
            while now_s < self._block_s:
                record = self._ask(
                    engine, request, stream=stream, turn=turn, step_s=step_s, started_s=now_s
                )
                records.append(record)
                now_s, turn = _end_s(record), turn + 1
        return records

    def _ask(
        self,
        engine: RunningEngine,
        request: LoadRequest,
        *,
        stream: int,
        turn: int,
        step_s: float,
        started_s: float,
    ) -> RequestRecord:
        cell = request.cell
        request_id = f"{cell.key}-{request.seed}-{stream}-{turn}"
        prompt = random.Random(f"{request.seed}/{stream}/{turn}").randrange(NUM_PROMPTS)
        prompt_id = f"{cell.workload}-{prompt}"
        engine.num_requests += 1
        every = engine.faults.reset_every
        if every is not None and engine.num_requests % every == 0:
            return _failed(request_id, prompt_id, started_s=started_s, lost_s=step_s)
        max_tokens = WARMUP_TOKENS if turn < 0 else self._max_tokens
        rates = self._board.acceptance.rates(engine.arm, cell.temperature, prompt_id=prompt_id)
        if engine.faults.is_garbage:
            rates = (0.0,) * len(rates)
        steps = _decode(rates, max_tokens=max_tokens, rng=random.Random(request_id))
        _count(engine, steps)
        ttft_s = PREFILL_S + step_s
        times = tuple(ttft_s + index * step_s for index in range(len(steps) + 1))
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


def _count(engine: RunningEngine, steps: list[_Step]) -> None:
    counters = engine.counters
    counters.prompt_tokens += PROMPT_TOKENS
    counters.generation_tokens += 1 + sum(step.emitted for step in steps)
    for step in steps:
        if step.drafted:
            counters.num_drafts += 1
            counters.num_draft_tokens += step.drafted
            counters.num_accepted_tokens += step.accepted
            for position in range(step.accepted):
                counters.accepted_per_pos[position] += 1


def _words(request_id: str, num_tokens: int) -> str:
    rng = random.Random(f"{request_id}/text")
    return " ".join(f"w{rng.randrange(1000)}" for _ in range(num_tokens))


def _failed(request_id: str, prompt_id: str, *, started_s: float, lost_s: float) -> RequestRecord:
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
        error=f"ClientOSError: connection reset after {lost_s:.3f} s",
    )


def _end_s(record: RequestRecord) -> float:
    return record.started_s + (record.e2e_s if record.e2e_s is not None else PREFILL_S)


def _result(records: list[RequestRecord], *, duration_s: float) -> LoadResult:
    errors = [record.error for record in records if record.error is not None]
    if len(errors) == len(records):
        raise MeasurementError(f"none of {len(records)} requests succeeded; the first: {errors[0]}")
    return LoadResult(
        duration_s=duration_s,
        records=tuple(sorted(records, key=lambda record: record.started_s)),
        output_tokens=sum(record.output_tokens or 0 for record in records),
        num_failed=len(errors),
        finish_reasons=dict(Counter(r.finish_reason or "unknown" for r in records if not r.error)),
    )
