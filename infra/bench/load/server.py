"""The replaying server: `python -m infra.bench.load.server --ttft-ms 50 --gap-ms 20`.

The fake engine of `orchestrator.fakes.openai` with two things added. The time to the first token
differs from request to request, by a fixed cycle: streams that start together would otherwise
stay in step for ever, and what a client then measures is mostly how long the server takes to
receive so many requests at once. And every answer of one kind is made once, so that the server
has nothing to compute when a request arrives.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.fakes.openai import (
    Behaviour,
    Chunk,
    Engine,
    EngineSettings,
    Script,
    SseServer,
)
from orchestrator.fakes.openai.process import serve_until_told, truth_writer
from orchestrator.fakes.openai.server import listening

STAGGER_STEPS = 16
"""Different times to the first token; one after the other, then again."""
STAGGER_STRIDE = 7
"""Neighbours in the cycle are this many steps apart, so that they do not arrive in order."""


def staggered(engine: Engine, *, stagger_s: float) -> Behaviour:
    """Return a behaviour whose k-th answer is late by a share of ``stagger_s``, 0 to below 1.

    Requests are told apart only by what changes the events of an answer.
    """
    made: dict[tuple[object, ...], Script] = {}

    def answer(number: int, body: dict[str, Any]) -> Script:
        step = number * STAGGER_STRIDE % STAGGER_STEPS
        key = (step, *_kind(body))
        if key not in made:
            made[key] = _later(engine.answer(body), step * stagger_s / STAGGER_STEPS)
        return made[key]

    return answer


def _kind(body: Mapping[str, Any]) -> tuple[object, ...]:
    options = body.get("stream_options")
    return (
        "messages" in body,
        body.get("model"),
        body.get("stream"),
        body.get("max_tokens"),
        body.get("max_completion_tokens"),
        tuple(sorted(options.items())) if isinstance(options, dict) else None,
    )


def _later(script: Script, by_s: float) -> Script:
    parts = tuple(
        replace(part, at_s=part.at_s + by_s)
        if isinstance(part, Chunk) and part.at_s is not None
        else part
        for part in script.parts
    )
    return replace(script, parts=parts)


def main(arguments: list[str] | None = None) -> None:
    """Run the server until it is told to end."""
    options = _parser().parse_args(arguments)
    settings = EngineSettings(
        ttft_s=options.ttft_ms / 1000,
        gap_s=options.gap_ms / 1000,
        tokens_per_chunk=options.tokens_per_chunk,
        models=(options.model,),
    )
    engine = Engine(settings)
    behaviour = staggered(engine, stagger_s=options.stagger_ms / 1000)
    server = SseServer(engine=engine, behaviour=behaviour, keeps_requests=False)
    with options.truth.open("a", encoding="utf-8") as file:
        server.on_truth = truth_writer(file)
        asyncio.run(serve_until_told(server, listening(server)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m infra.bench.load.server")
    parser.add_argument("--ttft-ms", type=float, default=50.0, help="shortest, to the first chunk")
    parser.add_argument("--stagger-ms", type=float, default=0.0, help="spread of that time")
    parser.add_argument("--gap-ms", type=float, default=20.0, help="between chunks")
    parser.add_argument("--tokens-per-chunk", type=int, default=1)
    parser.add_argument("--model", default="replay")
    parser.add_argument("--truth", type=Path, required=True, help="append a JSON line a request")
    return parser


if __name__ == "__main__":
    main()
