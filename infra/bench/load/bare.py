"""The floor: what a client on aiohttp costs that keeps nothing.

    python -m infra.bench.load.bare --url URL --streams 16 --requests 208 --out FILE

It posts, reads lines, decodes each, takes the time of each, and adds up the usage.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from dataclasses import asdict
from itertools import count
from pathlib import Path

import aiohttp
import numpy as np

from infra.bench.load.cells import MODEL
from infra.bench.load.reports import Figure, Report

PROMPT = "Say which of the two functions below is faster and why. " * 6


class BareLoop:
    """Streams that ask one after the other until all requests are made."""

    def __init__(self, url: str, *, num_requests: int, output_tokens: int) -> None:
        self._url = f"{url}/v1/chat/completions"
        self._num_requests = num_requests
        self._output_tokens = output_tokens
        self._numbers = count()
        self.ttft_by_id: dict[str, float] = {}
        self.gap_means: list[float] = []
        self.output_tokens = 0

    async def run(self, streams: int) -> None:
        """Ask with all streams at once."""
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            await asyncio.gather(*(self._stream(session) for _ in range(streams)))

    async def _stream(self, session: aiohttp.ClientSession) -> None:
        while (number := next(self._numbers)) < self._num_requests:
            await self._ask(session, f"bare-{number}")

    async def _ask(self, session: aiohttp.ClientSession, name: str) -> None:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": PROMPT}],
            "max_tokens": self._output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        times: list[float] = []
        start_s = time.monotonic()
        async with session.post(self._url, json=body, headers={"X-Request-Id": name}) as response:
            response.raise_for_status()
            async for line in response.content:
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                item = json.loads(line[6:])
                if usage := item.get("usage"):
                    self.output_tokens += usage["completion_tokens"]
                elif item["choices"][0]["delta"].get("content"):
                    times.append(time.monotonic() - start_s)
        self.ttft_by_id[name] = times[0]
        self.gap_means.append((times[-1] - times[0]) / max(1, len(times) - 1))


def measure(url: str, *, streams: int, num_requests: int, output_tokens: int) -> Report:
    """Run the loop and return what it saw."""
    loop = BareLoop(url, num_requests=num_requests, output_tokens=output_tokens)
    start_s, start_cpu_s = time.monotonic(), time.process_time()
    asyncio.run(loop.run(streams))
    wall_s, cpu_s = time.monotonic() - start_s, time.process_time() - start_cpu_s
    p50, p99 = (float(v) for v in np.quantile(list(loop.ttft_by_id.values()), (0.5, 0.99)))
    return Report(
        num_requests=len(loop.ttft_by_id),
        output_tokens=loop.output_tokens,
        output_throughput=loop.output_tokens / wall_s,
        ttft_p50_s=p50,
        ttft_p99_s=p99,
        ttft_by_id=loop.ttft_by_id,
        chunk_gap=Figure(name="gap", value_s=float(np.mean(loop.gap_means))),
        loop_cpu_s=cpu_s,
    )


def parser(prog: str) -> argparse.ArgumentParser:
    """Return the options that our own clients have in common."""
    options = argparse.ArgumentParser(prog=prog)
    options.add_argument("--url", required=True)
    options.add_argument("--streams", type=int, required=True)
    options.add_argument("--requests", type=int, required=True)
    options.add_argument("--output-tokens", type=int, required=True)
    options.add_argument("--out", type=Path, required=True)
    return options


def write(report: Report, path: Path) -> None:
    """Write a report for ``reports.read_report``."""
    path.write_text(json.dumps(asdict(report)), encoding="utf-8")


def main() -> None:
    """Run one load and write its report."""
    options = parser("python -m infra.bench.load.bare").parse_args()
    report = measure(
        options.url,
        streams=options.streams,
        num_requests=options.requests,
        output_tokens=options.output_tokens,
    )
    write(report, options.out)


if __name__ == "__main__":
    main()
