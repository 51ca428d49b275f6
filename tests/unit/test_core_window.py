from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.requests import LoadResult, RequestFault, RequestRecord, Span, TokenSource
from orchestrator.core.types import CounterSnapshot
from orchestrator.core.window import (
    audit,
    chunk_gaps,
    concurrency,
    ended_within,
    quantiles,
    started_within,
    tokens_at,
    tokens_between,
)


def make_record(
    *,
    started_s: float = 0.0,
    times: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0),
    tokens: int | None = 10,
    counted: tuple[int, ...] | None = (1, 4, 7, 10),
    fault: RequestFault | None = None,
) -> RequestRecord:
    return RequestRecord(
        request_id="r",
        prompt_id="p",
        prompt_tokens=5,
        output_tokens=tokens,
        token_source=TokenSource.NONE if tokens is None else TokenSource.USAGE,
        finish_reason="length",
        started_s=started_s,
        ttft_s=times[0] if times else None,
        e2e_s=None if fault else times[-1],
        chunk_times_s=times,
        chunk_tokens=counted,
        max_tokens=16,
        fault=fault,
        error="reset" if fault else None,
    )


NONE = CounterSnapshot(generation_tokens=None, prompt_tokens=None)


def grown(tokens: float, *, prompts: float | None = None) -> CounterSnapshot:
    return CounterSnapshot(generation_tokens=tokens, prompt_tokens=prompts)


def make_result(
    *records: RequestRecord, opening: tuple[float, float], closing: tuple[float, float]
) -> LoadResult:
    return LoadResult(
        records=records,
        opening=Span(start_s=opening[0], end_s=opening[1]),
        closing=Span(start_s=closing[0], end_s=closing[1]),
    )


@pytest.mark.parametrize(
    ("moment_s", "tokens"), [(9.0, 0), (10.99, 0), (11.0, 1), (12.5, 4), (14.0, 10), (99.0, 10)]
)
def test_tokens_at_counts_what_the_server_said_with_each_chunk(
    moment_s: float, tokens: int
) -> None:
    assert tokens_at(make_record(started_s=10.0), moment_s) == tokens


def test_tokens_at_without_running_counts_spreads_the_answer_over_its_chunks() -> None:
    """B01: a chunk is no token; 10 tokens came in 4 chunks."""
    record = make_record(counted=None)

    assert [tokens_at(record, t) for t in (0.5, 1.0, 2.0, 3.0, 4.0)] == [0, 2.5, 5.0, 7.5, 10.0]


def test_tokens_at_of_an_answer_that_nobody_counted_is_nothing() -> None:
    assert tokens_at(make_record(tokens=None, counted=None), 99.0) == 0


def test_tokens_at_of_a_cut_answer_is_what_had_arrived() -> None:
    record = make_record(times=(1.0, 2.0), counted=(1, 4), tokens=4, fault=RequestFault.CONNECTION)

    assert tokens_at(record, 99.0) == 4


@given(
    st.lists(st.floats(0.01, 100), min_size=1, max_size=20, unique=True),
    st.lists(st.integers(1, 8), min_size=20, max_size=20),
    st.lists(st.floats(0, 110), min_size=3, max_size=3),
)
def test_tokens_between_adds_up_over_neighbouring_spans(
    times: list[float], steps: list[int], cuts: list[float]
) -> None:
    ordered = tuple(sorted(times))
    counted = tuple(sum(steps[: index + 1]) for index in range(len(ordered)))
    record = make_record(times=ordered, counted=counted, tokens=counted[-1])
    first, middle, last = sorted(cuts)

    def between(start_s: float, end_s: float) -> float:
        return tokens_between([record], Span(start_s=start_s, end_s=end_s))

    assert between(first, middle) + between(middle, last) == pytest.approx(between(first, last))
    assert between(-1.0, 200.0) == counted[-1]


def test_audit_window_holds_the_chunks_inside_and_the_edges_hold_the_doubtful() -> None:
    early, late = make_record(), make_record(started_s=1.5)
    result = make_result(early, late, opening=(0.9, 1.1), closing=(4.4, 4.6))

    counts = audit(result, window_counters=grown(13.0), total_counters=grown(20.0, prompts=11.0))

    assert counts.client_total == 20
    # Between 1.0 and 4.5: of the first all after its first chunk, of the second three chunks.
    assert counts.client_window == (10 - 1) + 7
    # At the opening the first's chunk at 1.0 and its next one are in doubt, and nothing of the
    # second, which had not started; at the closing the second's chunk at 4.5 and its next.
    assert counts.edge_tokens == (1 + 3) + (3 + 3)
    assert (counts.engine_window, counts.engine_total) == (13.0, 20.0)
    assert (counts.client_prompts, counts.engine_prompts) == (10, 11.0)


def test_audit_cut_answers_may_have_gone_on_unheard() -> None:
    cut = make_record(times=(1.0,), counted=(1,), tokens=1, fault=RequestFault.STALLED)
    refused = make_record(times=(), counted=None, tokens=None, fault=RequestFault.REFUSED)
    uncounted = make_record(tokens=None, counted=None)
    result = make_result(cut, refused, uncounted, opening=(0, 0), closing=(5, 5))

    counts = audit(result, window_counters=NONE, total_counters=NONE)

    assert counts.unknown_total == 15 + 0 + 16
    # All records here state a prompt of 5 but none is missing that was sent.
    assert counts.unknown_prompts == 0


def test_audit_cut_answer_cannot_have_gone_on_faster_than_the_fastest() -> None:
    """Resets before the first byte leave room for a few tokens, not for whole answers."""
    whole = make_record()  # 10 tokens in 4 s
    cut = replace(
        make_record(times=(), counted=None, tokens=None, fault=RequestFault.CONNECTION),
        max_tokens=1000,
        ended_s=0.15,
        prompt_tokens=None,
    )
    result = make_result(whole, cut, opening=(0, 0), closing=(5, 5))

    counts = audit(result, window_counters=NONE, total_counters=NONE)

    assert counts.unknown_total == 1  # 2.5 tokens/s for 0.15 s and a quarter of a second
    assert counts.unknown_prompts == 5


def test_concurrency_counts_who_is_answered_and_not_who_waits_or_hangs() -> None:
    span = Span(start_s=0.0, end_s=4.0)
    hanging = make_record(times=(1.0,), counted=(1,), tokens=1, fault=RequestFault.STALLED)
    refused = make_record(times=(), counted=None, tokens=None, fault=RequestFault.REFUSED)

    assert concurrency([make_record()], span) == pytest.approx(1.0)
    assert concurrency([make_record(), hanging], span) == pytest.approx(1.25)
    assert concurrency([make_record(started_s=2.0), refused], span) == pytest.approx(0.5)
    assert concurrency([], Span(start_s=1.0, end_s=1.0)) is None


def test_audit_without_a_window_has_totals_only() -> None:
    result = LoadResult(records=(make_record(),), opening=None, closing=None)

    counts = audit(result, window_counters=NONE, total_counters=grown(10.0))

    assert (counts.client_total, counts.client_window, counts.edge_tokens) == (10, 0, 0)


def test_started_and_ended_within_split_by_their_own_moment() -> None:
    before = make_record(started_s=-2.0)
    across = make_record(started_s=7.0)
    cut = replace(make_record(started_s=1.0), e2e_s=None, fault=RequestFault.BROKEN, error="x")
    span = Span(start_s=0.0, end_s=10.0)

    assert started_within([before, across, cut], span) == [across, cut]
    assert ended_within([before, across, cut], span) == [before]


def test_chunk_gaps_are_of_one_answer_and_of_the_window_only() -> None:
    """B03: ten chunks of four tokens every 40 ms have gaps of 40 ms, not 10."""
    times = tuple(0.5 + 0.04 * index for index in range(10))
    records = [make_record(times=times, counted=None), make_record(started_s=0.01, times=times)]

    gaps = chunk_gaps(records, Span(start_s=0.0, end_s=10.0))

    assert gaps is not None
    assert gaps.num_values == 18
    assert gaps.p50 == pytest.approx(0.04)
    assert gaps.p99 == pytest.approx(0.04)


def test_chunk_gaps_of_single_chunks_are_none() -> None:
    assert chunk_gaps([make_record(times=(1.0,), counted=None)], Span(start_s=0, end_s=9)) is None
    assert quantiles([]) is None
