"""The way through Serve's proxy and the router, beside the engine's own HTTP.

    python -m infra.bench.router [--quick] [--write]

Starts a Ray of one node with the production applications (stand-in engines, their steps as long as
a board's), asks all ways in turn, and ends it. `--write` puts the figures into
docs/bench-router.md. Exit status 1: a chunk was merged, split or changed on the way.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

from infra.bench.load.__main__ import write_document
from infra.bench.load.machine import cpu_model
from infra.bench.router.cluster import MODEL, PROJECT, BenchError, Ways, serving
from infra.bench.router.figures import Round, added, cell_lines, is_clean
from infra.bench.router.wire import Answer, Connection, WireError, request_bytes
from serve_apps.router.policy import APP_HEADER

DOCUMENT = PROJECT / "docs" / "bench-router.md"
_GOAL_MS = 5.0
"""Of the added TTFT at p50."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One load."""

    app: str
    title: str
    streams: int
    requests: int
    """Of each stream on each way in a round."""
    tokens: int
    rounds: int
    """Many short ones, so that all ways meet the same machine."""


ENGINES = {
    # A board's step at a few streams, and chunks as fast as two cores pass them at all.
    "bench-v1": {"STEP_S": "0.04"},
    "bench-v2": {"STEP_S": "0.005", "STEP_PER_STREAM_S": "0"},
}
Results = dict[Cell, dict[str, list[Round]]]
"""By cell and way."""
CELLS = (
    Cell(
        app="bench-v1", title="1 stream, steps of 40 ms",
        streams=1, requests=2, tokens=8, rounds=24,
    ),
    Cell(
        app="bench-v1", title="16 streams, steps of 43 ms",
        streams=16, requests=1, tokens=16, rounds=12,
    ),
    Cell(
        app="bench-v2", title="4 streams, steps of 5 ms",
        streams=4, requests=1, tokens=200, rounds=6,
    ),
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m infra.bench.router")
    parser.add_argument("--quick", action="store_true", help="two rounds")
    parser.add_argument("--write", action="store_true", help="put the figures into the document")
    options = parser.parse_args(arguments)
    before = os.getloadavg()[0]
    # Unix sockets lie below it, and their paths have a limit.
    folder = Path(tempfile.mkdtemp(prefix="br-"))
    try:
        with serving(folder, ENGINES, with_haproxy=True) as ways:
            results = {
                cell: asyncio.run(_rounds(cell, ways, 2 if options.quick else cell.rounds))
                for cell in CELLS
            }
    except (BenchError, WireError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    lines = [*_conditions(before, os.getloadavg()), ""]
    for cell, by_way in results.items():
        lines += [*cell_lines(cell.title, by_way), ""]
    lines += _findings(results)
    print("\n".join(lines))
    if options.write:
        write_document(DOCUMENT, lines)
    return int(bool(_unclean(results)))


def _unclean(results: Results) -> list[str]:
    """Return the ways on which a chunk was merged, split or changed."""
    ways = [item for by_way in results.values() for item in by_way.items()]
    return sorted({name for name, rounds in ways if not is_clean(rounds)})


async def _rounds(cell: Cell, ways: Ways, num_rounds: int) -> dict[str, list[Round]]:
    """Ask all ways in turn, in an order by chance; one round more to warm up."""
    source = random.Random(cell.title)
    found: dict[str, list[Round]] = {name: [] for name in ways.routed}
    addresses = {"direct": ways.direct[cell.app], **ways.routed}
    for number in range(num_rounds + 1):
        answers: dict[str, tuple[Answer, ...]] = {}
        for name in source.sample(list(addresses), len(addresses)):
            headers = {} if name == "direct" else {APP_HEADER: cell.app}
            answers[name] = await _on_way(cell, addresses[name], headers, number)
        if number:
            for name, rounds in found.items():
                rounds.append(Round(direct=answers["direct"], routed=answers[name]))
    return found


async def _on_way(
    cell: Cell, address: str, headers: dict[str, str], number: int
) -> tuple[Answer, ...]:
    streams = [_stream(cell, address, headers, number, index) for index in range(cell.streams)]
    return tuple(answer for answers in await asyncio.gather(*streams) for answer in answers)


async def _stream(
    cell: Cell, address: str, headers: dict[str, str], number: int, index: int
) -> list[Answer]:
    """Ask one after the other on one connection; streams begin spread over a step."""
    where = urlsplit(address)
    assert where.hostname is not None
    assert where.port is not None
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(Connection, where.hostname, where.port)
    try:
        await asyncio.sleep(0.04 * index / cell.streams)
        return [
            await connection.ask(
                request_bytes(
                    f"{where.path}/v1/completions",
                    {
                        "model": MODEL,
                        "prompt": f"round {number} stream {index} request {request}",
                        "max_tokens": cell.tokens,
                        "temperature": 0,
                        "ignore_eos": True,
                        "stream": True,
                        "stream_options": {"include_usage": True},
                    },
                    headers,
                )
            )
            for request in range(cell.requests)
        ]
    finally:
        connection.close()


def _conditions(before: float, after: tuple[float, float, float]) -> list[str]:
    info = Path("/proc/cpuinfo")
    model = cpu_model(info.read_text(encoding="utf-8")) if info.exists() else None
    return [
        f"- {datetime.now(tz=UTC):%Y-%m-%d}, {os.cpu_count()} cores, "
        f"{model or 'processor unknown'}, {platform.system()}, Python "
        f"{platform.python_version()}, Ray {version('ray')}; all of it on this one machine",
        f"- load average before the start {before:.2f}, at the end {after[0]:.2f} (one minute), "
        f"{after[1]:.2f} (five); the run itself is part of it",
    ]


def _findings(results: Results) -> list[str]:
    unclean = "; ".join(_unclean(results)) or "none"
    lines = [f"ways on which chunks were merged, split or changed: {unclean}"]
    for cell, by_way in results.items():
        for name, rounds in by_way.items():
            value, low, high = (1000 * each for each in added(rounds, 0.5))
            is_under, is_over = high < _GOAL_MS, low > _GOAL_MS
            word = "under" if is_under else "over" if is_over else "not told apart from"
            lines.append(
                f"added TTFT p50 at {cell.title}, {name}: {value:.2f} ms, {word} {_GOAL_MS:g} ms"
            )
    return lines


if __name__ == "__main__":
    sys.exit(main())
