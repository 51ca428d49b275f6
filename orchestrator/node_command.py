"""``python -m orchestrator node``: this machine's state and whether it can be measured on."""

from __future__ import annotations

import argparse
import json
import socket
import sys

from orchestrator.adapters.node import LocalNode
from orchestrator.core.codec import to_plain
from orchestrator.core.lines import printed
from orchestrator.core.node_health import GIB, NodeNeeds, judge, judge_for_boot
from orchestrator.core.node_state import Fitness, GpuProcess, NodeState, NodeVerdict
from orchestrator.core.plausible import MAX_GIB
from orchestrator.ports import Node

HELP = "print this machine's state and whether it is fit to measure and to boot on"
DESCRIPTION = f"""\
{HELP}.

Reads /proc and NVML and starts nothing. The clock can be judged only while the GPU is busy.
Exit status: 0 if an engine can be booted here (a doubt is printed), 1 if not.
"""
NONE = "-"
"""Stands for a value that the platform does not tell."""


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    """Add the subcommand ``node`` and return its parser."""
    parser = subparsers.add_parser(
        "node",
        help=HELP,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--gpu",
        default="0",
        metavar="ID",
        help="index or UUID, as in CUDA_VISIBLE_DEVICES (default: 0)",
    )
    parser.add_argument(
        "--kind", default="local", help="kind of node, as in conf/node: gb10 (default: local)"
    )
    parser.add_argument(
        "--engine-gib", type=_gib, metavar="N", help="memory that the engine will take"
    )
    parser.add_argument(
        "--floor-gib", type=_gib, metavar="N", help="memory that must stay available"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def run(args: argparse.Namespace, *, node: Node | None = None) -> int:
    """Print the state and the verdicts; return the exit status.

    Args:
        args: What ``add_parser``'s parser has read.
        node: Read instead of this machine.
    """
    node = node or LocalNode(socket.gethostname(), kind=args.kind, gpu=args.gpu)
    needs = NodeNeeds(engine_memory_bytes=args.engine_gib, min_mem_available_bytes=args.floor_gib)
    state = node.snapshot()
    measure, boot = judge([state], needs=needs), judge_for_boot(state, needs)
    if args.json:
        plain = {"state": to_plain(state), "measure": to_plain(measure), "boot": to_plain(boot)}
        sys.stdout.write(json.dumps(plain, indent=2) + "\n")
    else:
        sys.stdout.writelines(printed(format_node(state, measure, boot)))
    return 1 if boot.fitness is Fitness.UNFIT else 0


def format_node(state: NodeState, measure: NodeVerdict, boot: NodeVerdict) -> list[str]:
    """Return the state as a table and the verdicts below it, one line a row."""
    reasons = state.throttle_reasons
    load = _number(state.load_average_1m, "{:.2f}")
    clock = _number(state.sm_clock_mhz, "{:.0f} MHz")
    rows = [
        ("node", f"{state.node_id} ({state.kind})"),
        ("memory available", _size(state.mem_available_bytes)),
        ("memory free", _size(state.mem_free_bytes)),
        ("page cache", _size(state.page_cache_bytes)),
        ("memory in all", _size(state.mem_total_bytes)),
        ("swap in use", _size(state.swap_used_bytes)),
        ("load average", load + _number(state.num_cores, " on {:.0f} cores", unknown="")),
        ("SM clock", clock + _number(state.sm_clock_max_mhz, " of {:.0f} MHz", unknown="")),
        ("GPU busy", _number(state.utilisation, "{:.0%}")),
        ("power", _number(state.power_w, "{:.1f} W")),
        ("temperature", _number(state.temperature_c, "{:.0f} C")),
        ("throttled by", NONE if reasons is None else ", ".join(reasons) or "nothing"),
        *_processes(state.gpu_processes),
        ("fit to measure on", _verdict(measure)),
        ("fit to boot on", _verdict(boot)),
    ]
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {value}" for name, value in rows]


def _processes(processes: tuple[GpuProcess, ...] | None) -> list[tuple[str, str]]:
    """Return one row a process, the first with the name of the field."""
    name = "on the GPU"
    if not processes:
        return [(name, NONE if processes is None else "nothing")]
    return [
        ("" if i else name, f"pid {p.pid}, {p.name or NONE}, {_size(p.memory_bytes)}")
        for i, p in enumerate(processes)
    ]


def _verdict(verdict: NodeVerdict) -> str:
    word = "yes" if verdict.fitness is Fitness.FIT else str(verdict.fitness)
    return f"{word}: {verdict.reason}" if verdict.reason else word


def _size(size: int | None) -> str:
    return NONE if size is None else f"{size / GIB:.1f} GiB"


def _number(value: float | None, form: str, *, unknown: str = NONE) -> str:
    return unknown if value is None else form.format(value)


def _gib(text: str) -> int:
    try:
        size = float(text)
    except ValueError:
        size = -1.0
    if not 0 < size <= MAX_GIB:
        problem = f"{text!r} is no size in GiB; give a number above 0 and up to {MAX_GIB:,}"
        raise argparse.ArgumentTypeError(problem)
    return int(size * GIB)
