"""One block of load: warm up, drain, ramp up, measure one steady window, drain."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from orchestrator.core.requests import LoadResult, Moment, Span
from orchestrator.load.arrivals import Askers, ClosedLoop, OpenLoop, Tally
from orchestrator.load.client import SseClient
from orchestrator.load.sequence import CallSequence
from orchestrator.load.settings import LoadSettings
from orchestrator.load.workload import Workload
from orchestrator.ports import LoadRequest, Observe

OBSERVATIONS = 8
"""Looks at the engine and the node within a window: enough for a mean of the running requests."""

SHORTEST_LOOK_S = 0.25
"""Shortest time between two looks; an engine renders its whole exposition for each."""

BUDGET_LOOK_S = 0.02


class HttpLoad:
    """The load client; implements ``ports.LoadClient``.

    Args:
        workload: Prompts.
        settings: What all blocks have in common.
        api_key: Sent as a bearer token; None sends none.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        settings: LoadSettings,
        api_key: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._workload = workload
        self._settings = settings
        self._api_key = api_key
        self._clock = clock

    def run(self, request: LoadRequest, observe: Observe) -> LoadResult:
        """Run the block; see ``ports.LoadClient.run``.

        The k-th request of a stream has the same prompt and seed for all arms.
        """
        with _frozen_heap():
            return asyncio.run(self.measure(request, observe))

    async def measure(self, request: LoadRequest, observe: Observe) -> LoadResult:
        """Do the work of ``run`` on the caller's event loop."""
        calls = CallSequence(self._workload, self._settings, request)
        look = _Look(observe, self._clock)
        tally = Tally()
        async with self._client(request, look.origin_s) as client, self._watched(client, tally):
            await self._warm_up(client, calls)
        await look(Moment.BEFORE)
        if client.given_up_s is not None:
            await look(Moment.AFTER)
            return LoadResult(records=(), opening=None, closing=None, silent_s=client.given_up_s)
        # A new connection pool: an engine may have closed idle connections meanwhile.
        async with self._client(request, look.origin_s) as client, self._watched(client, tally):
            askers: Askers = ClosedLoop(calls)
            if request.cell.is_open_loop:
                askers = OpenLoop(calls, self._clock)
            asking = asyncio.create_task(askers.run(client, tally))
            try:
                edges = await self._window(tally, asking, look)
                tally.stop.set()
                await asking
            finally:
                asking.cancel()
        await look(Moment.AFTER)
        return LoadResult(
            records=tuple(sorted(tally.records, key=lambda record: record.started_s)),
            opening=edges[0] if edges else None,
            closing=edges[1] if edges else None,
            num_lost_streams=tally.num_lost,
            num_delayed=tally.num_delayed,
            silent_s=client.given_up_s,
        )

    @asynccontextmanager
    async def _watched(self, client: SseClient, tally: Tally) -> AsyncIterator[None]:
        """Give up, inside, when no stream gets a token for too long although requests are open."""
        limit_s = self._settings.block_silence_s

        async def watch() -> None:
            while (left_s := limit_s - client.silent_s()) > 0:
                await asyncio.sleep(left_s)
            tally.stop.set()
            client.give_up()

        watching = asyncio.create_task(watch())
        try:
            yield
        finally:
            watching.cancel()

    def _client(self, request: LoadRequest, origin_s: float) -> SseClient:
        return SseClient(
            request.base_url,
            timeout_s=self._settings.request_timeout_s,
            stall_timeout_s=self._settings.stall_timeout_s,
            clock=self._clock,
            origin_s=origin_s,
            api_key=self._api_key,
            headers=request.headers,
        )

    async def _warm_up(self, client: SseClient, calls: CallSequence) -> None:
        async def stream(number: int) -> None:
            for turn in range(self._settings.warmup_requests_per_stream):
                record = await client.complete(calls.warm_up(number, turn))
                if record.fault is not None:
                    return

        await asyncio.gather(*(stream(number) for number in range(calls.request.cell.streams)))

    async def _window(
        self, tally: Tally, asking: asyncio.Task[None], look: _Look
    ) -> tuple[Span, Span] | None:
        """Wait for the ramp, then keep the window open; None when it never opened."""
        await _first(tally.steady, tally.stop, asking, timeout_s=self._settings.request_timeout_s)
        if tally.stop.is_set() or not tally.steady.is_set():
            return None
        opening = await look(Moment.OPEN)
        until_s = opening.middle_s + self._settings.block_s
        every_s = look_every_s(self._settings.block_s)
        next_s = opening.middle_s + every_s
        in_ramp = len(tally.records)
        while look.now_s() < until_s and not self._is_over(tally, in_ramp):
            wait_s = min(next_s, until_s) - look.now_s()
            if self._settings.block_tokens is not None:
                wait_s = min(wait_s, BUDGET_LOOK_S)
            await tally.pause(wait_s)
            # The closing look is near enough to the last one of the window.
            if next_s <= look.now_s() < until_s - every_s / 2 and not self._is_over(tally, in_ramp):
                await look(Moment.DURING)
                next_s = look.now_s() + every_s
        return opening, await look(Moment.CLOSE)

    def _is_over(self, tally: Tally, in_ramp: int) -> bool:
        if tally.stop.is_set():
            return True
        budget = self._settings.block_tokens
        if budget is None:
            return False
        return sum(record.output_tokens or 0 for record in tally.records[in_ramp:]) >= budget


@contextmanager
def _frozen_heap() -> Iterator[None]:
    """Keep the garbage collector off everything that is there already.

    A full collection in a trial's process, which has imported Ray and MLflow, visits 290,000
    objects: 0.2 to 0.7 s were measured in which no chunk would be stamped.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def look_every_s(block_s: float) -> float:
    """Return the time between two looks in a window of that length; one at least falls into it."""
    return min(block_s / 2, max(SHORTEST_LOOK_S, block_s / OBSERVATIONS))


class _Look:
    """Lets the world be observed, in a thread, and says how long it took."""

    def __init__(self, observe: Observe, clock: Callable[[], float]) -> None:
        self._observe = observe
        self._clock = clock
        self.origin_s = clock()

    def now_s(self) -> float:
        return self._clock() - self.origin_s

    async def __call__(self, moment: Moment) -> Span:
        start_s = self.now_s()
        await asyncio.to_thread(self._observe, moment)
        return Span(start_s=start_s, end_s=self.now_s())


async def _first(
    steady: asyncio.Event, stop: asyncio.Event, asking: asyncio.Task[None], *, timeout_s: float
) -> None:
    """Wait until the load is steady, is stopped, or broke; at most ``timeout_s``."""
    waits = [asyncio.create_task(event.wait()) for event in (steady, stop)]
    try:
        await asyncio.wait([*waits, asking], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
