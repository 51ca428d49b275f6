"""Who asks when: streams that follow their answers, or arrivals that follow a clock."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from orchestrator.core.requests import RequestFault, RequestRecord
from orchestrator.load.call import Call
from orchestrator.load.client import SseClient
from orchestrator.load.sequence import CallSequence

MAX_FAILURES_IN_A_ROW = 3
"""A stream gives up after this many: a dead engine is not asked thousands of times a second."""

FIRST_WAIT_S = 0.5
"""Wait after a refusal that names no time; doubled at each in a row."""

LONGEST_WAIT_S = 30.0
"""Longest wait after a refusal, whatever the server asks for."""


@dataclass(slots=True)
class Tally:
    """What all askers of one block share."""

    records: list[RequestRecord] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when no new request may start."""
    steady: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the load is what the cell asks for."""
    num_lost: int = 0
    num_delayed: int = 0

    def lose(self) -> None:
        """Give up on a stream: the block is not at its load any more, so it ends."""
        self.num_lost += 1
        self.stop.set()

    async def pause(self, seconds: float) -> None:
        """Wait, unless the load ends before."""
        try:
            await asyncio.wait_for(self.stop.wait(), max(0.0, seconds))
        except TimeoutError:
            return


class Askers(Protocol):
    """Makes requests until the tally says stop, and finishes those under way."""

    async def run(self, client: SseClient, tally: Tally) -> None:
        """Ask; returns when the last answer is complete."""
        ...


@dataclass(slots=True)
class ClosedLoop:
    """A fixed number of streams, each of which asks again when its answer is complete."""

    calls: CallSequence
    settled: set[int] = field(default_factory=set)
    """Streams whose first answer is over."""

    async def run(self, client: SseClient, tally: Tally) -> None:
        """Ask with all streams at once; steady when the first answer of every stream is over.

        Until then all streams are in first answers, of which the quick ones end first: a window
        that opened earlier would hold more than its share of prompts that are accepted well.
        """
        streams = range(self.calls.request.cell.streams)
        async with asyncio.TaskGroup() as group:
            for stream in streams:
                group.create_task(self._stream(client, tally, stream))

    async def _stream(self, client: SseClient, tally: Tally, stream: int) -> None:
        turn = failures = refusals = 0
        while not tally.stop.is_set():
            call = self.calls.measured(stream, turn, attempt=refusals)
            record = await client.complete(call)
            tally.records.append(record)
            if record.fault is RequestFault.REFUSED:
                # The same turn again: the stream's k-th answer has one prompt in every arm.
                await tally.pause(wait_s(record, refusals))
                refusals += 1
                continue
            turn, refusals = turn + 1, 0
            failures = 0 if record.fault is None else failures + 1
            if record.fault is None:
                self._settle(tally, stream)
            if failures >= MAX_FAILURES_IN_A_ROW:
                tally.lose()

    def _settle(self, tally: Tally, stream: int) -> None:
        self.settled.add(stream)
        if len(self.settled) == self.calls.request.cell.streams:
            tally.steady.set()


@dataclass(slots=True)
class OpenLoop:
    """Poisson arrivals at the cell's rate, whatever the answers do.

    Times of a request count from its arrival, so that waiting for one of the cell's ``streams``
    connections is not hidden.
    """

    calls: CallSequence
    clock: Callable[[], float]

    async def run(self, client: SseClient, tally: Tally) -> None:
        """Ask at seeded moments; steady when the first answer is complete."""
        cell, seed = self.calls.request.cell, self.calls.request.seed
        rng = random.Random(f"{seed}/arrivals/{cell.key}")
        room = asyncio.Semaphore(cell.streams)
        next_s, turn = self.clock(), 0
        async with asyncio.TaskGroup() as group:
            while True:
                next_s += rng.expovariate(cell.request_rate)
                await tally.pause(next_s - self.clock())
                if tally.stop.is_set():
                    return
                call = self.calls.measured(0, turn)
                group.create_task(self._one(client, tally, call, arrived_s=next_s, room=room))
                turn += 1

    async def _one(
        self,
        client: SseClient,
        tally: Tally,
        call: Call,
        *,
        arrived_s: float,
        room: asyncio.Semaphore,
    ) -> None:
        tally.num_delayed += room.locked()
        async with room:
            record = await client.complete(call, arrived_s=arrived_s)
        tally.records.append(record)
        if record.fault is None:
            tally.steady.set()
        elif self._is_dead(tally) and not tally.stop.is_set():
            tally.lose()

    def _is_dead(self, tally: Tally) -> bool:
        last = tally.records[-MAX_FAILURES_IN_A_ROW:]
        return len(last) == MAX_FAILURES_IN_A_ROW and all(r.fault is not None for r in last)


def wait_s(record: RequestRecord, refusals: int) -> float:
    """Return how long to wait after a refusal: as the server says, else longer each time."""
    asked = record.retry_after_s
    wanted = FIRST_WAIT_S * 2**refusals if asked is None else asked
    return min(max(0.0, wanted), LONGEST_WAIT_S)
