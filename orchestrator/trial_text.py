"""What is told of a trial: its parameters, and its blocks and its end in a sentence each."""

from __future__ import annotations

from orchestrator.core.formulas import acceptance_length, output_throughput
from orchestrator.core.types import Arm, Block, Boot, BootStatus


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


def boot_params(arm: Arm, replicate: int, *, trial_id: str) -> dict[str, object]:
    """Return the parameters of a boot, for the tracking UI, that are known before it."""
    return {
        "arm": arm.label,
        "num_speculative_tokens": arm.num_speculative_tokens,
        "draft_sample_method": arm.draft_sample_method or "none",
        "rejection_sample_method": arm.rejection_sample_method or "none",
        "engine_version": arm.engine_build,
        "replicate": replicate,
        "trial_id": trial_id,
    }
