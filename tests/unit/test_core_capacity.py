from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.capacity import check_capacity
from orchestrator.core.types import EngineFacts

PAIRS_CSV = Path(__file__).parents[3] / "shared/data/kv_capacity_pairs.csv"

SILENT = EngineFacts(
    boot_id="boot",
    pid=1,
    base_url="http://127.0.0.1:1",
    engine_version=None,
    model_runner=None,
    num_speculative_tokens=None,
    draft_sample_method=None,
    rejection_sample_method=None,
    draft_architecture=None,
    kv_cache_tokens=None,
    kv_max_concurrency=None,
    max_model_len=None,
    boot_time_s=1.0,
    weights_bytes=None,
    log_path="",
)
GB10 = replace(
    SILENT,
    max_model_len=202_752,
    kv_cache_tokens=319_232,
    kv_max_concurrency=319_232 / 202_752,
    kv_cache_tokens_log=319_232,
    kv_max_concurrency_log=1.57,
)
"""As logged: 319,232 tokens, 1.57x for 202,752 tokens per request."""


def said(tokens: int, max_model_len: int, concurrency: float) -> EngineFacts:
    """Return facts of an engine without the gauge: its log stands for both."""
    return replace(
        SILENT,
        max_model_len=max_model_len,
        kv_cache_tokens=tokens,
        kv_max_concurrency=concurrency,
        kv_cache_tokens_log=tokens,
        kv_max_concurrency_log=concurrency,
    )


@pytest.mark.parametrize(
    "facts",
    [
        GB10,
        said(838_501, 262_144, 3.2),
        said(7_584, 128, 59.25),
        said(299_520, 1_024, 292.5),  # vLLM 0.28.0 on a CPU
        replace(GB10, kv_cache_tokens_log=316_100, kv_max_concurrency_log=1.565),
    ],
)
def test_capacity_that_agrees_gets_no_note(facts: EngineFacts) -> None:
    assert check_capacity(facts) is None


@pytest.mark.parametrize(
    ("tokens", "max_model_len", "concurrency", "by_tokens"),
    [(290_864, 32_768, 33.04, "8.88"), (585_168, 262_144, 4.73, "2.23")],
)
def test_capacity_of_a_hybrid_is_noted_and_its_concurrency_stands(
    tokens: int, max_model_len: int, concurrency: float, by_tokens: str
) -> None:
    note = check_capacity(said(tokens, max_model_len, concurrency))
    assert note is not None
    assert f"{tokens:,} tokens are {by_tokens} requests of {max_model_len:,}" in note
    assert f"says {concurrency}" in note
    assert "the concurrency stands" in note


def test_capacity_sources_that_disagree_are_noted_and_the_gauge_stands() -> None:
    note = check_capacity(replace(GB10, kv_cache_tokens_log=300_000, kv_max_concurrency_log=1.48))
    assert note is not None
    assert "319,232 tokens by the engine's gauge and 300,000 by its log" in note
    assert "1.57 requests of full length by the engine's gauge and 1.48 by its log" in note
    assert note.count("the gauge's figure stands") == 2
    assert "hybrid" not in note


@given(st.data())
def test_capacity_that_is_not_said_contradicts_nothing(data: st.DataObject) -> None:
    """Whatever of one engine's consistent figures is missing."""
    names = (
        *("kv_cache_tokens", "kv_max_concurrency", "max_model_len"),
        *("kv_cache_tokens_log", "kv_max_concurrency_log"),
    )
    missing: dict[str, Any] = dict.fromkeys(data.draw(st.sets(st.sampled_from(names))))
    assert check_capacity(replace(GB10, **missing)) is None


@pytest.mark.skipif(not PAIRS_CSV.exists(), reason="shared/data is not beside the repository")
def test_capacity_of_published_reports_is_judged_as_they_were() -> None:
    lines = PAIRS_CSV.read_text(encoding="utf-8").splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    judged = {
        (row["kv_tokens"], row["max_model_len"]): check_capacity(
            said(int(row["kv_tokens"]), int(row["max_model_len"]), float(row["max_concurrency"]))
        )
        is None
        for row in rows
    }
    assert judged == {
        (row["kv_tokens"], row["max_model_len"]): row["consistent"] == "yes" for row in rows
    }
    assert sorted(judged.values()).count(False) == 2
