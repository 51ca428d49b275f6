"""``measure``: one cell against any running server, without Ray and without MLflow.

It wires its few adapters itself: ``compose`` knows Ray, which takes seconds to import.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.adapters import http_metrics
from orchestrator.adapters.generation_config import generation_defaults
from orchestrator.adapters.node import LocalNode
from orchestrator.block_report import Setting, block_record, format_block
from orchestrator.config import CONF_DIR
from orchestrator.core.checks import Expectations, draft_doubt
from orchestrator.core.lines import printed
from orchestrator.core.node_health import NodeNeeds
from orchestrator.core.sampling import Shaping
from orchestrator.core.types import Block, Cell
from orchestrator.errors import ConfigError, TransientError, reported_at
from orchestrator.load.random_text import random_reason
from orchestrator.load.sequence import MIN_TOKENS, CallSequence
from orchestrator.load.settings import LoadSettings
from orchestrator.load.streams import HttpLoad
from orchestrator.load.workload import Workload, find_workload, load_workload
from orchestrator.measure_arguments import add_parser
from orchestrator.measurement import BlockOrder, Instruments, measure_block
from orchestrator.named_server import named_server
from orchestrator.ports import LoadRequest

__all__ = ["add_parser", "run"]

DEFAULT_IN_FLIGHT = 256
MAX_LOCAL_STREAMS = 16_384
"""More than one process can hold towards one address, whose ports are some 28,000 on Linux."""


def run(args: argparse.Namespace) -> int:
    """Measure and print; return the exit status, 1 for a block that is not valid.

    Raises:
        ConfigError: An argument is out of range, or no server answers; no request was made.
    """
    plan = _plan(args)
    local = LocalNode("local", kind="local") if http_metrics.is_local(args.url) else None
    instruments = Instruments(
        load=HttpLoad(plan.workload, settings=plan.settings, api_key=plan.api_key),
        metrics_text=plan.counters.read,
        node=local,
        needs=NodeNeeds(),
    )
    measured = measure_block(plan.order, instruments)
    setting = _setting(args, plan, measured.block)
    if args.json:
        record = block_record(measured, setting, with_requests=args.requests)
        sys.stdout.write(json.dumps(record, indent=1, allow_nan=False) + "\n")
    else:
        sys.stdout.writelines(printed(format_block(measured.block, setting)))
    return 0 if measured.block.is_valid else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sampling:
    profile: str
    temperature: float
    shaping: Shaping


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counters:
    """How the engine's counters are read, or why they are not."""

    read: Callable[[], str] | None
    note: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What is to be measured, checked."""

    order: BlockOrder
    workload: Workload
    settings: LoadSettings
    sampling: _Sampling
    counters: _Counters
    api_key: str | None


def _plan(args: argparse.Namespace) -> _Plan:
    base = http_metrics.base_url(args.url, "--url")
    with reported_at("--workload"):
        workload = load_workload(find_workload(args.workload, CONF_DIR))
    sampling = _sampling(args)
    cell = _cell(args, workload, sampling)
    settings = _settings(args, sampling)
    _check(args, workload)
    # A seed used before would send the very prompts that a prefix cache still holds.
    seed = secrets.randbelow(2**31) if args.seed is None else args.seed
    request = LoadRequest(base_url=base, model=args.model or "", cell=cell, seed=seed)
    _check_calls(workload, CallSequence(workload, settings, request))
    server = named_server(args)
    request = replace(request, model=server.model)
    order = BlockOrder(
        boot_id="measure",
        index=0,
        request=request,
        expected=Expectations(needs_counters=False, allows_cache=args.no_salt),
        ignores_eos=settings.ignore_eos,
    )
    return _Plan(
        order=order,
        workload=workload,
        settings=settings,
        sampling=sampling,
        counters=_counters(args.metrics_url or f"{base}/metrics", stated=bool(args.metrics_url)),
        api_key=server.api_key,
    )


def _setting(args: argparse.Namespace, plan: _Plan, block: Block) -> Setting:
    workload, request = plan.workload, plan.order.request
    doubts = (random_reason(workload), draft_doubt([block]), *_doubts(block))
    return Setting(
        url=request.base_url,
        model=request.model,
        workload={
            "name": workload.name,
            "digest": workload.digest,
            "num_prompts": len(workload.prompts),
            "categories": workload.mix,
        },
        sampling=_stated(plan.sampling, plan.settings),
        load={
            "endpoint": args.endpoint,
            "dialect": args.dialect,
            "seed": plan.order.request.seed,
            "salt": plan.settings.salt,
            "block_s": plan.settings.block_s,
            "block_tokens": plan.settings.block_tokens,
        },
        acceptance_note=plan.counters.note or _no_acceptance(block),
        warnings=tuple(doubt for doubt in doubts if doubt is not None),
    )


def _doubts(block: Block) -> Iterator[str]:
    """Yield what a valid block leaves open."""
    if not block.is_valid:
        return
    if block.num_failed:
        yield (
            f"{block.num_failed} of {block.num_requests} requests failed, for example: "
            f"{next(iter(block.errors))}; if those are the longest prompts, only the others were "
            "measured"
        )
    if not block.tpot_s:
        yield "no answer was complete within the window: give it more than the time of an answer"


def _sampling(args: argparse.Namespace) -> _Sampling:
    given = {"temperature": args.temperature, "top_p": args.top_p, "top_k": args.top_k}
    stated = {name: value for name, value in given.items() if value is not None}
    if args.client_default is None:
        temperature = stated.pop("temperature", 1.0)
        return _Sampling(profile="explicit", temperature=temperature, shaping=Shaping(**stated))
    if stated:
        raise ConfigError(
            "--client-default", f"--{next(iter(stated)).replace('_', '-')} is stated as well",
            "leave one of them out",
        )  # fmt: skip
    return _client_default(args.client_default)


def _client_default(folder: Path) -> _Sampling:
    if not folder.is_dir():
        raise ConfigError("--client-default", f"{folder} is no folder", "give the model's folder")
    found = generation_defaults(folder, {})
    if found.min_p > 0:
        raise ConfigError(
            "--client-default", f"min_p is {found.min_p:g} there, and speculation ignores it",
            "state the sampling instead",
        )  # fmt: skip
    return _Sampling(
        profile=f"client default of {folder.resolve().name}",
        temperature=found.temperature,
        shaping=Shaping.of(found),
    )


def _stated(sampling: _Sampling, settings: LoadSettings) -> dict[str, object]:
    shaping = sampling.shaping
    stated: dict[str, object] = {
        "profile": sampling.profile,
        "temperature": sampling.temperature,
        "top_p": shaping.top_p,
    }
    if settings.dialect == "vllm":
        stated |= {
            "top_k": shaping.top_k,
            "repetition_penalty": shaping.repetition_penalty,
            "ignore_eos": settings.ignore_eos,
        }
    return stated | {
        "presence_penalty": shaping.presence_penalty,
        "frequency_penalty": shaping.frequency_penalty,
        "max_tokens": settings.max_tokens,
    }


def _cell(args: argparse.Namespace, workload: Workload, sampling: _Sampling) -> Cell:
    rate, most = args.request_rate, args.max_in_flight
    if rate is not None and not 0 < rate < float("inf"):
        raise ConfigError("--request-rate", f"{rate:g} is out of range", "give a rate above 0")
    if rate is None and most is not None:
        raise ConfigError("--max-in-flight", "there is no --request-rate", "use --concurrency")
    in_flight = DEFAULT_IN_FLIGHT if most is None else most
    streams = args.concurrency if rate is None else in_flight
    if not 1 <= streams <= MAX_LOCAL_STREAMS:
        name = "--concurrency" if rate is None else "--max-in-flight"
        raise ConfigError(name, f"{streams} is out of range", f"give 1 to {MAX_LOCAL_STREAMS}")
    return Cell(
        streams=streams,
        temperature=sampling.temperature,
        workload=workload.name,
        request_rate=rate or 0.0,
    )


def _settings(args: argparse.Namespace, sampling: _Sampling) -> LoadSettings:
    inf, shaping = float("inf"), sampling.shaping
    ranges = (
        ("--temperature", sampling.temperature, 0 <= sampling.temperature <= 2, "0 to 2"),
        ("--top-p", shaping.top_p, 0 < shaping.top_p <= 1, "above 0 and up to 1"),
        ("--top-k", shaping.top_k, shaping.top_k >= 0, "0 (no limit) or more"),
        ("--max-tokens", args.max_tokens, args.max_tokens >= MIN_TOKENS, f"{MIN_TOKENS} or more"),
        ("--duration", args.duration, 0 < args.duration < inf, "seconds above 0"),
        ("--timeout", args.timeout, 0 < args.timeout < inf, "seconds above 0"),
        ("--stall-timeout", args.stall_timeout, 0 < args.stall_timeout < inf, "seconds above 0"),
        ("--tokens", args.tokens, args.tokens is None or args.tokens >= 1, "1 or more"),
    )
    for name, value, is_fine, wanted in ranges:
        if not is_fine:
            raise ConfigError(name, f"{value} is out of range", f"give {wanted}")
    return LoadSettings(
        shaping=sampling.shaping,
        endpoint=args.endpoint,
        max_tokens=args.max_tokens,
        ignore_eos=not args.stop_at_eos and args.dialect == "vllm",
        block_s=args.duration,
        block_tokens=args.tokens,
        warmup_requests_per_stream=1,
        warmup_max_tokens=min(32, args.max_tokens),
        request_timeout_s=args.timeout,
        stall_timeout_s=args.stall_timeout,
        block_silence_s=args.stall_timeout,
        salt=not args.no_salt,
        dialect=args.dialect,
    )


def _check(args: argparse.Namespace, workload: Workload) -> None:
    if workload.needs_chat and args.endpoint != "chat":
        raise ConfigError(
            "--endpoint", f"workload '{workload.name}' holds conversations", "use --endpoint chat"
        )
    if args.requests and not args.json:
        raise ConfigError("--requests", "belongs to the record", "add --json")


def _check_calls(workload: Workload, calls: CallSequence) -> None:
    """Make every kind of call once, so that none turns out impossible in the middle."""
    try:
        call = calls.warm_up(0, 0)
        for prompt in workload.prompts:
            call = replace(
                call, prompt_id=prompt.prompt_id, messages=prompt.messages, extra=prompt.extra
            )
    except ConfigError as error:
        raise ConfigError(
            "--dialect" if calls.settings.dialect == "openai" else "--endpoint",
            f"{error.where}: {error.problem}", error.remedy,
        ) from error  # fmt: skip


def _counters(url: str, *, stated: bool) -> _Counters:
    """Return how to read the counters; an address that was stated must have them."""
    http_metrics.base_url(url, "--metrics-url", form="http://host:port/metrics")
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


def _no_acceptance(block: Block) -> str | None:
    """Return why a server with counters has no acceptance, or None where it has one."""
    if block.counters.num_drafts:
        return None
    if block.counters.generation_tokens is None:
        return "there are no counters of this window"
    return "the engine drafted nothing in the window"
