"""A fake server as a process of its own: it says where it listens, and runs until it is told."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TextIO

from orchestrator.fakes.openai.server import SseServer, Truth, truth_line


async def serve_until_told(server: SseServer, listening: AbstractAsyncContextManager[None]) -> None:
    """Listen until SIGINT or SIGTERM; print ``listening on`` and the address first.

    Args:
        server: Its ``url`` is set by ``listening``.
        listening: What listens while it is entered.
    """
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    async with listening:
        sys.stdout.write(f"listening on {server.url}\n")
        sys.stdout.flush()
        await ended.wait()


def truth_writer(file: TextIO) -> Callable[[Truth], None]:
    """Return what writes the truth about each request as a line of a file."""

    def write(truth: Truth) -> None:
        file.write(truth_line(truth))
        file.flush()

    return write
