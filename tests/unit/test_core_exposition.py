"""Texts of real engines are in ``test_core_metric_names``."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.exposition import EngineCounters, delta, parse_counters
from orchestrator.core.formulas import acceptance_length, acceptance_rate
from orchestrator.core.metric_names import names_in
from orchestrator.core.types import CounterSnapshot
from orchestrator.errors import EngineRestarted, MeasurementError

SNAPSHOTS_CSV = Path(__file__).parents[3] / "shared/data/gb10_counter_snapshots.csv"
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage")
NOTHING = CounterSnapshot(generation_tokens=None, prompt_tokens=None)

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
    assert counters.total.num_accepted_tokens == 25
    assert counters.total.num_accepted_tokens_per_pos == (19, 6)
    assert counters.total.num_requests_running == 4
    assert dict(counters) == {"0": counters["0"], "1": counters["1"]}
    assert counters["1"].num_accepted_tokens_per_pos == (4, 1)


def test_parse_counters_scientific_notation_is_read() -> None:
    counters = parse_counters(TWO_ENGINES)
    assert counters["0"].generation_tokens == 1_070_190
    assert counters.total.generation_tokens == 1_070_200


def test_parse_counters_absent_is_none() -> None:
    counters = parse_counters(TWO_ENGINES).total
    assert counters.num_drafts is None
    assert counters.prompt_tokens is None
    assert counters.num_requests_waiting is None
    assert parse_counters("").total == NOTHING
    assert len(parse_counters("# EOF\n")) == 0


def test_parse_counters_without_labels_is_one_engine_without_a_name() -> None:
    assert dict(parse_counters("vllm:generation_tokens_total 5\n")) == {
        "": replace(NOTHING, generation_tokens=5.0)
    }


@pytest.mark.parametrize(
    ("name", "usage"),
    [
        ("vllm:kv_cache_usage_perc", 0.96),
        ("vllm:gpu_cache_usage_perc", 0.96),
        ("vllm:cpu_cache_usage_perc", None),
    ],
)
def test_parse_counters_reads_either_name_of_cache_usage(name: str, usage: float | None) -> None:
    counters = parse_counters(f"vllm:num_preemptions_total 0\n{name} 0.96\n").total
    assert (counters.kv_cache_usage, counters.num_preemptions) == (usage, 0)


def test_parse_counters_prefers_the_newer_name_of_cache_usage() -> None:
    text = "vllm:gpu_cache_usage_perc 0.1\nvllm:kv_cache_usage_perc 0.2\n"
    assert parse_counters(text).total.kv_cache_usage == 0.2


def test_parse_counters_names_that_begin_alike_are_others() -> None:
    text = (
        "vllm:prompt_tokens_total 7\n"
        "vllm:prompt_tokens_cached_total 5\n"
        'vllm:prompt_tokens_by_source_total{source="local_compute"} 7\n'
        'vllm:num_requests_waiting_by_reason{reason="capacity"} 3\n'
        "vllm:generation_tokens 4\n"
    )
    assert parse_counters(text).total == replace(NOTHING, prompt_tokens=7.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('vllm:generation_tokens_total{engine="0"} many\n', "cannot be read"),
        ('vllm:generation_tokens_total{engine="0"} 12', "end within a line"),
        ("<html><body>502 Bad Gateway</body></html>\n", "cannot be read"),
        ('vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0"} 1.0\n', "positions"),
        ('vllm:spec_decode_num_accepted_tokens_per_pos_total{position="2"} 1.0\n', "positions"),
        ('vllm:generation_tokens_total{engine="3"} NaN\n', "of engine 3 is nan"),
        ("vllm:num_requests_running +Inf\n", "is inf"),
        ("vllm:generation_tokens_total -1\n", "is -1"),
        (f"vllm:generation_tokens_total 1{'0' * 400}\n", "is inf"),
        (f"vllm:generation_tokens_total 1{'0' * 5000}\n", "is inf"),
        ('vllm:prompt_tokens_total{engine="0"} 1\n' * 2, "of engine 0 stands twice"),
        (
            'vllm:prompt_tokens_total{engine="0",model_name="a"} 1\n'
            'vllm:prompt_tokens_total{engine="0",model_name="b"} 1\n',
            "stands twice",
        ),
        (
            'vllm:prompt_tokens_total{engine="0"} 1\nvllm:prompt_tokens_total{engine="1"} 1\n'
            'vllm:generation_tokens_total{engine="0"} 1\n',
            "generation_tokens_total is published by engine 0 and not by engine 1",
        ),
        (
            'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 1\n'
            'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 1\n'
            'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",position="0"} 1\n',
            "other positions",
        ),
    ],
    ids=lambda value: value[:60],
)
def test_parse_counters_unreadable_text_is_a_measurement_error(text: str, words: str) -> None:
    with pytest.raises(MeasurementError, match=words):
        parse_counters(text)


def test_parse_counters_endless_text_is_a_measurement_error() -> None:
    with pytest.raises(MeasurementError, match="characters"):
        parse_counters("\n" * (64 * 2**20 + 1))


@pytest.mark.parametrize(
    "text",
    [
        "vllm:prompt_tokens_total 5 x 7\n",
        "vllm:prompt_tokens_total 5 6 7\n",
        "vllm:prompt_tokens_total 5 # a remark\n",
        "vllm:prompt_tokens_total 1_0\n",
        "vllm:prompt_tokens_total \u0661\u0662\n",
        "vllm:prompt_tokens_total\u00a05\n",
        "vllm:prompt_tokens_total5\n",
        'vllm:prompt_tokens_total{engine=,model_name="m"} 5\n',
        'vllm:prompt_tokens_total{engine="0",engine="1"} 5\n',
        'vllm:prompt_tokens_total{"vllm:prompt_tokens_total"} 5\n',
        'vllm:prompt tokens_total{engine="0"} 5\n',
        '{engine="0"} 5\n',
    ],
)
def test_parse_counters_line_that_is_none_of_the_format_is_named(text: str) -> None:
    with pytest.raises(MeasurementError, match="cannot be read: line 2 is no sample: '"):
        parse_counters(f"vllm:generation_tokens_total 1\n{text}")


@pytest.mark.parametrize(
    "line",
    [
        'vllm:prompt_tokens_total{engine="0"}5',
        'vllm:prompt_tokens_total { engine = "0" , } +5.0 1700000000000',
        '{"vllm:prompt_tokens_total","engine"="0"} 5e0\r',
        'vllm:prompt_tokens_total{model_name="a\\\\",engine="0"} 5 # {id="x } 9"} 0.5 1.7e9',
        '\tvllm:prompt_tokens_total{a="\\"} 7, engine=\\"1\\"",engine="0"}\t5',
    ],
)
def test_parse_counters_any_legal_way_of_writing_is_read(line: str) -> None:
    assert dict(parse_counters(f"{line}\n")) == {"0": replace(NOTHING, prompt_tokens=5.0)}


def test_parse_counters_comments_rename_nothing() -> None:
    """A type that was damaged, or is another's, must not take a number away or make one."""
    text = (
        "# TYPE vllm:num_requests_running counter\n"
        "vllm:num_requests_running 3\n"
        "# TYPE vllm:prompt_tokens counter\n"
        "vllm:prompt_tokens 7\n"
    )
    assert parse_counters(text).total == replace(NOTHING, num_requests_running=3.0)


def test_parse_counters_number_that_no_float_holds_exactly_is_refused() -> None:
    most = 2**53 - 1
    assert parse_counters(f"vllm:prompt_tokens_total {most}\n").total.prompt_tokens == most
    for value in (most + 1, most + 2, "1e300"):
        with pytest.raises(
            MeasurementError, match=r"prompt_tokens_total of the engine is (9\.|1e)"
        ):
            parse_counters(f"vllm:prompt_tokens_total {value}\n")


@pytest.mark.parametrize(
    "line",
    ["#" + " " * 2**20 + "x", 'a{b="' + '\\"' * 2**19 + '"} 1', "a{" + " " * 2**20 + "} 1"],
    ids=("comment", "escapes", "spaces"),
)
def test_parse_counters_long_line_takes_no_square_of_its_length(line: str) -> None:
    text = f"{line}\nvllm:prompt_tokens_total 5\n"
    assert parse_counters(text).total.prompt_tokens == 5
    with pytest.raises(MeasurementError, match="line 1 is no sample"):
        parse_counters(f"{line.removeprefix('#')} x\n")


LINE = st.one_of(
    st.text(max_size=30),
    st.from_regex(r'vllm:prompt_tokens_total(\{[a-z="\\,0-9]{0,12}\}?)? ?[-0-9eE.na_]{0,6}'),
    st.sampled_from(TWO_ENGINES.splitlines()),
)


@given(st.lists(LINE, max_size=6))
def test_parse_counters_of_anything_is_an_answer_or_a_measurement_error(lines: list[str]) -> None:
    try:
        total = parse_counters("\n".join([*lines, ""])).total
    except MeasurementError:
        return
    assert total.prompt_tokens is None or total.prompt_tokens >= 0


@given(st.permutations([line for line in TWO_ENGINES.splitlines() if not line.startswith("#")]))
def test_parse_counters_order_of_lines_does_not_matter(lines: list[str]) -> None:
    assert parse_counters("\n".join([*lines, ""])) == parse_counters(TWO_ENGINES)


def test_soak_of_75006_drafts_accepts_1_29_tokens_a_step() -> None:
    window = CounterSnapshot(
        generation_tokens=None,
        prompt_tokens=None,
        num_drafts=75_006.0,
        num_draft_tokens=1_125_090.0,
        num_accepted_tokens=21_970.0,
    )
    assert acceptance_length(window) == pytest.approx(1.2929, abs=5e-5)
    assert acceptance_rate(window) == pytest.approx(0.01953, abs=5e-6)


def soak_rows() -> list[dict[str, str]]:
    """Return the counters of a soak on a GB10; they do not come with the repository."""
    if not SNAPSHOTS_CSV.exists():
        pytest.skip("shared/data is not beside the repository")
    lines = SNAPSHOTS_CSV.read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def soak_counters(drafted: str, accepted: str) -> EngineCounters:
    return parse_counters(
        f"vllm:spec_decode_num_draft_tokens_total {drafted}\n"
        f"vllm:spec_decode_num_accepted_tokens_total {accepted}\n"
    )


def test_delta_across_one_million_in_scientific_notation_is_exact() -> None:
    window = delta(soak_counters("934950.0", "247027.0"), soak_counters("1.07019e+06", "283312.0"))
    assert (window.num_draft_tokens, window.num_accepted_tokens) == (135_240, 36_285)


def test_delta_over_a_soak_adds_up_and_sees_an_engine_that_starts_anew() -> None:
    counters = [
        soak_counters(row["draft_tokens_total"], row["accepted_tokens_total"])
        for row in soak_rows()
    ]
    assert counters[8].total.num_draft_tokens == 1_070_190
    steps = [delta(a, b).num_draft_tokens or 0 for a, b in itertools.pairwise(counters)]
    assert min(steps) > 0
    assert sum(steps) == delta(counters[0], counters[-1]).num_draft_tokens == 2_829_050
    with pytest.raises(EngineRestarted, match="fell from 2839300 to 10250"):
        delta(counters[-1], counters[0])


def test_delta_excludes_what_came_before_the_window() -> None:
    """Before the warm-up 100 drafted and 60 accepted; the window is what follows the warm-up."""
    opened, closed = soak_counters("200", "120"), soak_counters("1200", "520")
    window = delta(opened, closed)
    assert (window.num_accepted_tokens, window.num_draft_tokens) == (400, 1000)
    assert acceptance_rate(window) == 0.4


def test_delta_of_a_full_cache_without_preemption_raises_no_alarm() -> None:
    texts = [
        f"vllm:kv_cache_usage_perc {usage}\nvllm:num_preemptions_total 3\n" for usage in (0.2, 0.96)
    ]
    before, after = map(parse_counters, texts)
    assert after.total.kv_cache_usage == 0.96
    assert delta(before, after) == replace(NOTHING, num_preemptions=0.0)


COUNTERS = CounterSnapshot(
    generation_tokens=200.0,
    prompt_tokens=10.0,
    num_drafts=100.0,
    num_draft_tokens=200.0,
    num_accepted_tokens=120.0,
    num_accepted_tokens_per_pos=(80.0, 40.0),
    prefix_cache_queries=10.0,
    prefix_cache_hits=5.0,
    num_preemptions=1.0,
    num_requests_running=2.0,
    num_requests_waiting=1.0,
    kv_cache_usage=0.5,
)


def engines(**by_engine: CounterSnapshot) -> EngineCounters:
    """Return counters; ``e0`` is the engine 0."""
    return EngineCounters(by_engine={name[1:]: each for name, each in by_engine.items()})


def test_delta_has_no_gauges() -> None:
    window = delta(engines(e0=COUNTERS), engines(e0=COUNTERS))
    assert [getattr(window, gauge) for gauge in GAUGES] == [None, None, None]
    assert window.num_accepted_tokens_per_pos == (0, 0)
    assert window.prefix_cache_hits == 0


def test_delta_without_speculation_keeps_none() -> None:
    plain = CounterSnapshot(generation_tokens=5.0, prompt_tokens=1.0)
    window = CounterSnapshot(generation_tokens=0.0, prompt_tokens=0.0)
    assert delta(engines(e0=plain), engines(e0=plain)) == window


def test_delta_of_nothing_is_nothing() -> None:
    assert delta(parse_counters(""), parse_counters("")) == NOTHING


FELL: dict[str, Any] = {
    **{
        field.name: 0.0
        for field in fields(CounterSnapshot)
        if field.name not in (*GAUGES, "num_accepted_tokens_per_pos")
    },
    "num_accepted_tokens_per_pos": (80.0, 39.0),
}


@pytest.mark.parametrize("field", FELL)
def test_delta_any_counter_that_falls_is_a_restart_though_another_engine_grew(field: str) -> None:
    before = engines(e0=COUNTERS, e1=COUNTERS)
    far = {name: 10_000.0 for name, value in FELL.items() if value == 0}
    grown: dict[str, Any] = {**far, "num_accepted_tokens_per_pos": (9_000.0, 8_000.0)}
    after = engines(e0=replace(COUNTERS, **grown), e1=replace(COUNTERS, **{field: FELL[field]}))

    name = names_in("0.33.0")[field]
    with pytest.raises(EngineRestarted, match=rf"{name}.* of engine 1 fell from \d+ to \d+"):
        delta(before, after)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_drafts": None}, r"spec_decode_num_drafts_total of engine 0 vanished"),
        ({"num_accepted_tokens_per_pos": None}, "has 0 positions after 2"),
        ({"num_accepted_tokens_per_pos": (80.0,)}, "has 1 positions after 2"),
    ],
)
def test_delta_lost_series_is_a_measurement_error(change: dict[str, Any], words: str) -> None:
    with pytest.raises(MeasurementError, match=words):
        delta(engines(e0=COUNTERS), engines(e0=replace(COUNTERS, **change)))


def test_delta_series_that_appears_is_a_measurement_error() -> None:
    with pytest.raises(MeasurementError, match="appeared"):
        delta(engines(e0=replace(COUNTERS, num_drafts=None)), engines(e0=COUNTERS))
    with pytest.raises(MeasurementError, match="has 2 positions after 0"):
        delta(engines(e0=replace(COUNTERS, num_accepted_tokens_per_pos=None)), engines(e0=COUNTERS))


def test_delta_of_other_engines_is_a_measurement_error() -> None:
    one, two = engines(e0=COUNTERS), engines(e0=COUNTERS, e1=COUNTERS)
    for pair in ((one, two), (two, one), (one, engines(e1=COUNTERS)), (one, engines())):
        with pytest.raises(MeasurementError, match="engines"):
            delta(*pair)


def test_delta_another_process_is_a_restart_however_far_the_counters_grew() -> None:
    before = replace(engines(e0=COUNTERS), process_start_time_s=1e9)
    after = replace(before, process_start_time_s=1e9 + 7)
    with pytest.raises(EngineRestarted, match="process_start_time_seconds went from 1000000000"):
        delta(before, after)
    for pair in ((before, engines(e0=COUNTERS)), (engines(e0=COUNTERS), before)):
        with pytest.raises(MeasurementError, match=r"process_start_time_seconds (van|app)"):
            delta(*pair)


COUNT = st.integers(0, 10**9)


@st.composite
def histories(draw: st.DrawFn) -> Sequence[EngineCounters]:
    """Draw three moments of one to three engines whose counters only grow."""
    labels = draw(st.lists(st.sampled_from("012"), min_size=1, unique=True))
    depth = draw(st.integers(0, 3))
    grown = {label: draw(growth(depth)) for label in labels}
    return [
        EngineCounters(by_engine={label: each[moment] for label, each in grown.items()})
        for moment in range(3)
    ]


@st.composite
def growth(draw: st.DrawFn, depth: int) -> Sequence[CounterSnapshot]:
    steps = draw(st.lists(st.lists(COUNT, min_size=5, max_size=5), min_size=3, max_size=3))
    return [
        CounterSnapshot(
            generation_tokens=float(tokens),
            prompt_tokens=float(prompt),
            num_accepted_tokens_per_pos=tuple(map(float, positions[:depth])) if depth else None,
        )
        for tokens, prompt, *positions in itertools.accumulate(
            steps, lambda total, step: [a + b for a, b in zip(total, step, strict=True)]
        )
    ]


@given(histories())
def test_delta_of_a_split_window_adds_up(moments: Sequence[EngineCounters]) -> None:
    first, middle, last = moments
    parts = EngineCounters(by_engine={"left": delta(first, middle), "right": delta(middle, last)})
    assert delta(first, last) == parts.total


@given(histories(), st.data())
def test_delta_order_of_engines_does_not_matter(
    moments: Sequence[EngineCounters], data: st.DataObject
) -> None:
    first, _, last = moments
    order = data.draw(st.permutations(sorted(last)))
    turned = EngineCounters(by_engine={engine: last[engine] for engine in order})
    assert delta(first, turned) == delta(first, last)
    assert turned.total == last.total


@given(histories(), st.data())
def test_delta_one_counter_of_one_engine_that_falls_is_a_restart(
    moments: Sequence[EngineCounters], data: st.DataObject
) -> None:
    first, _, last = moments
    engine = data.draw(st.sampled_from(sorted(first)))
    value = first[engine].prompt_tokens or 0.0
    fallen = replace(last[engine], prompt_tokens=data.draw(st.floats(0, value)))
    after = EngineCounters(by_engine={**last, engine: fallen})
    if fallen.prompt_tokens != value:
        with pytest.raises(EngineRestarted, match="prompt_tokens_total"):
            delta(first, after)
