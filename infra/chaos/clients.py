"""Clients of the production route that stream all the time, and count what they did not get."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from dataclasses import dataclass, field

import aiohttp

from serve_apps.router.policy import VERSION_HEADER

NUM_TOKENS = 48
"""Of every answer."""
ANSWER_TIMEOUT_S = 120.0


@dataclass(slots=True)
class Tally:
    """What the clients got."""

    answered: Counter[str] = field(default_factory=Counter)
    """Whole answers by engine application."""
    failed: Counter[str] = field(default_factory=Counter)
    """Requests without an answer, by reason."""
    truncated: int = 0
    """Streams that ended early."""
    duplicated: int = 0
    """Streams that gave more tokens than asked for, or than they said."""

    @property
    def num_bad(self) -> int:
        """Requests that did not go well."""
        return self.failed.total() + self.truncated + self.duplicated

    def words(self) -> str:
        """Return the counts as text."""
        words = (
            f"{self.answered.total()} answered, {self.failed.total()} failed, "
            f"{self.truncated} truncated, {self.duplicated} duplicated"
        )
        return f"{words} ({self.failed.most_common(1)[0][0]})" if self.failed else words


class Clients:
    """So many closed loops of streamed completions, in a thread of their own.

    Args:
        url: Of the production route.
        model: The served name.
        streams: How many requests at a time.
        pause_s: Of a stream between an answer's end and the next request.
    """

    def __init__(self, url: str, model: str, *, streams: int, pause_s: float = 0.0) -> None:
        self._url, self._model, self._streams = url, model, streams
        self._pause_s = pause_s
        self._tally = Tally()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> Tally:
        """Start them, and return what they count while they run."""
        self._thread.start()
        return self._tally

    def __exit__(self, *_: object) -> None:
        """Let every stream come to its end."""
        self._is_over.set()
        self._thread.join(ANSWER_TIMEOUT_S + 10)

    async def _run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            await asyncio.gather(*(self._loop(session, i) for i in range(self._streams)))

    async def _loop(self, session: aiohttp.ClientSession, index: int) -> None:
        number = index
        while not self._is_over.is_set():
            try:
                await self._ask(session, number)
            except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
                self._tally.failed[f"{type(error).__name__}: {error}"[:120]] += 1
                await asyncio.sleep(0.2)
            number += self._streams
            await asyncio.sleep(self._pause_s)

    async def _ask(self, session: aiohttp.ClientSession, number: int) -> None:
        body = {
            "model": self._model,
            "prompt": f"def function_{number}(",
            "stream": True,
            "max_tokens": NUM_TOKENS,
            "ignore_eos": True,
            "temperature": 1.0,
            "seed": number,
            "return_token_ids": True,
            "stream_options": {"include_usage": True},
        }
        async with session.post(f"{self._url}/v1/completions", json=body) as answer:
            if answer.status != 200:
                text = (await answer.text())[:100]
                raise ValueError(f"HTTP {answer.status}: {text}")
            num_tokens, stated, is_done = 0, None, False
            async for line in answer.content:
                if not line.startswith(b"data: "):
                    continue
                if line.strip() == b"data: [DONE]":
                    is_done = True
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise ValueError(f"in the stream: {event['error']}")
                num_tokens += sum(len(c.get("token_ids") or ()) for c in event["choices"])
                usage = event.get("usage")
                stated = usage["completion_tokens"] if usage else stated
            self._judge(answer.headers[VERSION_HEADER], num_tokens, stated, is_done=is_done)

    def _judge(self, app: str, num_tokens: int, stated: int | None, *, is_done: bool) -> None:
        if not is_done or num_tokens < NUM_TOKENS:
            self._tally.truncated += 1
        elif num_tokens > NUM_TOKENS or stated != NUM_TOKENS:
            self._tally.duplicated += 1
        else:
            self._tally.answered[app] += 1
