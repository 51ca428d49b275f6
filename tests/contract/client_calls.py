"""Calls to make and how tests of the client make them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.core.requests import RequestRecord
from orchestrator.core.sampling import Shaping
from orchestrator.fakes.openai import Part, Script, SseServer
from orchestrator.load.call import Call, Sampling
from orchestrator.load.client import SseClient

SAMPLING = Sampling(
    temperature=0.7, shaping=Shaping(top_p=0.9, top_k=20), seed=11, max_tokens=8, ignore_eos=True
)
CALL = Call(
    request_id="r",
    prompt_id="p",
    prompt="def f():",
    endpoint="completions",
    model="m",
    sampling=SAMPLING,
)
CHAT = replace(CALL, endpoint="chat")


def ask_all(
    url: str,
    calls: Sequence[Call],
    *,
    timeout_s: float = 10.0,
    stall_timeout_s: float = 10.0,
    clock: Callable[[], float] = time.monotonic,
    arrived_s: float | None = None,
) -> list[RequestRecord]:
    """Make the calls at once, through one client."""

    async def run() -> list[RequestRecord]:
        client = SseClient(
            url, timeout_s=timeout_s, clock=clock, origin_s=0.0, stall_timeout_s=stall_timeout_s
        )
        async with client:
            return await asyncio.gather(*(client.complete(call, arrived_s) for call in calls))

    return asyncio.run(run())


def ask(url: str, call: Call = CALL, **options: Any) -> RequestRecord:
    return ask_all(url, [call], **options)[0]


def answer(server: SseServer, *parts: Part, status: int = 200) -> None:
    script = Script(status=status, parts=parts)
    server.behaviour = lambda _number, _body: script
