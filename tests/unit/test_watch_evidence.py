from __future__ import annotations

import math
from dataclasses import replace

import pytest
from core_samples import BASELINE
from hypothesis import given
from hypothesis import strategies as st
from watch_scene import PROMISES, cell_promise

from orchestrator.core.types import CounterSnapshot
from orchestrator.watch_evidence import Evidence, interval_evidence, logged
from orchestrator.watch_ports import RecordedRequest

SPAN = (100.0, 160.0)


def request(
    start: float, end: float, *, temperature: float | None = 1.0, tokens: int | None = 600
) -> RecordedRequest:
    return RecordedRequest(
        started_at=start,
        ended_at=end,
        temperature=temperature,
        streams_at_start=1,
        output_tokens=tokens,
        prompt_tokens=10,
    )


def counters(drafts: float | None = 4800.0, accepted: float | None = 9600.0) -> CounterSnapshot:
    return CounterSnapshot(
        generation_tokens=14_400.0,
        prompt_tokens=0.0,
        num_drafts=drafts,
        num_accepted_tokens=accepted,
    )


def evidence(
    *requests: RecordedRequest,
    found: CounterSnapshot | None = None,
    default_temperature: float | None = 1.0,
) -> Evidence:
    return interval_evidence(
        PROMISES,
        found or counters(),
        requests,
        span=SPAN,
        default_temperature=default_temperature,
    )


FOUR = [request(90.0, 170.0) for _ in range(4)]


def test_production_as_promised_is_a_ratio_of_one() -> None:
    found = evidence(*FOUR)

    assert found.acceptance is not None
    assert found.acceptance.observed == pytest.approx(found.acceptance.promised)
    assert found.acceptance.allowance == pytest.approx(math.log(1.02))
    assert found.step_time is not None
    # Four streams for a minute at 50 ms a step.
    assert found.step_time.observed == pytest.approx(4800.0)
    assert found.step_time.promised == 4800.0
    assert found.step_time.allowance == pytest.approx(math.log(1.02))
    assert found.tokens == pytest.approx({(4, 1.0): 4 * 600 * 60 / 80})


def test_slower_steps_and_fewer_accepted_tokens_are_seen() -> None:
    found = evidence(*FOUR, found=counters(drafts=4000.0, accepted=6000.0))

    assert found.step_time is not None
    assert found.step_time.observed / found.step_time.promised == pytest.approx(1.2)
    assert found.acceptance is not None
    assert found.acceptance.observed / found.acceptance.promised == pytest.approx(2.5 / 3)


@given(st.floats(101, 159))
def test_two_halves_of_an_interval_add_up(cut: float) -> None:
    requests = [request(90.0, 130.0), request(110.0, 170.0), *FOUR]
    parts = [
        interval_evidence(PROMISES, counters(), requests, span=span, default_temperature=1.0)
        for span in ((SPAN[0], cut), (cut, SPAN[1]), SPAN)
    ]
    steps = [part.step_time.observed for part in parts if part.step_time is not None]
    assert steps[0] + steps[1] == pytest.approx(steps[2])
    tokens = [sum(part.tokens.values()) for part in parts if part.tokens is not None]
    assert tokens[0] + tokens[1] == pytest.approx(tokens[2])


def test_step_time_follows_the_streams() -> None:
    promises = replace(PROMISES, cells=(cell_promise(1, step_s=0.04), cell_promise(4, step_s=0.1)))
    requests = [request(100.0, 160.0), request(100.0, 130.0)]

    found = interval_evidence(promises, counters(), requests, span=SPAN, default_temperature=None)

    assert found.step_time is not None
    assert found.step_time.observed == pytest.approx(2 * 30 / 0.06 + 30 / 0.04)


@pytest.mark.parametrize(
    "found",
    [counters(drafts=None), counters(drafts=0.0), counters(accepted=None)],
    ids=["no drafts known", "no drafts", "no acceptance known"],
)
def test_missing_counters_show_nothing_of_acceptance(found: CounterSnapshot) -> None:
    assert evidence(*FOUR, found=found).acceptance is None


def test_interval_without_requests_shows_nothing() -> None:
    assert evidence() == Evidence()
    assert evidence(request(10.0, 90.0), request(170.0, 180.0)) == Evidence()


def test_requests_without_temperature_need_a_default() -> None:
    bare = [request(90.0, 170.0, temperature=None) for _ in range(4)]

    assert evidence(*bare, default_temperature=None).acceptance is None
    assert evidence(*bare).acceptance is not None


def test_unknown_tokens_are_no_share_of_the_mix() -> None:
    broken_off = [request(90.0, 170.0, tokens=None) for _ in range(4)]

    found = evidence(*broken_off)
    assert found.tokens is None
    assert found.acceptance is not None, "shares of time will do for the length to be expected"


def test_more_streams_than_were_promised_say_nothing_of_the_step_time() -> None:
    assert evidence(*[request(90.0, 170.0)] * 13).step_time is None
    assert evidence(*[request(90.0, 170.0)] * 12).step_time is not None


def test_arm_without_speculation_steps_a_token_at_a_time() -> None:
    promises = replace(PROMISES, arm=BASELINE)

    found = interval_evidence(promises, counters(), FOUR, span=SPAN, default_temperature=None)

    assert found.step_time is not None
    assert found.step_time.promised == 14_400.0


def test_record_that_ends_before_it_starts_is_left_out() -> None:
    log = logged([request(5.0, 5.0), request(5.0, 6.0)])

    assert len(log.requests) == 1
    assert log.skipped == {"it ends before it starts": 1}
