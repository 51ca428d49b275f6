"""Serve a known answer: ``python -m orchestrator.fakes.openai --ttft-ms 50 --gap-ms 40``.

Prints ``listening on http://127.0.0.1:PORT`` and runs until it is told to end.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from orchestrator.fakes.openai.engine import EngineSettings
from orchestrator.fakes.openai.process import serve_until_told, truth_writer
from orchestrator.fakes.openai.replay import replaying
from orchestrator.fakes.openai.server import engine_server


def main(argv: list[str] | None = None) -> None:
    """Run the server."""
    options = _parser().parse_args(argv)
    server = engine_server(
        EngineSettings(
            ttft_s=options.ttft_ms / 1000,
            gap_s=options.gap_ms / 1000,
            tokens_per_chunk=options.tokens_per_chunk,
            num_speculative_tokens=options.num_speculative_tokens,
            models=tuple(options.model),
            max_model_len=options.max_model_len,
        )
    )
    server.keeps_requests = False
    if options.truth is None:
        try:
            asyncio.run(serve_until_told(server, replaying(server, options.port)))
        except OSError as error:
            sys.exit(f"error: --port: {options.port} cannot be used ({error.strerror}); 0 is any")
        return
    with options.truth.open("a", encoding="utf-8") as file:
        server.on_truth = truth_writer(file)
        try:
            asyncio.run(serve_until_told(server, replaying(server, options.port)))
        except OSError as error:
            sys.exit(f"error: --port: {options.port} cannot be used ({error.strerror}); 0 is any")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m orchestrator.fakes.openai")
    parser.add_argument("--port", type=int, default=0, help="0 for any that is free")
    parser.add_argument("--ttft-ms", type=float, default=50.0, help="arrival to first chunk")
    parser.add_argument("--gap-ms", type=float, default=40.0, help="between chunks")
    parser.add_argument("--tokens-per-chunk", type=int, default=4)
    parser.add_argument(
        "--num-speculative-tokens", type=int, default=0, help="publish counters of this depth"
    )
    parser.add_argument("--model", action="append", default=[], help="serve this name only")
    parser.add_argument("--max-model-len", type=int, help="refuse longer requests")
    parser.add_argument("--truth", type=Path, help="append a JSON line for each request")
    return parser


if __name__ == "__main__":
    main()
