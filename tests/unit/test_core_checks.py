from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from core_samples import BASELINE, make_arm, make_audit, make_block
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.checks import Expectations, draft_doubt, find_invalid
from orchestrator.core.node_state import Fitness, NodeVerdict
from orchestrator.core.scaling import check_scaling
from orchestrator.core.token_checks import excess_answers, short_answers, uncounted_answers
from orchestrator.core.types import Arm, Block, Cell, Invalid

ARM = make_arm()


def with_counters(block: Block, **change: Any) -> Block:
    return replace(block, counters=replace(block.counters, **change))


def kinds(block: Block, arm: Arm | None = ARM, **expected: Any) -> set[Invalid]:
    return {item.kind for item in find_invalid(block, Expectations(arm=arm, **expected))}


def words(block: Block, arm: Arm = ARM) -> str:
    return "; ".join(item.detail for item in find_invalid(block, Expectations(arm=arm)))


@pytest.mark.parametrize("arm", [ARM, BASELINE])
def test_find_invalid_good_block_has_no_reason(arm: Arm) -> None:
    assert find_invalid(make_block(arm), Expectations(arm=arm)) == ()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"num_requests": 0}, "no request"),
        ({"num_requests": 3, "num_refused": 3}, "no request was answered, 3 refused"),
        ({"num_failed": 4, "errors": {"reset": 4}}, "4 of 30 requests failed, for example: reset"),
        ({"num_lost_streams": 2}, "2 streams gave up"),
        ({"num_delayed": 1}, "the load is not open"),
        ({"duration_s": 0.0}, "the window never opened"),
    ],
)
def test_find_invalid_requests_that_went_wrong_are_named(change: dict[str, Any], text: str) -> None:
    block = replace(make_block(ARM), **change)

    assert kinds(block) == {Invalid.REQUESTS}
    assert text in words(block)


@pytest.mark.parametrize("num_failed", [0, 1, 3])
def test_find_invalid_few_failures_are_counted_and_the_block_stands(num_failed: int) -> None:
    """B19: one reset at sixteen streams costs no cell."""
    assert kinds(replace(make_block(ARM), num_failed=num_failed, errors={"reset": 1})) == set()


@pytest.mark.parametrize(
    ("engine", "kind"),
    [
        (3000.0, None),
        (3030.0, None),
        (3031.0, Invalid.CONTAMINATED),
        (2970.0, None),
        (2969.0, Invalid.TOKENS),
    ],
)
def test_find_invalid_client_and_engine_agree_to_one_percent(
    engine: float, kind: Invalid | None
) -> None:
    """B12: what the engine generated beyond the client's tokens is somebody else's."""
    block = replace(make_block(ARM), audit=replace(make_audit(3000), engine_total=engine))

    assert kinds(block) == ({kind} if kind else set())


def test_find_invalid_tokens_of_cut_answers_excuse_that_many_and_no_more() -> None:
    excused = replace(make_audit(3000), engine_total=3090.0, unknown_total=60)

    assert kinds(replace(make_block(ARM), audit=excused)) == set()
    more = replace(excused, engine_total=3091.0)
    assert kinds(replace(make_block(ARM), audit=more)) == {Invalid.CONTAMINATED}


def test_find_invalid_window_apart_beyond_its_edges_is_named() -> None:
    near = replace(make_audit(3000), engine_window=3050.0, edge_tokens=20)

    assert kinds(replace(make_block(ARM), audit=near)) == set()
    apart = replace(near, edge_tokens=19)
    assert kinds(replace(make_block(ARM), audit=apart)) == {Invalid.TOKENS}
    lost = replace(make_audit(3000), engine_window=2900.0)
    assert kinds(replace(make_block(ARM), audit=lost)) == {Invalid.TOKENS}


def test_find_invalid_answers_without_a_count_are_no_measurement() -> None:
    audit = replace(make_audit(0), engine_window=400.0, engine_total=400.0)

    assert Invalid.TOKENS in kinds(replace(make_block(ARM), audit=audit))


def test_find_invalid_without_counters_depends_on_who_asks() -> None:
    audit = replace(make_audit(3000), engine_window=None, engine_total=None)
    none = dict.fromkeys(("generation_tokens", "num_drafts", "num_accepted_tokens"))
    block = replace(with_counters(make_block(BASELINE), **none), audit=audit)

    assert kinds(block, BASELINE) == {Invalid.COUNTERS}
    assert kinds(block, None, needs_counters=False) == set()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"num_drafts": None}, "spec_decode"),
        ({"num_accepted_tokens": None}, "spec_decode"),
        ({"num_drafts": 0.0}, "drafted nothing"),
        ({"num_accepted_tokens": 0.0, "num_accepted_tokens_per_pos": None}, "no accepted token"),
        ({"num_accepted_tokens_per_pos": (10.0, 20.0)}, "rises"),
        ({"num_draft_tokens": 1999.0}, "corrupt"),
        ({"num_drafts": 250.0}, "more than 8"),
    ],
)
def test_find_invalid_acceptance_outside_its_bounds_is_named(
    change: dict[str, Any], text: str
) -> None:
    block = with_counters(make_block(ARM), **change)

    assert Invalid.ACCEPTANCE in kinds(block)
    assert text in words(block)


@pytest.mark.parametrize("rejection", ["standard", "block"])
def test_find_invalid_rates_rising_with_position_are_corrupt_under_every_rule(
    rejection: str,
) -> None:
    """A06: a rate above the token-wise one is kept, one that rises with the position is not."""
    arm = make_arm(rejection=rejection)
    rising = with_counters(make_block(arm), num_accepted_tokens_per_pos=(500.0, 500.0, 600.0))
    assert kinds(rising, arm) == {Invalid.ACCEPTANCE}

    by_one = with_counters(make_block(arm), num_accepted_tokens_per_pos=(500.0, 501.0))
    assert kinds(by_one, arm) == {Invalid.ACCEPTANCE}

    for per_pos in ((500.0, 500.0), (990.0, 980.0, 30.0), None):
        level = with_counters(make_block(arm), num_accepted_tokens_per_pos=per_pos)
        assert kinds(level, arm) == set()


def test_find_invalid_baseline_that_drafts_is_named() -> None:
    block = with_counters(make_block(BASELINE), num_drafts=3.0)

    assert "does not speculate" in words(block, BASELINE)
    assert kinds(with_counters(block, num_drafts=0.0), BASELINE) == set()


def test_find_invalid_few_drafts_without_acceptance_may_be_chance() -> None:
    block = make_block(ARM, tokens=20, length=1.0)

    assert kinds(with_counters(block, num_accepted_tokens_per_pos=(0.0, 0.0))) == set()


def test_find_invalid_steps_that_do_not_make_the_throughput_are_named() -> None:
    """Step time and acceptance length are two views of one throughput."""
    halved = with_counters(make_block(ARM), num_drafts=500.0, num_draft_tokens=3500.0)

    assert kinds(halved) == {Invalid.STEP_TIME}
    # Prefill tokens come without a draft: as many as requests started and ended.
    block = replace(make_block(ARM), ttft_s=(0.1,) * 100, tpot_s=(0.01,) * 100)
    many = with_counters(block, num_drafts=700.0, num_accepted_tokens=1900.0)
    assert kinds(many) == set()


@pytest.mark.parametrize(
    ("running", "waiting", "streams", "valid"),
    [
        (13.0, 0.0, 16, True),
        (12.0, 0.0, 16, False),
        (16.0, 4.1, 16, False),
        (8.0, 1.0, 8, True),
        (2.0, None, 2, True),
        (1.0, 0.0, 2, False),
        (0.0, 0.0, 1, True),
        (None, None, 16, True),
    ],
)
def test_find_invalid_engine_that_runs_fewer_streams_is_named(
    running: float | None, waiting: float | None, streams: int, valid: bool
) -> None:
    """F10: the concurrency is what the engine ran, not what was asked."""
    cell = Cell(streams=streams, temperature=0.7)
    block = replace(make_block(ARM, cell=cell), most_running=running, mean_waiting=waiting)

    assert kinds(block) == (set() if valid else {Invalid.CONCURRENCY})


def test_find_invalid_open_loop_concurrency_is_what_it_is() -> None:
    cell = Cell(streams=64, temperature=0.7, request_rate=2.0)

    assert kinds(replace(make_block(ARM, cell=cell), most_running=3.0)) == set()


@pytest.mark.parametrize(
    "change",
    [
        {"prompt_tokens": 1000, "cached_tokens": 600},
        {"counters": {"prefix_cache_queries": 1000.0, "prefix_cache_hits": 800.0}},
    ],
)
def test_find_invalid_cached_prompts_are_named_unless_asked_for(change: dict[str, Any]) -> None:
    """B09: a prompt that is measured again from the cache."""
    block = make_block(ARM)
    counters = change.pop("counters", {})
    block = replace(with_counters(block, **counters), **change)

    assert kinds(block) == {Invalid.CACHED}
    assert kinds(block, allows_cache=True) == set()


def test_find_invalid_unknown_cache_is_no_cache() -> None:
    assert kinds(replace(make_block(ARM), prompt_tokens=100, cached_tokens=None)) == set()


@pytest.mark.parametrize(
    ("fitness", "valid"), [(Fitness.FIT, True), (Fitness.DEGRADED, True), (Fitness.UNFIT, False)]
)
def test_find_invalid_unfit_node_voids_the_block(fitness: Fitness, valid: bool) -> None:
    verdict = NodeVerdict(fitness=fitness, reason="799 MHz at 96 % utilisation")

    found = kinds(replace(make_block(ARM), node=verdict))

    assert found == (set() if valid else {Invalid.NODE})


def test_find_invalid_every_reason_is_named_and_not_only_the_first() -> None:
    block = replace(
        with_counters(make_block(ARM), num_accepted_tokens_per_pos=(10.0, 20.0)),
        num_failed=20,
        audit=replace(make_audit(3000), engine_total=9000.0),
    )

    assert kinds(block) == {Invalid.REQUESTS, Invalid.CONTAMINATED, Invalid.ACCEPTANCE}


def test_short_answers_over_a_tenth_are_truncated() -> None:
    assert [item.kind for item in short_answers(4, 30)] == [Invalid.TRUNCATED]
    assert not list(short_answers(3, 30))
    assert not list(short_answers(0, 0))


def scaled(streams: int, throughput: float, *, length: float = 3.0, index: int = 0) -> Block:
    cell = Cell(streams=streams, temperature=0.7)
    return make_block(
        ARM,
        cell=cell,
        seconds_per_token=streams / throughput,
        length=length,
        index=index,
    )


def test_check_scaling_more_than_double_marks_both_cells() -> None:
    blocks = (scaled(1, 20.0), scaled(2, 45.0), scaled(4, 80.0), scaled(16, 900.0))

    marked = check_scaling(blocks)

    assert [bool(block.invalid) for block in marked] == [True, True, False, False]
    assert marked[0].invalid[0].kind is Invalid.SCALING
    assert "2.25 times" in marked[0].invalid[0].detail


def test_check_scaling_a_dip_or_a_plateau_is_shown_as_measured() -> None:
    """B17: nothing smooths away what is odd but possible."""
    blocks = (scaled(1, 20.0), scaled(2, 12.0), scaled(4, 24.0))

    assert check_scaling(blocks) == blocks


def test_check_scaling_text_that_is_accepted_better_is_no_contradiction() -> None:
    blocks = (scaled(1, 20.0, length=2.0), scaled(2, 45.0, length=2.6))

    assert check_scaling(blocks) == blocks


def test_check_scaling_of_open_loops_compares_nothing() -> None:
    cells = [Cell(streams=n, temperature=0.7, request_rate=1.0) for n in (1, 2)]
    blocks = tuple(
        make_block(ARM, cell=cell, seconds_per_token=0.1 / n) for n, cell in enumerate(cells, 1)
    )

    assert check_scaling(blocks) == blocks


def test_check_scaling_leaves_invalid_blocks_out() -> None:
    blocks = (scaled(1, 20.0), make_block(ARM, cell=Cell(streams=2, temperature=0.7), tokens=9))
    spoilt = (blocks[0], make_block(ARM, cell=blocks[1].cell, invalid_reason="x"))

    assert check_scaling(spoilt) == spoilt


@given(st.floats(1, 1000), st.floats(0.1, 2.19))
def test_check_scaling_up_to_the_limit_is_never_marked(single: float, factor: float) -> None:
    blocks = (scaled(4, single), scaled(8, single * factor))

    assert all(block.is_valid for block in check_scaling(blocks))


def test_draft_doubt_first_position_under_a_tenth_asks_about_the_draft() -> None:
    """A16: a wrong draft is not speculation that does not help."""
    poor = with_counters(make_block(ARM), num_accepted_tokens_per_pos=(90.0, 0.0))
    assert "draft broken?" in (draft_doubt([poor]) or "")
    assert draft_doubt([make_block(ARM)]) is None
    assert draft_doubt([with_counters(poor, num_drafts=50.0)]) is None
    assert draft_doubt([make_block(BASELINE)]) is None
    assert draft_doubt([]) is None


def test_draft_doubt_without_counters_by_position_says_nothing() -> None:
    """What the engine does not publish is not 0 accepted tokens."""
    unknown = with_counters(make_block(ARM), num_accepted_tokens_per_pos=None)

    assert draft_doubt([unknown]) is None
    assert draft_doubt([unknown, make_block(ARM)]) is None
    poor = with_counters(make_block(ARM), num_accepted_tokens_per_pos=(60.0, 3.0))
    doubt = draft_doubt([unknown, poor])
    assert doubt is not None
    assert "6.0% of 1000 drafts" in doubt


@pytest.mark.parametrize("lacking", ["num_drafts", "num_accepted_tokens"])
def test_check_scaling_takes_out_only_lengths_that_are_known(lacking: str) -> None:
    single, double = scaled(1, 20.0, length=1.5), scaled(2, 60.0, length=3.0)
    assert all(block.is_valid for block in check_scaling([single, double]))

    unknown = with_counters(single, **{lacking: None})
    assert not any(block.is_valid for block in check_scaling([unknown, double]))


def test_find_invalid_window_that_never_opened_on_an_unfit_node_names_both() -> None:
    verdict = NodeVerdict(fitness=Fitness.UNFIT, reason="799 MHz at 96 % utilisation")

    block = replace(make_block(ARM), duration_s=0.0, node=verdict)

    assert kinds(block) == {Invalid.REQUESTS, Invalid.NODE}


@pytest.mark.parametrize(
    ("uncounted", "answers", "named"),
    [(0, 100, False), (1, 100, False), (2, 100, True), (1, 2, True), (5, 5, False), (0, 0, False)],
)
def test_uncounted_answers_over_one_percent_are_named(
    uncounted: int, answers: int, named: bool
) -> None:
    found = [item.kind for item in uncounted_answers(uncounted, answers)]

    assert found == ([Invalid.TOKENS] if named else [])


def test_find_invalid_other_traffic_is_not_repeated_by_the_window_and_the_steps() -> None:
    audit = replace(make_audit(3000), engine_total=9000.0, engine_window=9000.0)

    assert kinds(replace(make_block(ARM), audit=audit)) == {Invalid.CONTAMINATED}


def test_find_invalid_streams_that_were_refused_or_hung_are_named() -> None:
    """Half the streams idle: fast for the rest, and no load of eight streams."""
    cell = Cell(streams=8, temperature=0.7)
    block = make_block(ARM, cell=cell)

    assert kinds(replace(block, client_concurrency=6.1)) == set()
    assert kinds(replace(block, client_concurrency=5.9)) == {Invalid.CONCURRENCY}
    for trouble in ({"num_refused": 1}, {"num_failed": 1}):
        assert kinds(replace(block, client_concurrency=7.7, **trouble)) == set()
        assert kinds(replace(block, client_concurrency=7.5, **trouble)) == {Invalid.CONCURRENCY}
    alone = make_block(ARM)
    assert kinds(replace(alone, client_concurrency=0.5)) == {Invalid.CONCURRENCY}


def test_find_invalid_engine_that_runs_more_than_the_client_asks_is_contaminated() -> None:
    cell = Cell(streams=4, temperature=0.7)

    assert kinds(replace(make_block(ARM, cell=cell), most_running=10.0)) == {Invalid.CONTAMINATED}


def test_find_invalid_other_traffic_that_is_all_prefill_is_contaminated() -> None:
    audit = replace(make_audit(3000), client_prompts=1000, engine_prompts=1050.0)

    assert kinds(replace(make_block(ARM), audit=audit)) == set()
    more = replace(audit, engine_prompts=1051.0)
    assert kinds(replace(make_block(ARM), audit=more)) == {Invalid.CONTAMINATED}
    excused = replace(more, unknown_prompts=10)
    assert kinds(replace(make_block(ARM), audit=excused)) == set()


def test_find_invalid_edges_that_took_long_to_read_are_named() -> None:
    """The window's length is uncertain by as much."""
    slow = replace(make_audit(3000), edge_tokens=601)

    assert kinds(replace(make_block(ARM), audit=slow)) == {Invalid.COUNTERS}
    assert kinds(replace(make_block(ARM), audit=replace(slow, edge_tokens=600))) == set()


def test_find_invalid_window_of_a_few_tokens_is_too_short() -> None:
    cell = Cell(streams=16, temperature=0.7)

    assert kinds(make_block(ARM, cell=cell, tokens=255)) == {Invalid.TOKENS}
    assert kinds(make_block(ARM, cell=cell, tokens=256)) == set()


@pytest.mark.parametrize(("served", "valid"), [(72, True), (54, True), (52, False)])
def test_find_invalid_open_loop_above_the_capacity_is_named(served: int, valid: bool) -> None:
    """Its times grow with the window: 72 arrivals have a standard deviation of 8.5."""
    cell = Cell(streams=64, temperature=0.7, request_rate=8.0)
    block = replace(make_block(ARM, cell=cell), ttft_s=(0.1,) * 72, tpot_s=(0.01,) * served)

    assert (Invalid.CONCURRENCY in kinds(block)) is not valid


def test_excess_answers_hold_more_than_was_asked_for() -> None:
    assert [item.kind for item in excess_answers(1, 30)] == [Invalid.TOKENS]
    assert not list(excess_answers(0, 30))
