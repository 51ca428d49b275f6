"""Boots and blocks of the simulation as the records that a real trial leaves behind. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from orchestrator.core.checks import Expectations, find_invalid
from orchestrator.core.node_health import judge
from orchestrator.core.node_state import Fitness, NodeState, NodeVerdict
from orchestrator.core.types import Arm, Block, Cell, CounterSnapshot, EngineFacts, TokenAudit
from orchestrator.fakes.simulate.board import STUCK_CLOCK_MHZ, Spread, lognormal
from orchestrator.fakes.simulate.window import Happened, LoadShape
from orchestrator.fakes.world import fake_node_state

MAX_MODEL_LEN = 32_768
KV_CACHE_TOKENS = 300_000
KV_TOKENS_PER_DRAFT_TOKEN = 4_000
"""What each drafted position takes from the KV cache's capacity."""
PROMPT_TOKENS = 200
NODE_KIND = "gb10"
_FIT = NodeVerdict(fitness=Fitness.FIT, reason="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a block stands."""

    boot_id: str
    index: int
    cell: Cell
    arm: Arm


def block_record(place: Place, happened: Happened, *, shape: LoadShape) -> Block:
    """Return the block of a healthy node."""
    cell, count = place.cell, happened.num_requests
    return Block(
        block_id=f"{place.boot_id}/{cell.key}/{place.index}",
        boot_id=place.boot_id,
        index=place.index,
        cell=cell,
        duration_s=shape.window_s,
        counters=_counters(place.arm, happened),
        audit=TokenAudit(
            client_total=happened.total_tokens,
            engine_total=float(happened.total_tokens),
            unknown_total=0,
            client_window=happened.tokens,
            engine_window=float(happened.tokens),
            edge_tokens=2 * cell.streams,
        ),
        num_requests=count,
        num_failed=0,
        effective_concurrency=float(cell.streams),
        most_running=float(cell.streams),
        mean_waiting=0.0,
        ttft_s=tuple(happened.ttft_s.tolist()),
        tpot_s=tuple(happened.tpot_s.tolist()),
        finish_reasons={"length": count},
        prompt_tokens=PROMPT_TOKENS * count,
        cached_tokens=0,
        node=_FIT,
    )


def on_stuck_node(block: Block, arm: Arm, node_id: str) -> Block:
    """Return the block with its node's states, judged by the same checks as a real one."""
    states = stuck_states(node_id)
    seen = replace(block, node=judge(states, own_pids=frozenset()), node_states=states)
    return replace(seen, invalid=find_invalid(seen, Expectations(arm=arm)))


@lru_cache(maxsize=64)
def stuck_states(node_id: str) -> tuple[NodeState, ...]:
    """Return what a board with a stuck clock says of itself before, during and after a block."""
    idle = replace(
        fake_node_state(node_id, kind=NODE_KIND),
        sm_clock_mhz=208.0,
        power_w=4.5,
        utilisation=0.0,
    )
    busy = replace(idle, sm_clock_mhz=STUCK_CLOCK_MHZ, power_w=19.5, utilisation=0.96)
    return idle, busy, idle


def facts_record(
    arm: Arm, boot_id: str, *, boot_time_s: float, spread: Spread, rng: np.random.Generator
) -> EngineFacts:
    """Return what a booted engine says of itself."""
    room = KV_CACHE_TOKENS - KV_TOKENS_PER_DRAFT_TOKEN * arm.num_speculative_tokens
    kv_cache_tokens = round(room * lognormal(rng, spread.kv_cv))
    return EngineFacts(
        boot_id=boot_id,
        pid=1000,
        base_url="http://simulated.invalid:8000",
        engine_version=arm.engine_build,
        model_runner="v2",
        num_speculative_tokens=None if arm.is_baseline else arm.num_speculative_tokens,
        draft_sample_method=arm.draft_sample_method,
        rejection_sample_method=arm.rejection_sample_method,
        draft_architecture=None if arm.is_baseline else "DFlash2DraftModel",
        kv_cache_tokens=kv_cache_tokens,
        kv_max_concurrency=kv_cache_tokens / MAX_MODEL_LEN,
        max_model_len=MAX_MODEL_LEN,
        boot_time_s=boot_time_s,
        weights_bytes=18 * 2**30,
        log_path="",
    )


def _counters(arm: Arm, happened: Happened) -> CounterSnapshot:
    generated = float(happened.tokens)
    prompts = float(PROMPT_TOKENS * happened.num_first)
    if arm.is_baseline:
        return CounterSnapshot(generation_tokens=generated, prompt_tokens=prompts)
    positions = [*happened.by_position.tolist(), *[0] * arm.num_speculative_tokens]
    return CounterSnapshot(
        generation_tokens=generated,
        prompt_tokens=prompts,
        num_drafts=float(happened.num_steps),
        num_draft_tokens=float(happened.num_steps * arm.num_speculative_tokens),
        num_accepted_tokens=float(happened.num_accepted),
        num_accepted_tokens_per_pos=tuple(map(float, positions[: arm.num_speculative_tokens])),
    )
