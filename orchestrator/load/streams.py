"""The closed loop: a fixed number of streams that ask back to back for one window."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.core.types import LoadResult, RequestRecord
from orchestrator.errors import MeasurementError
from orchestrator.load.client import Call, Sampling, SseClient
from orchestrator.load.workload import Workload, draw
from orchestrator.ports import LoadHooks, LoadRequest

MAX_FAILURES_IN_A_ROW = 3
"""A stream gives up after this many: a dead engine is not asked thousands of times a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """What all blocks of a study have in common."""

    top_p: float
    top_k: int
    """0 means no limit."""
    endpoint: Literal["chat", "completions"]
    max_tokens: int
    ignore_eos: bool
    block_s: float
    """Seconds in which requests start; those under way are finished."""
    warmup_requests_per_stream: int
    warmup_max_tokens: int
    request_timeout_s: float


class ClosedLoop:
    """The load client: warm up, drain, measure one window, drain.

    Args:
        workload: Prompts.
        settings: What all blocks have in common.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        settings: LoadSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._workload = workload
        self._settings = settings
        self._clock = clock

    def run(self, request: LoadRequest, hooks: LoadHooks) -> LoadResult:
        """Warm up at the cell's concurrency, drain, then measure one window.

        The k-th request of a stream has the same prompt and seed for all arms. The window ends
        with its last answer, so ``duration_s`` holds the tail in which fewer streams are busy.

        Raises:
            MeasurementError: No request of the window succeeded.
        """
        return asyncio.run(self.measure(request, hooks))

    async def measure(self, request: LoadRequest, hooks: LoadHooks) -> LoadResult:
        """Do the work of ``run`` on the caller's event loop.

        Raises:
            MeasurementError: No request of the window succeeded.
        """
        streams = range(request.cell.streams)
        origin_s = self._clock()
        async with self._client(request, origin_s) as client:
            await asyncio.gather(*(self._warm_up(client, request, s) for s in streams))
        # In a thread, because the hooks ask the engine for its counters and may block. A new
        # connection pool after it: an engine may close idle connections meanwhile.
        await asyncio.to_thread(hooks.on_window_start)
        async with self._client(request, origin_s) as client:
            start_s = self._clock()
            deadline_s = start_s + self._settings.block_s
            per_stream = await asyncio.gather(
                *(self._measure_stream(client, request, s, deadline_s) for s in streams)
            )
            duration_s = self._clock() - start_s
        await asyncio.to_thread(hooks.on_window_end)
        records = [record for stream in per_stream for record in stream]
        return _result(records, duration_s=duration_s)

    def _client(self, request: LoadRequest, origin_s: float) -> SseClient:
        return SseClient(
            request.base_url,
            timeout_s=self._settings.request_timeout_s,
            clock=self._clock,
            origin_s=origin_s,
        )

    async def _warm_up(self, client: SseClient, request: LoadRequest, stream: int) -> None:
        for turn in range(self._settings.warmup_requests_per_stream):
            # Negative turns have salts of their own, so no measured prompt is warm.
            call = self._call(request, stream, -1 - turn, self._settings.warmup_max_tokens)
            record = await client.complete(call)
            if record.error is not None:
                return

    async def _measure_stream(
        self, client: SseClient, request: LoadRequest, stream: int, deadline_s: float
    ) -> list[RequestRecord]:
        records: list[RequestRecord] = []
        failures = 0
        while self._clock() < deadline_s and failures < MAX_FAILURES_IN_A_ROW:
            call = self._call(request, stream, len(records), self._settings.max_tokens)
            record = await client.complete(call)
            records.append(record)
            failures = 0 if record.error is None else failures + 1
        return records

    def _call(self, request: LoadRequest, stream: int, turn: int, max_tokens: int) -> Call:
        cell = request.cell
        choice = draw(
            self._workload,
            seed=request.seed,
            cell_key=cell.key,
            streams=cell.streams,
            stream=stream,
            turn=turn,
        )
        return Call(
            request_id=f"{cell.key}-{request.seed}-{stream}-{turn}",
            prompt_id=choice.prompt_id,
            prompt=choice.text,
            endpoint=self._settings.endpoint,
            model=request.model,
            sampling=Sampling(
                temperature=cell.temperature,
                top_p=self._settings.top_p,
                top_k=self._settings.top_k,
                seed=choice.seed,
                max_tokens=max_tokens,
                ignore_eos=self._settings.ignore_eos,
            ),
        )


def _result(records: Sequence[RequestRecord], *, duration_s: float) -> LoadResult:
    errors = [record.error for record in records if record.error is not None]
    if len(errors) == len(records):
        first = errors[0] if errors else "none was made"
        raise MeasurementError(f"none of {len(records)} requests succeeded; the first: {first}")
    reasons = Counter(r.finish_reason or "unknown" for r in records if r.error is None)
    return LoadResult(
        duration_s=duration_s,
        records=tuple(sorted(records, key=lambda record: record.started_s)),
        output_tokens=sum(record.output_tokens or 0 for record in records),
        num_failed=len(errors),
        finish_reasons=dict(reasons),
    )
