"""The arguments of ``measure``."""

from __future__ import annotations

import argparse
from pathlib import Path

from orchestrator.load.settings import STALL_TIMEOUT_S

DESCRIPTION = """\
Measures one cell against a running OpenAI-compatible server: warm-up, one window in which every
stream is busy, drain; throughput, latency, acceptance and whether the numbers can be trusted.
exit status: 0 the block is valid; 1 it is not, or was not measured; 2 bad input, nothing was sent
"""

SEED = "of prompts, their salts and samples; by default a new one each time"
IN_FLIGHT = "most requests at a time with --request-rate; default 256"
WINDOW = "seconds of the window; default 20"
BUDGET = "close the window before its time once complete answers hold N output tokens"
TIMEOUT = "longest time of a request, seconds; default 300"
STALL = "longest time of a request without a byte, seconds; default 120"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand to the command line's grammar."""
    sub = subparsers.add_parser(
        "measure",
        help="measure one cell against any running server; needs neither Ray nor MLflow",
        description=DESCRIPTION,
    )
    sub.add_argument("--url", required=True, help="address of the server, http://host:port/v1")
    sub.add_argument("--model", help="served model name; by default the first that it offers")
    load = sub.add_argument_group("load")
    how = load.add_mutually_exclusive_group()
    how.add_argument("--concurrency", type=int, default=1, metavar="N", help="streams; default 1")
    how.add_argument("--request-rate", type=float, metavar="R", help="Poisson arrivals / s")
    load.add_argument("--max-in-flight", type=int, metavar="N", help=IN_FLIGHT)
    load.add_argument("--workload", default="code", help="a name or a JSONL file; default code")
    load.add_argument("--duration", type=float, default=20.0, metavar="S", help=WINDOW)
    load.add_argument("--tokens", type=int, metavar="N", help=BUDGET)
    load.add_argument(
        "--max-tokens", type=int, default=256, metavar="N", help="of an answer; default 256"
    )
    load.add_argument("--endpoint", choices=("chat", "completions"), default="chat", help="chat")
    load.add_argument("--stop-at-eos", action="store_true", help="let answers end by themselves")
    load.add_argument("--no-salt", action="store_true", help="let prefix caching help")
    load.add_argument("--seed", type=int, help=SEED)
    load.add_argument("--timeout", type=float, default=300.0, metavar="S", help=TIMEOUT)
    load.add_argument(
        "--stall-timeout", type=float, default=STALL_TIMEOUT_S, metavar="S", help=STALL
    )
    load.add_argument(
        "--dialect", choices=("vllm", "openai"), default="vllm",
        help="openai sends only what OpenAI's own API knows; default vllm",
    )  # fmt: skip
    sampling = sub.add_argument_group("sampling, written out in every request")
    sampling.add_argument("--temperature", type=float, help="1.0 unless --client-default")
    sampling.add_argument("--top-p", type=float, help="1.0 unless --client-default")
    sampling.add_argument("--top-k", type=int, help="0 is no limit")
    sampling.add_argument(
        "--client-default", type=Path, metavar="FOLDER",
        help="sample as a client does that states nothing: from this model's generation config",
    )  # fmt: skip
    places = sub.add_argument_group("server")
    places.add_argument("--metrics-url", help="the engine's counters, if not at /metrics")
    places.add_argument("--api-key-env", metavar="NAME", help="variable that holds the API key")
    output = sub.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="the record of docs/measure.md")
    output.add_argument("--requests", action="store_true", help="with every request (--json)")
