"""Records that the contract tests of tracker and registry store."""

from __future__ import annotations

from orchestrator.core.types import (
    Arm,
    Block,
    Boot,
    BootStatus,
    Cell,
    CounterSnapshot,
    EngineFacts,
    Invalid,
    Invalidity,
    TokenAudit,
)

ARM = Arm(
    engine_build="0.32.0",
    num_speculative_tokens=2,
    draft_sample_method="probabilistic",
    rejection_sample_method="block",
)
FACTS = EngineFacts(
    boot_id="boot-a",
    pid=77,
    base_url="http://127.0.0.1:1",
    engine_version="0.32.0",
    model_runner="v2",
    num_speculative_tokens=2,
    draft_sample_method="probabilistic",
    rejection_sample_method="block",
    draft_architecture="DFlash2DraftModel",
    kv_cache_tokens=1000,
    kv_max_concurrency=2.5,
    max_model_len=400,
    boot_time_s=420.0,
    weights_bytes=None,
    log_path="engine.log",
    resolved_config={"max_num_seqs": 16},
)


def block(
    index: int,
    *,
    streams: int = 2,
    temperature: float = 0.7,
    duration_s: float = 10.0,
    output_tokens: int = 400,
    invalid_reason: str | None = None,
    ttft_s: tuple[float, ...] = (0.1, 0.2, 0.3),
) -> Block:
    """Return a block of 100 drafts of two, 60 and 40 of them accepted by position."""
    cell = Cell(streams=streams, temperature=temperature)
    return Block(
        block_id=f"boot-a/{cell.key}/{index}",
        boot_id="boot-a",
        index=index,
        cell=cell,
        duration_s=duration_s,
        counters=CounterSnapshot(
            generation_tokens=float(output_tokens),
            prompt_tokens=50.0,
            num_drafts=100.0,
            num_draft_tokens=200.0,
            num_accepted_tokens=100.0,
            num_accepted_tokens_per_pos=(60.0, 40.0),
        ),
        audit=TokenAudit(
            client_total=output_tokens,
            engine_total=float(output_tokens),
            unknown_total=0,
            client_window=output_tokens,
            engine_window=float(output_tokens),
            edge_tokens=0,
        ),
        num_requests=3,
        num_failed=0,
        ttft_s=ttft_s,
        tpot_s=(0.02, 0.03),
        finish_reasons={"length": 3},
        invalid=(
            (Invalidity(kind=Invalid.CONTAMINATED, detail=invalid_reason),)
            if invalid_reason
            else ()
        ),
    )


def boot(
    *blocks: Block,
    status: BootStatus = BootStatus.OK,
    reason: str = "",
    facts: EngineFacts | None = FACTS,
    trial_id: str = "trial-a",
) -> Boot:
    return Boot(
        trial_id=trial_id,
        arm=ARM,
        replicate=0,
        node_id="node-0",
        status=status,
        reason=reason,
        facts=facts,
        blocks=blocks,
    )
