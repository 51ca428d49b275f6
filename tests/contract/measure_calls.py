"""How tests run ``measure`` in this process, and what they may hold against its record.

Whether this machine was too busy for a valid block decides no test: the status is the record's.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from orchestrator.cli import main
from orchestrator.fakes.openai import SseServer

DEPTH = 3
PACE: dict[str, Any] = {"ttft_s": 0.004, "gap_s": 0.002, "tokens_per_chunk": 3}
QUICK = ("--duration", "0.15", "--max-tokens", "16")
KEY = "sk-planted-0123456789"
Capture = pytest.CaptureFixture[str]


@contextmanager
def behind(server: SseServer, prefix: str = "", *, host: str = "127.0.0.1") -> Iterator[str]:
    """Serve the same answers under a path, without counters: a proxy, or an engine of another."""
    app = web.Application()
    app.router.add_post(f"{prefix}/v1/completions", server.handle)
    app.router.add_post(f"{prefix}/v1/chat/completions", server.handle)
    app.router.add_get(f"{prefix}/v1/models", server.models)
    started: Future[tuple[int, Callable[[], object]]] = Future()

    async def run() -> None:
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        await web.TCPSite(runner, host, 0).start()
        port = runner.addresses[0][1]
        started.set_result((port, lambda: loop.call_soon_threadsafe(ended.set)))
        await ended.wait()
        await runner.cleanup()

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    port, end = started.result(10)
    shown = f"[{host}]" if ":" in host else host
    try:
        yield f"http://{shown}:{port}{prefix}"
    finally:
        end()
        thread.join(10)


def measure(capsys: Capture, url: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Return the status and the record."""
    load = () if "--request-rate" in arguments else ("--concurrency", "2")
    status = main(["measure", "--url", url, *QUICK, *load, *arguments, "--json"])
    out, err = capsys.readouterr()
    assert err == ""
    record: dict[str, Any] = json.loads(out)
    assert status == (0 if record["valid"] else 1)
    return status, record


def refusal(capsys: Capture, *arguments: str) -> str:
    """Return the one line with which bad input ends."""
    assert main(["measure", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: --")
    assert err.count("\n") == 1
    return err


def causes(record: dict[str, Any]) -> set[str]:
    """Return the reasons that no lag of this machine can have made."""
    return {
        item["kind"]
        for item in record["invalid"]
        if item["kind"] != "concurrency"
        and not item["detail"].startswith("within the window")
        and "while its edges were read" not in item["detail"]
    }


def write_workload(folder: Path, *lines: dict[str, Any]) -> str:
    path = folder / "mine.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)
