from __future__ import annotations

import csv
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.exposition import delta, parse_counters
from orchestrator.core.types import CounterSnapshot
from orchestrator.errors import MeasurementError

SNAPSHOTS_CSV = Path(__file__).parents[3] / "shared/data/gb10_counter_snapshots.csv"

TWO_ENGINES = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 1.07019e+06
vllm:generation_tokens_total{engine="1",model_name="m"} 10.0
# HELP vllm:generation_tokens_created Number of generation tokens processed.
# TYPE vllm:generation_tokens_created gauge
vllm:generation_tokens_created{engine="0",model_name="m"} 1.7646e+09
# HELP vllm:spec_decode_num_accepted_tokens_total Number of accepted tokens.
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 20.0
vllm:spec_decode_num_accepted_tokens_total{engine="1",model_name="m"} 5.0
# HELP vllm:spec_decode_num_accepted_tokens_created Number of accepted tokens.
# TYPE vllm:spec_decode_num_accepted_tokens_created gauge
vllm:spec_decode_num_accepted_tokens_created{engine="0",model_name="m"} 1.7646e+09
# HELP vllm:spec_decode_num_accepted_tokens_per_pos_total Accepted tokens per draft position.
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 15.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 5.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",position="0"} 4.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",position="1"} 1.0
# HELP vllm:spec_decode_num_accepted_tokens_per_pos_created Accepted tokens per draft position.
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_created gauge
vllm:spec_decode_num_accepted_tokens_per_pos_created{engine="0",position="0"} 1.7646e+09
"""


def test_parse_counters_two_engines_sums_totals_only() -> None:
    counters = parse_counters(TWO_ENGINES)
    assert counters.num_accepted_tokens == 25
    assert counters.num_accepted_tokens_per_pos == (19, 6)
    assert counters.num_requests_running == 4


def test_parse_counters_scientific_notation_is_read() -> None:
    assert parse_counters(TWO_ENGINES).generation_tokens == 1_070_200


def test_parse_counters_absent_is_none() -> None:
    counters = parse_counters(TWO_ENGINES)
    assert counters.num_drafts is None
    assert counters.prompt_tokens is None
    assert parse_counters("") == CounterSnapshot(generation_tokens=None, prompt_tokens=None)


@pytest.mark.parametrize(
    "text",
    [
        'vllm:generation_tokens_total{engine="0"} many\n',
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0"} 1.0\n',
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="2"} 1.0\n',
    ],
)
def test_parse_counters_unreadable_text_is_a_measurement_error(text: str) -> None:
    with pytest.raises(MeasurementError):
        parse_counters(text)


@pytest.mark.skipif(not SNAPSHOTS_CSV.exists(), reason="shared/data is not beside the repository")
def test_delta_of_a_soak_with_a_restart_flags_nothing_but_the_restart() -> None:
    lines = [line for line in SNAPSHOTS_CSV.read_text().splitlines() if not line.startswith("#")]
    snapshots = [
        parse_counters(
            f"vllm:spec_decode_num_draft_tokens_total {row['draft_tokens_total']}\n"
            f"vllm:spec_decode_num_accepted_tokens_total {row['accepted_tokens_total']}\n"
        )
        for row in csv.DictReader(lines)
    ]
    assert snapshots[8].num_draft_tokens == 1_070_190
    falls = 0
    for before, after in itertools.pairwise(snapshots):
        try:
            assert (delta(before, after).num_draft_tokens or 0) > 0
        except MeasurementError:
            falls += 1
    assert falls <= 1


COUNTERS = CounterSnapshot(
    generation_tokens=200.0,
    prompt_tokens=10.0,
    num_drafts=100.0,
    num_draft_tokens=200.0,
    num_accepted_tokens=120.0,
    num_accepted_tokens_per_pos=(80.0, 40.0),
    num_requests_running=2.0,
)


def test_delta_excludes_what_came_before_the_window() -> None:
    before = replace(COUNTERS, num_draft_tokens=200.0, num_accepted_tokens=120.0)
    after = replace(COUNTERS, num_draft_tokens=1200.0, num_accepted_tokens=520.0)
    window = delta(before, after)
    assert (window.num_accepted_tokens, window.num_draft_tokens) == (400, 1000)
    assert window.num_requests_running is None
    assert window.num_accepted_tokens_per_pos == (0, 0)


def test_delta_without_speculation_keeps_none() -> None:
    plain = CounterSnapshot(generation_tokens=5.0, prompt_tokens=1.0)
    assert delta(plain, plain) == CounterSnapshot(generation_tokens=0.0, prompt_tokens=0.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"generation_tokens": 1.0}, "generation_tokens fell from 200 to 1"),
        ({"num_drafts": None}, "num_drafts vanished"),
        ({"num_accepted_tokens_per_pos": None}, "positions"),
        ({"num_accepted_tokens_per_pos": (80.0,)}, "positions"),
        ({"num_accepted_tokens_per_pos": (80.0, 3.0)}, r"per_pos\[1\] fell"),
    ],
)
def test_delta_reset_or_lost_series_is_a_measurement_error(
    change: dict[str, Any], words: str
) -> None:
    with pytest.raises(MeasurementError, match=words):
        delta(COUNTERS, replace(COUNTERS, **change))


def test_delta_series_that_appears_is_a_measurement_error() -> None:
    with pytest.raises(MeasurementError, match="appeared"):
        delta(replace(COUNTERS, num_drafts=None), COUNTERS)


COUNT = st.integers(0, 10**6)


@given(st.lists(st.tuples(COUNT, COUNT, COUNT), min_size=3, max_size=3))
def test_delta_of_a_split_window_adds_up(steps: list[tuple[int, int, int]]) -> None:
    snapshots = []
    total = [0, 0, 0]
    for step in steps:
        total = [a + b for a, b in zip(total, step, strict=True)]
        snapshots.append(
            CounterSnapshot(
                generation_tokens=float(total[0]),
                prompt_tokens=float(total[1]),
                num_accepted_tokens_per_pos=(float(total[2]),),
            )
        )
    first, middle, last = snapshots
    whole, left, right = delta(first, last), delta(first, middle), delta(middle, last)
    assert whole.generation_tokens == (left.generation_tokens or 0) + (right.generation_tokens or 0)
    assert whole.num_accepted_tokens_per_pos == (
        (left.num_accepted_tokens_per_pos or (0,))[0]
        + (right.num_accepted_tokens_per_pos or (0,))[0],
    )
