"""``measure``: one cell against any running server, without Ray and without MLflow.

It wires its few adapters itself: ``compose`` knows Ray, which takes seconds to import.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.adapters import http_metrics
from orchestrator.adapters.generation_config import generation_defaults
from orchestrator.adapters.node import LocalNode
from orchestrator.block_report import Setting, block_record, format_block
from orchestrator.config import CONF_DIR
from orchestrator.core.checks import Expectations
from orchestrator.core.node_health import NodeNeeds
from orchestrator.core.types import Cell
from orchestrator.errors import ConfigError, TransientError
from orchestrator.load.settings import LoadSettings
from orchestrator.load.streams import HttpLoad
from orchestrator.load.workload import Workload, find_workload, load_workload
from orchestrator.measurement import BlockOrder, Instruments, measure_block
from orchestrator.ports import LoadRequest

DESCRIPTION = """\
Measures one cell against a running OpenAI-compatible server: warm-up, one window in which every
stream is busy, drain; throughput, latency, acceptance and whether the numbers can be trusted.
"""


def add_parser(subparsers: Any) -> None:
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
    how.add_argument("--concurrency", type=int, default=1, metavar="N", help="streams (1)")
    how.add_argument("--request-rate", type=float, metavar="R", help="Poisson arrivals / s instead")
    load.add_argument("--max-in-flight", type=int, default=256, help="with --request-rate (256)")
    load.add_argument("--workload", default="code", help="a shipped name, or a JSONL file (code)")
    load.add_argument("--duration", type=float, default=20.0, metavar="S", help="window (20)")
    load.add_argument("--tokens", type=int, metavar="N", help="close the window after N tokens")
    load.add_argument("--max-tokens", type=int, default=256, metavar="N", help="an answer's (256)")
    load.add_argument("--endpoint", choices=("chat", "completions"), default="chat")
    load.add_argument("--stop-at-eos", action="store_true", help="let answers end by themselves")
    load.add_argument("--no-salt", action="store_true", help="let prefix caching help")
    load.add_argument("--seed", type=int, default=1, help="of prompts and samples (1)")
    load.add_argument("--timeout", type=float, default=300.0, metavar="S", help="a request's (300)")
    load.add_argument("--stall-timeout", type=float, default=120.0, metavar="S", help="(120)")
    load.add_argument(
        "--dialect", choices=("vllm", "openai"), default="vllm",
        help="openai sends only what OpenAI's own API knows",
    )  # fmt: skip
    sampling = sub.add_argument_group("sampling, written out in every request")
    sampling.add_argument("--temperature", type=float, help="1.0 unless --client-default")
    sampling.add_argument("--top-p", type=float)
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


def run(args: argparse.Namespace, say: Callable[[str], None]) -> bool:
    """Measure and print; return whether the block is valid.

    Raises:
        ConfigError: An argument is out of range, or no server answers; nothing was sent.
    """
    base = http_metrics.base_url(args.url, "--url")
    workload = load_workload(find_workload(args.workload, CONF_DIR))
    sampling = _sampling(args)
    cell = _cell(args, workload, sampling)
    settings = _settings(args, sampling)
    _check(args, workload)
    api_key = _api_key(args.api_key_env)
    model = args.model or _first_model(base, api_key)
    counters = _counters(args.metrics_url or f"{base}/metrics", stated=bool(args.metrics_url))
    order = BlockOrder(
        boot_id="measure",
        index=0,
        request=LoadRequest(base_url=base, model=model, cell=cell, seed=args.seed),
        expected=Expectations(needs_counters=False, allows_cache=args.no_salt),
        ignores_eos=settings.ignore_eos,
    )
    local = LocalNode("local", kind="local") if http_metrics.is_local(base) else None
    instruments = Instruments(
        load=HttpLoad(workload, settings=settings, api_key=api_key),
        metrics_text=counters.read,
        node=local,
        needs=NodeNeeds(),
    )
    measured = measure_block(order, instruments)
    setting = Setting(
        url=base,
        model=model,
        workload={
            "name": workload.name,
            "digest": workload.digest,
            "num_prompts": len(workload.prompts),
            "categories": workload.mix,
        },
        sampling=_stated(sampling, settings),
        acceptance_note=counters.note or _no_drafts(measured.block.counters.num_drafts),
    )
    if args.json:
        record = block_record(measured, setting, with_requests=args.requests)
        say(json.dumps(record, indent=1, allow_nan=False))
    else:
        for line in format_block(measured.block, setting):
            say(line)
    return measured.block.is_valid


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sampling:
    temperature: float
    top_p: float
    top_k: int
    profile: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counters:
    """How the engine's counters are read, or why they are not."""

    read: Callable[[], str] | None
    note: str | None


def _sampling(args: argparse.Namespace) -> _Sampling:
    given = {"temperature": args.temperature, "top_p": args.top_p, "top_k": args.top_k}
    stated = {name: value for name, value in given.items() if value is not None}
    if args.client_default is None:
        neutral = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
        return _Sampling(profile="explicit", **(neutral | stated))
    if stated:
        raise ConfigError(
            "--client-default", f"--{next(iter(stated)).replace('_', '-')} is stated as well",
            "leave one of them out",
        )  # fmt: skip
    found = generation_defaults(args.client_default, {})
    return _Sampling(
        temperature=found.temperature, top_p=found.top_p, top_k=found.top_k,
        profile=f"client default of {args.client_default.name}",
    )  # fmt: skip


def _stated(sampling: _Sampling, settings: LoadSettings) -> dict[str, object]:
    stated: dict[str, object] = {
        "profile": sampling.profile,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    if settings.dialect == "vllm":
        stated |= {"top_k": sampling.top_k, "ignore_eos": settings.ignore_eos}
    return stated | {"max_tokens": settings.max_tokens}


def _cell(args: argparse.Namespace, workload: Workload, sampling: _Sampling) -> Cell:
    if args.request_rate is not None and not 0 < args.request_rate < float("inf"):
        raise ConfigError("--request-rate", f"{args.request_rate:g} is not above 0", "give a rate")
    streams = args.concurrency if args.request_rate is None else args.max_in_flight
    if streams < 1:
        name = "--concurrency" if args.request_rate is None else "--max-in-flight"
        raise ConfigError(name, f"{streams} is below 1", "give a whole number from 1")
    return Cell(
        streams=streams,
        temperature=sampling.temperature,
        workload=workload.name,
        request_rate=args.request_rate or 0.0,
    )


def _settings(args: argparse.Namespace, sampling: _Sampling) -> LoadSettings:
    ranges = (
        ("--temperature", sampling.temperature, 0 <= sampling.temperature <= 2, "0 to 2"),
        ("--top-p", sampling.top_p, 0 < sampling.top_p <= 1, "above 0 and up to 1"),
        ("--top-k", sampling.top_k, sampling.top_k >= 0, "0 (no limit) or more"),
        ("--max-tokens", args.max_tokens, args.max_tokens >= 2, "2 or more"),
        ("--duration", args.duration, 0 < args.duration < float("inf"), "seconds above 0"),
        ("--timeout", args.timeout, 0 < args.timeout < float("inf"), "seconds above 0"),
        ("--stall-timeout", args.stall_timeout, args.stall_timeout > 0, "seconds above 0"),
        ("--tokens", args.tokens, args.tokens is None or args.tokens >= 1, "1 or more"),
    )
    for name, value, is_fine, wanted in ranges:
        if not is_fine:
            raise ConfigError(name, f"{value} is out of range", f"give {wanted}")
    return LoadSettings(
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        endpoint=args.endpoint,
        max_tokens=args.max_tokens,
        ignore_eos=not args.stop_at_eos and args.dialect == "vllm",
        block_s=args.duration,
        block_tokens=args.tokens,
        warmup_requests_per_stream=1,
        warmup_max_tokens=min(32, args.max_tokens),
        request_timeout_s=args.timeout,
        stall_timeout_s=args.stall_timeout,
        salt=not args.no_salt,
        dialect=args.dialect,
    )


def _check(args: argparse.Namespace, workload: Workload) -> None:
    if workload.needs_chat and args.endpoint != "chat":
        raise ConfigError(
            "--endpoint", f"workload '{workload.name}' holds conversations", "use --endpoint chat"
        )
    if args.dialect == "openai" and args.top_k:
        raise ConfigError("--top-k", "OpenAI's API does not know it", "use --dialect vllm")
    if args.requests and not args.json:
        raise ConfigError("--requests", "belongs to the record", "add --json")


def _api_key(name: str | None) -> str | None:
    if name is None:
        return None
    key = os.environ.get(name)
    if not key:
        raise ConfigError("--api-key-env", f"the variable {name} is not set", "export it")
    return key


def _first_model(base: str, api_key: str | None) -> str:
    try:
        return http_metrics.served_models(base, api_key=api_key)[0]
    except TransientError as error:
        raise ConfigError("--url", str(error), "start the server or correct the address") from error


def _counters(url: str, *, stated: bool) -> _Counters:
    """Return how to read the counters; an address that was stated must have them."""
    http_metrics.base_url(url, "--metrics-url")
    problem = None
    try:
        if "vllm:generation_tokens" not in http_metrics.metrics_text(url):
            problem = f"{url} has no counters of vLLM"
    except TransientError as error:
        problem = str(error)
    if problem is None:
        return _Counters(read=lambda: http_metrics.metrics_text(url), note=None)
    if stated:
        raise ConfigError("--metrics-url", problem, "give the address of the engine's /metrics")
    return _Counters(read=None, note=f"{problem}; --metrics-url names another place")


def _no_drafts(num_drafts: float | None) -> str | None:
    return None if num_drafts else "the engine drafted nothing in the window"
