"""What is told of a trial's blocks and of its end, a sentence each."""

from __future__ import annotations

from orchestrator.core.formulas import acceptance_length, output_throughput
from orchestrator.core.types import Block, Boot, BootStatus


def summarize(block: Block) -> str:
    """Return one sentence about a measured block."""
    if block.invalid_reason is not None:
        return f"{block.cell.key}: not valid, {block.invalid_reason}"
    throughput = output_throughput(block.output_tokens, block.duration_s)
    speed = "no tokens" if throughput is None else f"{throughput:.1f} tok/s"
    length = acceptance_length(block.counters)
    drafting = "" if length is None else f", {length:.2f} tokens a step"
    return f"{block.cell.key}: {speed}{drafting}"


def describe_end(boot: Boot) -> str:
    """Return one sentence on how a boot ended."""
    if boot.status is not BootStatus.OK:
        return f"{boot.status.value}: {boot.reason}"
    assert boot.facts is not None
    kv = boot.facts.kv_cache_tokens
    capacity = "KV capacity unknown" if kv is None else f"KV {kv:,} tokens"
    notes = f"; {boot.reason}" if boot.reason else ""
    return (
        f"done on node {boot.node_id[:6]}, booted in {boot.facts.boot_time_s:.0f} s, "
        f"{capacity}{notes}"
    )
