"""Attack the production route while honest clients stream: does it keep serving them?

    python -m infra.chaos.attack [--connections 100000] [--seconds 15] [--haproxy]

One local Ray, the production router, a stand-in engine, and HAProxy in front where that is asked.
Honest clients stream all the time and check every token. Meanwhile, one after the other:
connections that are opened and left, heads and bodies that drip, clients that read nothing, bodies
that are no JSON. A line for each says what was done and what the honest clients got. The exit
status is 1 when one of them was failed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.bench.router.cluster import HAPROXY, MODEL, PROXY, BenchError, serving
from infra.chaos.clients import Clients

ENGINES = {"bench-v1": {"STEP_S": "0.005"}}
HONEST = 8
"""Streams at a time."""
PER_PROCESS = 15_000
"""Connections of one attacking process: below its descriptors, and the ports of one address."""
HEAD = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What one attacking process does."""

    kind: str
    """Of ``KINDS``."""
    port: int
    number: int
    seconds: float
    address: str
    """Of this machine's loopback, to come from: each has its own ports."""


@dataclass(slots=True)
class Done:
    """What it came to."""

    opened: int = 0
    refused: int = 0
    """Connections that were not let in."""
    ended: int = 0
    """Connections that the server ended."""
    answers: int = 0


Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Kind = Callable[[Pair, Done, float], Coroutine[Any, Any, None]]


async def _leave(pair: Pair, done: Done, until: float) -> None:
    """Say nothing."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(until):
            with contextlib.suppress(OSError):
                await pair[0].read(1)
            done.ended += 1


async def _drip_head(pair: Pair, done: Done, until: float) -> None:
    await _drip(pair, done, until, b"GET /health HTTP/1.1\r\nx-a: ")


async def _drip_body(pair: Pair, done: Done, until: float) -> None:
    await _drip(pair, done, until, f"{HEAD}Content-Length: 100000\r\n\r\n{{".encode())


async def _drip(pair: Pair, done: Done, until: float, first: bytes) -> None:
    """Send a byte every half second."""
    reader, writer = pair
    writer.write(first)
    try:
        while asyncio.get_running_loop().time() < until:
            writer.write(b"a")
            await writer.drain()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    if not await reader.read(4096):
                        done.ended += 1
                        return
                    done.answers += 1
    except OSError:
        done.ended += 1


async def _read_nothing(pair: Pair, _done: Done, until: float) -> None:
    body = (
        f'{{"model": "{MODEL}", "prompt": "a", "max_tokens": 2000, "stream": true, '
        '"ignore_eos": true}'
    )
    pair[1].write(f"{HEAD}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    transport: Any = pair[1].transport
    transport.pause_reading()
    await asyncio.sleep(max(0.0, until - asyncio.get_running_loop().time()))


async def _send_nonsense(pair: Pair, done: Done, until: float) -> None:
    """Send bodies that are no JSON, on one connection until it is ended."""
    reader, writer = pair
    source = random.Random(done.opened)
    while asyncio.get_running_loop().time() < until:
        body = source.choice(
            (b"", b"{", b"[" * 5000, b"nul", source.randbytes(200), b'{"a": 1e999999}', b"\xff\xfe")
        )
        writer.write(f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = int(head.partition("content-length: ")[2].partition("\r\n")[0] or 0)
            await reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError):
            done.ended += 1
            return
        done.answers += 1


KINDS: dict[str, tuple[Kind, int]] = {
    "opened and left": (_leave, 0),
    "heads that drip": (_drip_head, 2000),
    "bodies that drip": (_drip_body, 1000),
    "read nothing": (_read_nothing, 64),
    "no JSON": (_send_nonsense, 32),
}
"""With how many connections; 0 is the command's."""


async def _attack(order: Order) -> Done:
    done, kind = Done(), KINDS[order.kind][0]
    until = asyncio.get_running_loop().time() + order.seconds
    free = asyncio.Semaphore(200)  # of connections that are being made

    async def one() -> None:
        async with free:
            try:
                async with asyncio.timeout(5):
                    pair = await asyncio.open_connection(
                        "127.0.0.1", order.port, local_addr=(order.address, 0)
                    )
            except (OSError, TimeoutError):
                done.refused += 1
                return
        done.opened += 1
        try:
            await kind(pair, done, until)
        finally:
            pair[1].transport.abort()

    await asyncio.gather(*(one() for _ in range(order.number)))
    return done


def _work(order: Order) -> Done:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.nice(5)  # the honest ones and the server share the cores with this
    return asyncio.run(_attack(order))


def attack(kind: str, port: int, number: int, seconds: float) -> Done:
    """Attack the port from as many processes as it takes, and return what they all did."""
    orders = [
        Order(
            kind=kind,
            port=port,
            number=min(PER_PROCESS, number - first),
            seconds=seconds,
            address=f"127.0.1.{1 + index}",
        )
        for index, first in enumerate(range(0, number, PER_PROCESS))
    ]
    whole = Done()
    with multiprocessing.get_context("spawn").Pool(len(orders)) as pool:
        for done in pool.map(_work, orders, chunksize=1):
            whole.opened += done.opened
            whole.refused += done.refused
            whole.ended += done.ended
            whole.answers += done.answers
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every attack and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m infra.chaos.attack")
    parser.add_argument("--connections", type=int, default=100_000, help="opened and left")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each attack")
    parser.add_argument("--only", choices=KINDS, help="one attack")
    parser.add_argument("--haproxy", action="store_true", help="attack HAProxy, not Serve's proxy")
    options = parser.parse_args(arguments)
    folder, num_bad = Path(tempfile.mkdtemp(prefix="ca-")), 0
    try:
        with serving(folder, ENGINES, with_haproxy=options.haproxy) as ways:
            front = ways.routed[HAPROXY if options.haproxy else PROXY]
            port = int(front.rpartition(":")[2])
            for kind in ["calm", *([options.only] if options.only else KINDS)]:
                started = time.monotonic()
                with Clients(front, MODEL, streams=HONEST) as tally:
                    time.sleep(1)
                    if kind == "calm":
                        time.sleep(options.seconds)
                        did = "nothing else"
                    else:
                        number = KINDS[kind][1] or options.connections
                        done = attack(kind, port, number, options.seconds)
                        did = (
                            f"{done.opened} opened, {done.refused} not let in, {done.ended} ended "
                            f"by the server, {done.answers} answers"
                        )
                num_bad += tally.num_bad
                took = time.monotonic() - started
                print(f"{kind}: {did}; honest: {tally.words()} in {took:.0f} s", flush=True)
    except (BenchError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return int(num_bad > 0)


if __name__ == "__main__":
    sys.exit(main())
