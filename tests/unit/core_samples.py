"""Builders of core records for the tests of the decision core."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.core.types import (
    Arm,
    Block,
    BoardModel,
    Boot,
    BootStatus,
    Cell,
    CounterSnapshot,
    EngineFacts,
    Invalid,
    Invalidity,
    TokenAudit,
)

BUILD = "0.32.0"
BASELINE = Arm(engine_build=BUILD)
CELL = Cell(streams=1, temperature=0.7)
WIDE_CELL = Cell(streams=4, temperature=1.0)
BOARD = BoardModel(
    name="gb10_model",
    source="a sample",
    base_s=0.08,
    verify_s_per_token=0.001,
    draft_s=0.012,
    streams=(1, 16),
    depths=(0, 5),
)


def make_arm(depth: int = 7, draft: str = "probabilistic", rejection: str = "block") -> Arm:
    return Arm(
        engine_build=BUILD,
        num_speculative_tokens=depth,
        draft_sample_method=draft,
        rejection_sample_method=rejection,
    )


def make_facts(
    arm: Arm,
    *,
    kv_cache_tokens: int | None = 300_000,
    kv_max_concurrency: float | None = 2.0,
    engine_version: str | None = BUILD,
    model_runner: str | None = "v2",
    draft_architecture: str | None = "DFlash2DraftModel",
) -> EngineFacts:
    return EngineFacts(
        boot_id="boot",
        pid=1,
        base_url="http://127.0.0.1:1",
        engine_version=engine_version,
        model_runner=model_runner,
        num_speculative_tokens=arm.num_speculative_tokens or None,
        draft_sample_method=arm.draft_sample_method,
        rejection_sample_method=arm.rejection_sample_method,
        draft_architecture=None if arm.is_baseline else draft_architecture,
        kv_cache_tokens=kv_cache_tokens,
        kv_max_concurrency=kv_max_concurrency,
        max_model_len=1024,
        boot_time_s=40.0,
        weights_bytes=None,
        log_path="",
    )


def make_block(
    arm: Arm,
    *,
    cell: Cell = CELL,
    seconds_per_token: float = 0.03,
    length: float = 3.0,
    tokens: int = 3000,
    index: int = 0,
    ttft_s: Sequence[float] = (0.2, 0.3, 0.4),
    invalid_reason: str | None = None,
) -> Block:
    """Return a block whose measured score is ``seconds_per_token`` and acceptance ``length``."""
    counters = CounterSnapshot(generation_tokens=float(tokens), prompt_tokens=100.0)
    if not arm.is_baseline:
        drafts = tokens / length
        accepted = drafts * (length - 1)
        counters = CounterSnapshot(
            generation_tokens=float(tokens),
            prompt_tokens=100.0,
            num_drafts=drafts,
            num_draft_tokens=drafts * arm.num_speculative_tokens,
            num_accepted_tokens=accepted,
            num_accepted_tokens_per_pos=(accepted / 2, accepted / 2),
        )
    return Block(
        block_id=f"{cell.key}-{index}",
        boot_id="boot",
        index=index,
        cell=cell,
        duration_s=seconds_per_token * tokens / cell.streams,
        counters=counters,
        audit=make_audit(tokens),
        num_requests=30,
        num_failed=0,
        ttft_s=tuple(ttft_s),
        tpot_s=(),
        finish_reasons={"length": 30},
        invalid=make_invalid(invalid_reason),
    )


def make_audit(tokens: int, *, engine: float | None = None) -> TokenAudit:
    """Return both sides' counts, in agreement unless the engine's is given."""
    counted = float(tokens) if engine is None else engine
    return TokenAudit(
        client_total=tokens,
        engine_total=counted,
        unknown_total=0,
        client_window=tokens,
        engine_window=counted,
        edge_tokens=0,
    )


def make_invalid(reason: str | None) -> tuple[Invalidity, ...]:
    return () if reason is None else (Invalidity(kind=Invalid.CONTAMINATED, detail=reason),)


def make_boot(
    arm: Arm,
    blocks: Sequence[Block],
    *,
    replicate: int = 0,
    status: BootStatus = BootStatus.OK,
    reason: str = "",
    facts: EngineFacts | None = None,
    without_facts: bool = False,
) -> Boot:
    return Boot(
        trial_id=f"{arm.label}-r{replicate}",
        arm=arm,
        replicate=replicate,
        node_id="node",
        status=status,
        reason=reason,
        facts=None if without_facts else facts or make_facts(arm),
        blocks=tuple(blocks),
    )


def make_boots(
    arm: Arm,
    scores: Sequence[float],
    *,
    cells: Sequence[Cell] = (CELL,),
    length: float = 3.0,
    ttft_s: float = 0.3,
    kv_cache_tokens: int = 300_000,
) -> list[Boot]:
    """Return one boot for each measured score, with acceptance lengths that differ a little."""
    return [
        make_boot(
            arm,
            [
                make_block(
                    arm,
                    cell=cell,
                    seconds_per_token=score,
                    length=length + 0.01 * replicate,
                    ttft_s=(ttft_s * (1 + 0.01 * replicate),),
                    index=index,
                )
                for index, cell in enumerate(cells)
            ],
            replicate=replicate,
            facts=make_facts(arm, kv_cache_tokens=kv_cache_tokens),
        )
        for replicate, score in enumerate(scores)
    ]
