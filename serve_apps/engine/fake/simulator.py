"""The stand-in's engine: seeded tokens, steps of drafts and acceptances, counters."""

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

from serve_apps.engine.fake.knobs import Asked, Knobs

_WORDS = ("the", "of", "engine", "a", "step", "draft", "token", "to", "and", "in", "is", "node")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One completion request, as far as it matters here."""

    prompt: str
    num_prompt_tokens: int
    max_tokens: int
    temperature: float
    ignore_eos: bool
    seed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one engine step gave to one request."""

    tokens: tuple[str, ...]
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
        self.created = time.time()
        self.running = 0
        self.waiting = 0
        self.counts: Counter[str] = Counter()
        self.accepted_by_position = [0] * self.depth
        self.finished: Counter[str] = Counter()
        self._slots = asyncio.Semaphore(asked.max_num_seqs)

    def _random(self, request: Request) -> random.Random:
        """Seed by content: greedy answers repeat, and so does a request that carries a seed."""
        own = request.seed
        if own is None and request.temperature > 0:
            own = self.counts["requests"]
        parts = (self.asked.seed, self.knobs.seed, own, request.prompt, request.temperature)
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
        stop = self.knobs.stop_after
        most = min(request.max_tokens, self.asked.max_model_len - request.num_prompt_tokens)
        if stop and not request.ignore_eos and stop < most:
            return stop, "stop"
        return most, "length"

    async def generate(self, request: Request) -> AsyncGenerator[Step, None]:
        """Yield the steps of one request."""
        self.counts["requests"] += 1
        source = self._random(request)
        rates = acceptance(self.speculation, self.knobs, request.temperature)
        total, reason = self._length(request)
        made = 0
        try:
            async with self._slot():
                await asyncio.sleep(request.num_prompt_tokens * self.knobs.prefill_per_token_s)
                self.counts["prompt_tokens"] += request.num_prompt_tokens
                while made < total:
                    await asyncio.sleep(self._step_s())
                    # The prefill step has no drafts; the last step drafts no more than fits.
                    room = total - made - 1 if made else 0
                    number = 1 + self._accept(source, rates[: max(0, room)])
                    made += number
                    self.counts["generation_tokens"] += number
                    words = tuple(f" {source.choice(_WORDS)}" for _ in range(number))
                    yield Step(tokens=words, finish_reason=reason if made >= total else None)
            self.finished[reason] += 1
        finally:
            if made < total:
                self.finished["abort"] += 1

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
