"""One block as a table and as a record: what is not known is a dash or null, and never 0."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from core_samples import BASELINE, make_arm, make_audit, make_block

from orchestrator.block_report import SCHEMA, Setting, block_record, derived, format_block
from orchestrator.core.formulas import acceptance_length, output_throughput
from orchestrator.core.node_state import Fitness, NodeVerdict
from orchestrator.core.requests import RequestRecord, TokenSource
from orchestrator.core.types import Block, Cell, CounterSnapshot, Invalid, Invalidity, Quantiles
from orchestrator.measurement import Measured

ARM = make_arm()
CELL = Cell(streams=4, temperature=0.7)
SETTING = Setting(
    url="http://127.0.0.1:8000",
    model="qwen",
    workload={"name": "code", "digest": "d", "num_prompts": 79, "categories": {"sql": 7}},
    sampling={
        "profile": "explicit",
        "temperature": 0.7,
        "top_k": 0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "max_tokens": 256,
    },
    load={"seed": 1},
    acceptance_note=None,
)
BLOCK = replace(
    make_block(ARM, cell=CELL, length=3.0),
    tpot_s=(0.01, 0.02, 0.03),
    chunk_gap_s=Quantiles(p50=0.04, p95=0.05, p99=0.06, num_values=700),
    effective_concurrency=3.75,
    most_running=4.0,
    prompt_tokens=1000,
    cached_tokens=20,
    node=NodeVerdict(fitness=Fitness.FIT, reason=""),
)
NOTHING = replace(
    make_block(BASELINE, cell=CELL),
    duration_s=0.0,
    counters=CounterSnapshot(generation_tokens=None, prompt_tokens=None),
    audit=replace(make_audit(0), engine_window=None, engine_total=None),
    num_requests=0,
    ttft_s=(),
    finish_reasons={},
    invalid=(Invalidity(kind=Invalid.REQUESTS, detail="no request was answered"),),
)
RECORD = RequestRecord(
    request_id="r",
    prompt_id="p",
    prompt_tokens=5,
    output_tokens=2,
    token_source=TokenSource.USAGE,
    finish_reason="length",
    started_s=0.0,
    ttft_s=0.1,
    e2e_s=0.2,
    chunk_times_s=(0.1, 0.2),
    text="\N{GREEK SMALL LETTER ALPHA} \u2028",
)


def rows(block: Block, **setting: Any) -> dict[str, str]:
    lines = (
        line.split("  ", 1)
        for line in format_block(block, replace(SETTING, **setting))
        if "  " in line
    )
    return {name: text.strip() for name, text in lines if name}


def test_derived_quantities_are_those_of_the_formulas() -> None:
    values = derived(BLOCK)

    assert values["output_throughput"] == output_throughput(3000, BLOCK.duration_s)
    assert values["stream_throughput"] == pytest.approx(1 / 0.02)
    assert values["acceptance_length"] == acceptance_length(BLOCK.counters)
    assert values["ttft_p50_s"] == pytest.approx(0.3)
    assert values["step_time_s"] == pytest.approx(BLOCK.duration_s * 4 / 1000)
    assert values["effective_concurrency"] == 3.75


def test_derived_step_time_and_length_give_the_throughput() -> None:
    """D03: speed is split into step time and acceptance length, and they make it again."""
    values = derived(BLOCK)

    length, step_s, throughput = (
        values[name] for name in ("acceptance_length", "step_time_s", "output_throughput")
    )
    assert isinstance(length, float)
    assert isinstance(step_s, float)
    assert length / step_s * 4 == pytest.approx(throughput)


def test_derived_nothing_measured_is_none_and_never_0() -> None:
    assert set(derived(NOTHING).values()) == {None}


def test_table_shows_both_rates_under_their_names() -> None:
    """B14: throughput is by wall; the rate of one stream is another thing."""
    shown = rows(BLOCK)

    wall = 3000 / BLOCK.duration_s
    assert shown["output throughput"] == f"{wall:.1f} tokens/s of all streams, by wall"
    assert shown["stream throughput"] == "50.0 tokens/s of one stream (1 / tpot)"


def test_table_of_a_whole_block() -> None:
    shown = rows(BLOCK)

    assert shown["server"] == "http://127.0.0.1:8000, model qwen"
    assert shown["load"] == "4 streams, closed loop, workload code (79 prompts)"
    assert shown["sampling"] == "profile explicit, temperature 0.7, top_k 0, max_tokens 256"
    assert shown["window"] == "22.5 s, every stream busy"
    assert shown["ttft"] == "p50 300.0 ms, p95 390.0 ms, p99 398.0 ms (3 requests)"
    assert shown["gap between chunks"].startswith("p50 40.0 ms, p99 60.0 ms (700 gaps")
    assert shown["acceptance length"].startswith("3.000 tokens a step, ")
    assert shown["tokens"] == (
        "3000 in the window, 3000 altogether; the engine counts 3000 and 3000"
    )
    assert shown["running at a time"] == "3.8 requests, by the engine's gauge"
    assert shown["prompt tokens"] == "1000, 2.0% from the prefix cache"
    assert shown["node"] == "fit"
    assert format_block(BLOCK, SETTING)[-1] == "valid"


def test_table_of_an_open_loop_says_what_arrives() -> None:
    cell = Cell(streams=256, temperature=0.7, request_rate=1.5)
    shown = rows(replace(BLOCK, cell=cell))

    assert shown["load"].startswith("1.5 requests/s (Poisson), at most 256 at a time, workload")
    assert shown["window"].endswith("s, requests arriving")


def test_table_without_data_has_dashes_and_no_zeros() -> None:
    shown = rows(NOTHING, acceptance_note="no counters")

    for name in ("output throughput", "stream throughput", "ttft", "tpot", "gap between chunks"):
        assert shown[name] == "-"
    for name in ("step time", "running at a time"):
        assert shown[name] == "-"
    assert shown["window"] == "- (it never opened)"
    assert shown["acceptance length"] == "- (no counters)"
    assert shown["requests"] == "0 (finish reasons: none)"
    assert shown["tokens"].endswith("the engine's own count is not known")
    assert not {"accepted by position", "prompt tokens", "node"} & shown.keys()


def test_table_of_a_window_that_never_opened_knows_the_engine_s_total_only() -> None:
    audit = replace(make_audit(30), client_window=0, engine_window=None)

    assert rows(replace(NOTHING, audit=audit))["tokens"].endswith("the engine counts - and 30")


def test_table_names_every_reason_and_every_doubt() -> None:
    reasons = (
        Invalidity(kind=Invalid.CONTAMINATED, detail="other traffic"),
        Invalidity(kind=Invalid.NODE, detail="799 MHz"),
    )
    lines = format_block(
        replace(BLOCK, invalid=reasons), replace(SETTING, warnings=("draft broken?", "random"))
    )

    assert lines[-5:] == [
        "warning: draft broken?",
        "warning: random",
        "NOT VALID: this block is no measurement",
        "  contaminated: other traffic",
        "  node: 799 MHz",
    ]


def test_table_counts_what_failed_and_was_refused() -> None:
    block = replace(
        BLOCK,
        num_failed=1,
        num_refused=2,
        errors={"HTTP 503: busy": 2, "reset": 1},
        node=NodeVerdict(fitness=Fitness.DEGRADED, reason="the load average is 12"),
    )
    shown = rows(block)

    assert shown["requests"] == (
        "30 (finish reasons: 30 length); 1 failed; 2 refused; 2 x HTTP 503: busy; 1 x reset"
    )
    assert shown["node"] == "degraded: the load average is 12"


def test_table_shows_penalties_that_do_something() -> None:
    sampling = {"profile": "p", "repetition_penalty": 1.05, "presence_penalty": 0.0}

    assert rows(BLOCK, sampling=sampling)["sampling"] == "profile p, repetition_penalty 1.05"


def test_table_shows_positions_with_a_dash_where_nothing_was_drafted() -> None:
    idle = replace(
        BLOCK,
        counters=replace(BLOCK.counters, num_drafts=0.0, num_accepted_tokens_per_pos=(0.0, 0.0)),
    )

    assert rows(idle)["accepted by position"] == "- -"
    assert rows(BLOCK)["accepted by position"] == "1.000 1.000"


@pytest.mark.parametrize("block", [BLOCK, NOTHING])
def test_record_is_json_with_null_for_what_is_not_known(block: Block) -> None:
    measured = Measured(block=block, records=(RECORD,))

    record = json.loads(
        json.dumps(block_record(measured, SETTING, with_requests=True), allow_nan=False)
    )

    assert record["schema"] == SCHEMA == "specpilot.measure/1"
    assert record["valid"] is block.is_valid
    assert [item["kind"] for item in record["invalid"]] == [str(i.kind) for i in block.invalid]
    assert record["measured"] == derived(block)
    assert record["block"]["duration_s"] == block.duration_s
    assert record["block"]["counters"]["num_preemptions"] is None
    assert record["requests"][0]["text"] == RECORD.text
    assert "requests" not in block_record(measured, SETTING, with_requests=False)
