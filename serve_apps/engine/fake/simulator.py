"""The stand-in's engine: tokens of a known target, steps of drafts and acceptances, counters."""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from serve_apps.engine.fake.chain import Chain
from serve_apps.engine.fake.knobs import Asked, Knobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One completion request, as far as it matters here."""

    prompt: tuple[int, ...]
    """Its tokens, at least one."""
    max_tokens: int
    temperature: float
    ignore_eos: bool
    seed: int | None
    end: tuple[int, str] | None = None
    """Where its answer ends by itself, in tokens, and the reason that is given; None is nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one engine step gave to one request."""

    tokens: tuple[int, ...]
    finish_reason: str | None


def _conditional(unconditional: tuple[float, ...]) -> list[float]:
    """Return P(position i accepted | position i - 1 accepted)."""
    rates, before = [], 1.0
    for rate in unconditional:
        rates.append(min(1.0, rate / before) if before > 0 else 0.0)
        before = rate
    return rates


def acceptance(config: Mapping[str, Any], knobs: Knobs, temperature: float) -> list[float]:
    """Return the conditional acceptance rate by position.

    Without the knob, a plain model of what the keys do: a greedy draft suffers from temperature, a
    probabilistic one less so, block verification gains a little, positions past 8 accept nothing.
    """
    depth = int(config.get("num_speculative_tokens") or 0)
    if knobs.acceptance:
        rates = _conditional(knobs.acceptance)
        return (rates + [0.0] * depth)[:depth]
    probabilistic = config.get("draft_sample_method") == "probabilistic"
    base = 0.86 - (0.10 if probabilistic else 0.28) * min(1.0, max(0.0, temperature))
    if config.get("rejection_sample_method") == "block":
        base += 0.03
    return [base * 0.97**position if position < 8 else 0.0 for position in range(depth)]


class Simulator:
    """Generates for many requests at once, and counts as vLLM counts."""

    def __init__(self, asked: Asked, knobs: Knobs, speculation: Mapping[str, Any] | None) -> None:
        self.asked = asked
        self.knobs = knobs
        self.speculation = dict(speculation or {})
        self.depth = int(self.speculation.get("num_speculative_tokens") or 0)
        self.chain = Chain()
        self.created = time.time()
        self.running = 0
        self.waiting = 0
        self.counts: Counter[str] = Counter()
        self.accepted_by_position = [0] * self.depth
        self.finished: Counter[str] = Counter()
        self._slots = asyncio.Semaphore(asked.max_num_seqs)

    def _random(self, request: Request, *seeds: object) -> random.Random:
        """Seed by content: greedy answers repeat, and so does a request that carries a seed."""
        own = request.seed
        if own is None and request.temperature > 0:
            seeds = (*seeds, self.asked.seed, self.knobs.seed, self.counts["requests"])
        parts = (*seeds, own, request.prompt, request.temperature)
        digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
        return random.Random(int.from_bytes(digest, "big"))

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        self.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._slots.release()

    def _step_s(self) -> float:
        knobs = self.knobs
        return (
            knobs.step_s
            + self.depth * knobs.step_per_draft_s
            + self.running * knobs.step_per_stream_s
        )

    def _length(self, request: Request) -> tuple[int, str]:
        most = min(request.max_tokens, self.asked.max_model_len - len(request.prompt))
        stop, reason = request.end or (0 if request.ignore_eos else self.knobs.stop_after, "stop")
        return (stop, reason) if 0 < stop < most else (most, "length")

    async def generate(self, request: Request) -> AsyncGenerator[Step, None]:
        """Yield the steps of one request."""
        self.counts["requests"] += 1
        # What is said depends on nothing of the engine but the target; how fast it comes may.
        words = self._random(request)
        luck = self._random(request, "drafts", self.asked.seed, self.knobs.seed)
        rates = acceptance(self.speculation, self.knobs, request.temperature)
        total, reason = self._length(request)
        num_prompt, last, made = len(request.prompt), request.prompt[-1], 0
        try:
            async with self._slot():
                await asyncio.sleep(num_prompt * self.knobs.prefill_per_token_s)
                self.counts["prompt_tokens"] += num_prompt
                while made < total:
                    await asyncio.sleep(self._step_s())
                    # The prefill step has no drafts; the last step drafts no more than fits.
                    room = total - made - 1 if made else 0
                    number = 1 + self._accept(luck, rates[: max(0, room)])
                    tokens = []
                    for place in range(num_prompt + made, num_prompt + made + number):
                        last = self._token(last, place, request.temperature, words)
                        tokens.append(last)
                    made += number
                    self.counts["generation_tokens"] += number
                    yield Step(
                        tokens=tuple(tokens), finish_reason=reason if made >= total else None
                    )
            self.finished[reason] += 1
        finally:
            if made < total:
                self.finished["abort"] += 1

    def _token(self, previous: int, place: int, temperature: float, source: random.Random) -> int:
        # Both are always drawn, so that an arm that displaces says the rest as one that does not.
        displaced, chance = source.random(), source.random()
        if self.depth and displaced < self.knobs.displaced:
            return self.chain.displaced(previous, place)
        return self.chain.draw(previous, place, temperature=temperature, chance=chance)

    def _accept(self, source: random.Random, rates: list[float]) -> int:
        if not rates:
            return 0
        accepted = 0
        while accepted < len(rates) and source.random() < rates[accepted]:
            self.accepted_by_position[accepted] += 1
            accepted += 1
        self.counts["drafts"] += 1
        self.counts["draft_tokens"] += len(rates)
        self.counts["accepted_tokens"] += accepted
        return accepted
