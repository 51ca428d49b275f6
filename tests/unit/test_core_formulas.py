from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from core_samples import WIDE_CELL, make_arm, make_block
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.formulas import (
    acceptance_length,
    acceptance_rate,
    acceptance_rate_per_position,
    output_throughput,
    pooled,
    quantile,
    step_time_s,
    stream_seconds,
)
from orchestrator.core.types import CounterSnapshot

NOTHING = CounterSnapshot(generation_tokens=None, prompt_tokens=None)


def drafted(
    drafts: float, draft_tokens: float, accepted: float, per_pos: tuple[float, ...] | None = None
) -> CounterSnapshot:
    return CounterSnapshot(
        generation_tokens=None,
        prompt_tokens=None,
        num_drafts=drafts,
        num_draft_tokens=draft_tokens,
        num_accepted_tokens=accepted,
        num_accepted_tokens_per_pos=per_pos,
    )


def test_acceptance_published_counters_give_the_published_figures() -> None:
    counters = drafted(75_006, 1_125_090, 21_970)
    assert acceptance_length(counters) == pytest.approx(1.2929, abs=5e-5)
    assert acceptance_rate(counters) == pytest.approx(0.01953, abs=5e-6)


def test_pooled_adds_what_every_window_has_and_leaves_out_the_rest() -> None:
    first, second = drafted(10, 20, 8, (5.0, 3.0)), drafted(30, 60, 12, (8.0, 4.0))
    assert pooled([first, second]) == drafted(40, 80, 20, (13.0, 7.0))
    for odd in (NOTHING, drafted(30, 30, 8, (8.0,))):
        assert pooled([first, odd]).num_accepted_tokens_per_pos is None
    assert pooled([first, NOTHING]).num_drafts is None


def test_acceptance_nothing_drafted_is_none() -> None:
    for counters in (NOTHING, drafted(0, 0, 0, (0.0, 0.0))):
        assert acceptance_length(counters) is None
        assert acceptance_rate(counters) is None
    assert acceptance_rate_per_position(NOTHING) is None
    assert acceptance_rate_per_position(drafted(0, 0, 0, (0.0, 0.0))) == (None, None)


@given(st.lists(st.integers(0, 7), min_size=1, max_size=50))
def test_acceptance_rates_per_position_sum_to_length_minus_one(prefixes: list[int]) -> None:
    per_pos = tuple(float(sum(n > position for n in prefixes)) for position in range(7))
    counters = drafted(len(prefixes), 7 * len(prefixes), sum(prefixes), per_pos)
    rates = acceptance_rate_per_position(counters)
    length = acceptance_length(counters)
    assert rates is not None
    assert length is not None
    assert 1 <= length <= 8
    assert all(rate is not None and 0 <= rate <= 1 for rate in rates)
    assert sum(rate or 0 for rate in rates) + 1 == pytest.approx(length)


def test_throughput_is_by_wall_and_undefined_without_data() -> None:
    assert output_throughput(446, 2.0) == 223
    for tokens, seconds in ((None, 1.0), (0, 1.0), (5, 0.0)):
        assert output_throughput(tokens, seconds) is None


def test_step_time_counts_drafts_with_speculation_and_tokens_without() -> None:
    counters = drafted(400, 2800, 800)
    common: dict[str, Any] = {"busy_s": 40.0, "output_tokens": 1200}
    assert step_time_s(counters, speculates=True, **common) == pytest.approx(0.1)
    assert step_time_s(counters, speculates=False, **common) == pytest.approx(10 / 300)


@pytest.mark.parametrize(
    ("counters", "busy_s", "tokens", "speculates"),
    [
        (NOTHING, 1.0, 5, True),
        (drafted(0, 0, 0), 1.0, 5, True),
        (NOTHING, 1.0, 0, False),
        (NOTHING, 0.0, 5, False),
        (NOTHING, None, 5, False),
    ],
)
def test_step_time_without_steps_is_none(
    counters: CounterSnapshot, busy_s: float | None, tokens: int, speculates: bool
) -> None:
    step_s = step_time_s(counters, busy_s=busy_s, output_tokens=tokens, speculates=speculates)
    assert step_s is None


def test_stream_seconds_are_streams_by_cell_or_what_the_gauge_showed() -> None:
    closed = make_block(make_arm(), cell=WIDE_CELL)
    opened = replace(closed, cell=replace(WIDE_CELL, request_rate=2.0), effective_concurrency=1.5)

    assert stream_seconds([closed]) == 4 * closed.duration_s
    assert stream_seconds([closed, opened]) == pytest.approx(5.5 * closed.duration_s)
    unknown = replace(opened, effective_concurrency=None)
    assert stream_seconds([opened, unknown]) is None


@given(
    drafts=st.integers(1, 10**5),
    accepted=st.integers(0, 10**6),
    seconds=st.floats(0.1, 1e4),
    streams=st.integers(1, 64),
)
def test_step_time_over_acceptance_is_stream_time_over_tokens(
    drafts: int, accepted: int, seconds: float, streams: int
) -> None:
    counters = drafted(drafts, accepted + drafts, accepted)
    step_s = step_time_s(counters, busy_s=seconds * streams, output_tokens=1, speculates=True)
    length = acceptance_length(counters)
    assert step_s is not None
    assert length is not None
    assert step_s / length == pytest.approx(seconds * streams / (drafts + accepted))


def test_quantile_of_nothing_is_none() -> None:
    assert quantile([], 0.5) is None
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1))
def test_quantile_stays_within_the_values(values: list[float], q: float) -> None:
    result = quantile(values, q)
    assert result is not None
    assert min(values) <= result <= max(values) or result == pytest.approx(min(values))
