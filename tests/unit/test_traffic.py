"""The traffic profile of a request log."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import traffic_command
from orchestrator.errors import ConfigError
from orchestrator.traffic import ProfileSettings, profile, profile_lines, read_log, weight_entries
from orchestrator.traffic_log import Log, LoggedRequest, check_durations
from orchestrator.watch_loop import weights_override


def log_of(*items: Mapping[str, object]) -> Log:
    return read_log(json.dumps(item).encode() for item in items)


def request(start: float, end: float, **more: object) -> dict[str, object]:
    return {
        "started_at": start,
        "ended_at": end,
        "body": {"prompt": "x", "temperature": 0.7},
        **more,
    }


def usage(tokens: int) -> dict[str, object]:
    return {"response": {"usage": {"completion_tokens": tokens}}}


def test_profile_weights_cells_by_tokens_where_requests_overlap() -> None:
    log = log_of(request(0, 10, **usage(100)), request(5, 15, **usage(300)))
    found = profile(log, ProfileSettings())

    assert found.by_tokens
    assert found.weights == pytest.approx({(1, 0.7): 200 / 400, (2, 0.7): 200 / 400})
    assert (found.most_at_once, found.span_s) == (2, 15)
    assert found.mean_concurrency == pytest.approx(20 / 15)
    assert found.missing == ()


def test_share_that_would_be_written_as_zero_is_none() -> None:
    often = [request(10 * n, 10 * n + 10, **usage(1000)) for n in range(100)]
    log = log_of(*often, request(2000, 2010, **usage(1), body={"temperature": 0.1}))

    found = profile(log, ProfileSettings())

    assert found.weights == {(1, 0.7): 1.0}
    assert "0.0000" not in "\n".join(profile_lines(found))


def test_profile_without_tokens_is_of_time_and_says_so() -> None:
    found = profile(log_of(request(0, 10), request(5, 15)), ProfileSettings())

    assert not found.by_tokens
    assert found.weights == pytest.approx({(1, 0.7): 0.5, (2, 0.7): 0.5})
    assert "2 of 2 requests say no output tokens" in found.missing[0]


def test_a_few_requests_without_tokens_count_for_the_concurrency_only() -> None:
    told = [request(20 * n, 20 * n + 10, **usage(100)) for n in range(9)]
    found = profile(log_of(*told, request(0, 10)), ProfileSettings())

    assert found.by_tokens
    assert found.weights == pytest.approx({(1, 0.7): 8 / 9, (2, 0.7): 1 / 9})
    assert found.missing == (
        "1 of 10 requests say no output tokens; they count for the concurrency",
    )
    more = profile(log_of(*told, request(0, 10), request(20, 30)), ProfileSettings())
    assert not more.by_tokens


def test_tokens_of_requests_without_a_cell_do_not_make_shares() -> None:
    """All tokens are of requests without a temperature; nothing is divided by zero."""
    unplaced = [{**request(20 * n, 20 * n + 10, **usage(100)), "body": {}} for n in range(9)]
    found = profile(log_of(*unplaced, request(0, 10)), ProfileSettings())

    assert not found.by_tokens
    assert found.weights == {(2, 0.7): 1.0}
    assert any("shares are of the requests' time" in text for text in found.missing)


@pytest.mark.parametrize("number", [10**400, 1e300, 2**53 + 1])
def test_read_log_number_that_is_no_time_and_no_count_is_none(number: float) -> None:
    assert log_of(request(0, number)).requests == ()
    (found,) = log_of({**request(0, 1), "completion_tokens": number}).requests
    assert found.output_tokens is None


@pytest.mark.parametrize(
    "times",
    [
        {"timestamp": 1_700_000_000.0, "duration_s": 2.5},
        {"ts": 1_700_000_000_000, "latency_ms": 2500},
        {"ts": 1_700_000_000_000, "total_ms": 2500},
        {"time": "2023-11-14T22:13:20+00:00", "e2e_s": 2.5},
        {"time": "2023-11-14 22:13:20", "end_time": "2023-11-14 22:13:22.5"},
        {"ended_at": 1_700_000_002.5, "elapsed_s": 2.5},
    ],
)
def test_read_log_knows_the_usual_times(times: Mapping[str, object]) -> None:
    log = log_of({"body": {"messages": [], "temperature": 1.0}, **times})

    (found,) = log.requests
    assert found.start_s == pytest.approx(1_700_000_000)
    assert found.end_s == pytest.approx(1_700_000_002.5)
    assert found.temperature == 1.0


def test_read_log_finds_body_and_usage_where_import_finds_them() -> None:
    log = log_of(
        {"started_at": 0, "ended_at": 1, "request": {"body": {"temperature": 0.2}}, **usage(7)},
        {"started_at": 0, "ended_at": 1, "temperature": 0.3, "completion_tokens": 8},
    )
    assert [r.temperature for r in log.requests] == [0.2, 0.3]
    assert [r.output_tokens for r in log.requests] == [7, 8]


def test_number_of_chunks_is_no_number_of_tokens() -> None:
    chunks = {"output_tokens": 40, "output_tokens_from": "chunks"}
    counted = log_of(request(0, 10, output_tokens=40, output_tokens_from="usage"))
    log = log_of(request(0, 10, **chunks), request(0, 10, **chunks, **usage(120)))

    assert [r.output_tokens for r in counted.requests] == [40]
    assert [r.output_tokens for r in log.requests] == [None, 120]
    assert not profile(log, ProfileSettings()).by_tokens


def test_lines_that_cannot_be_used_are_counted_by_reason() -> None:
    log = read_log(
        [
            b"{broken",
            b"[]",
            b"",
            json.dumps({"body": {}}).encode(),
            json.dumps({"started_at": 1}).encode(),
            json.dumps({"started_at": 1, "duration": 3}).encode(),
            json.dumps({"started_at": 5, "ended_at": 4}).encode(),
            json.dumps(request(0, 1)).encode(),
        ]
    )
    assert log.num_lines == 7
    assert log.skipped == {
        "not JSON": 1,
        "no object": 1,
        "no start": 1,
        "no end and no duration": 1,
        "a duration without a unit in its key": 1,
        "it ends before it starts": 1,
    }
    found = profile(log, ProfileSettings())
    assert "1 of 7 lines are left out: no start" in found.missing


def test_profile_without_times_names_the_keys_that_are_wanted() -> None:
    with pytest.raises(ConfigError, match=r"1 lines: no start.*started_at.*duration_s"):
        profile(log_of({"body": {}}), ProfileSettings())


def test_requests_without_a_temperature_are_named() -> None:
    log = log_of(request(0, 1), {"started_at": 0, "ended_at": 1, "body": {}})
    found = profile(log, ProfileSettings())
    assert found.weights == {(2, 0.7): 1.0}, "it counts for the concurrency"
    assert "1 of 2 requests state no temperature and have no cell" in found.missing[0]
    found = profile(log, ProfileSettings(default_temperature=1.0))
    assert found.weights == {(2, 0.7): 0.5, (2, 1.0): 0.5}
    with pytest.raises(ConfigError, match="--default-temperature"):
        profile(log_of({"started_at": 0, "ended_at": 1}), ProfileSettings())


def test_concurrency_and_temperature_go_to_the_nearest_of_the_study() -> None:
    log = log_of(*(request(0, 1, body={"temperature": 0.66}) for _ in range(30)))
    found = profile(log, ProfileSettings(streams=(1, 4, 16), temperatures=(0.7, 1.0)))

    assert found.weights == {(16, 0.7): pytest.approx(1.0)}
    assert "up to 30 ran at once, and the largest concurrency is 16" in found.missing[-1]


def test_many_temperatures_are_remarked_on() -> None:
    log = log_of(*(request(n, n + 1, body={"temperature": n / 10}) for n in range(12)))
    assert "12 temperatures" in profile(log, ProfileSettings()).missing[-1]


@given(
    st.lists(
        st.tuples(st.floats(0, 1e4), st.floats(0.01, 100), st.integers(1, 500)),
        min_size=1,
        max_size=30,
    )
)
def test_weights_sum_to_one_and_keep_all_tokens(
    requests: Iterable[tuple[float, float, int]],
) -> None:
    log = log_of(*(request(start, start + length, **usage(n)) for start, length, n in requests))
    found = profile(log, ProfileSettings())

    assert sum(found.weights.values()) == pytest.approx(1)
    assert all(weight > 0 for weight in found.weights.values())
    assert 0 <= found.idle_share < 1
    assert 1 <= found.mean_concurrency <= found.most_at_once + 1e-9


def test_idle_time_is_summed_and_never_negative_by_rounding() -> None:
    always_busy = log_of(request(2, 34), request(1.00001, 2.00002))
    half_idle = log_of(request(0, 1), request(3, 4))

    assert profile(always_busy, ProfileSettings()).idle_share == 0
    assert profile(half_idle, ProfileSettings()).idle_share == 0.5


def run(*arguments: object) -> int:
    root = argparse.ArgumentParser()
    traffic_command.add_parser(root.add_subparsers(dest="command"))
    return traffic_command.run(root.parse_args(["traffic", *map(str, arguments)]))


def test_command_prints_yaml_for_a_study_and_weights_for_decide(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(json.dumps(request(n, n + 1.5, **usage(9))) for n in range(4)))

    assert run(path, "--streams", "1,2") == 0

    out = capsys.readouterr().out
    assert "objective:\n  weights:\n    - {streams: 1, temperature: 0.7, weight: 0.5000}\n" in out
    assert "# decide --weights c1_t0.7=0.5000,c2_t0.7=0.5000" in out
    assert "# load.streams needs [1, 2], load.temperatures [0.7]." in out
    assert profile_lines(profile(log_of(request(0, 1)), ProfileSettings()))[-2].startswith("    -")


def test_entries_of_weights_are_the_same_in_a_file_and_in_a_setting() -> None:
    found = profile(log_of(request(0, 10), request(5, 15)), ProfileSettings())

    assert weight_entries(found.weights) == [
        "{streams: 1, temperature: 0.7, weight: 0.5000}",
        "{streams: 2, temperature: 0.7, weight: 0.5000}",
    ]
    entries = [line for line in profile_lines(found) if line.startswith("    - ")]
    assert entries == [f"    - {entry}" for entry in weight_entries(found.weights)]
    assert weights_override(found.weights) == (
        f"objective.weights=[{', '.join(weight_entries(found.weights))}]"
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--streams", "1,x"], "--streams: '1,x'"),
        (["--streams", "0"], "--streams: '0'"),
        (["--temperatures", "0.7,hot"], "--temperatures: 'hot'"),
        (["--temperatures", "70"], "--temperatures: '70'"),
        (["--default-temperature", "1,2"], "--default-temperature: '1,2'"),
        ([], "traffic LOG: .*cannot be read"),
    ],
)
def test_command_refuses_what_is_no_number(tmp_path: Path, arguments: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        run(tmp_path / "none.jsonl", *arguments)


@pytest.mark.parametrize(("unit", "a_second"), [("microseconds", 10**6), ("nanoseconds", 10**9)])
def test_times_finer_than_milliseconds_are_refused_with_their_unit(
    unit: str, a_second: int
) -> None:
    start = 1_790_000_000
    fine = request(start * a_second, (start + 10) * a_second)
    with pytest.raises(ConfigError, match=f"1 lines: a time in {unit}, where seconds or milli"):
        profile(log_of(fine), ProfileSettings())

    mixed = profile(log_of(request(start, start + 10), fine), ProfileSettings())
    assert any(f"1 of 2 lines are left out: a time in {unit}" in text for text in mixed.missing)
    coarse = request(start * 1000, (start + 10) * 1000)
    assert profile(log_of(coarse), ProfileSettings()).span_s == 10
    beside = request(start, start + 10, ts=start * a_second)
    assert profile(log_of(beside), ProfileSettings()).span_s == 10


def test_temperature_in_float32_is_the_one_that_was_meant() -> None:
    sent = (0.7, 0.699999988079071, 0.30000001192092896, 0.3)
    log = log_of(*(request(n, n + 1, body={"temperature": t}) for n, t in enumerate(sent)))
    found = profile(log, ProfileSettings())

    assert found.weights == pytest.approx({(1, 0.3): 0.5, (1, 0.7): 0.5})
    assert len(set(weight_entries(found.weights))) == len(found.weights)


@pytest.mark.parametrize("refused", [5, -1, 2.0001, float("nan"), "hot", True, [0.7], 10**400])
def test_temperature_that_the_engine_refuses_is_no_weight_and_no_default(refused: object) -> None:
    log = log_of(request(0, 1), request(0, 1, body={"temperature": refused}))
    found = profile(log, ProfileSettings(default_temperature=1.0))

    assert found.weights == {(2, 0.7): 1.0}
    said = "1 of 2 requests state a temperature that is none of 0 to 2, which the engine refuses"
    assert any(text.startswith(said) for text in found.missing)
    alone = log_of(request(0, 1, body={"temperature": refused}))
    with pytest.raises(ConfigError, match="states a temperature of 0 to 2; correct those"):
        profile(alone, ProfileSettings())


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(1, 30), st.integers(1, 9)), min_size=1, max_size=9
    )
)
def test_shares_are_those_of_counting_second_by_second(
    requests: Iterable[tuple[int, int, int]],
) -> None:
    rows = [(start, start + length, tokens) for start, length, tokens in requests]
    found = profile(log_of(*(request(s, e, **usage(n)) for s, e, n in rows)), ProfileSettings())

    counted: dict[tuple[int, float], float] = {}
    for second in range(80):
        running = [(s, e, n) for s, e, n in rows if s <= second < e]
        if running:
            level = min((1, 2, 4, 8, 16), key=lambda c: (abs(math.log(len(running) / c)), c))
            part = sum(n / (e - s) for s, e, n in running) / sum(n for _, _, n in rows)
            counted[level, 0.7] = counted.get((level, 0.7), 0.0) + part
    assert found.weights == pytest.approx(counted)


def test_effort_grows_with_the_requests_and_not_with_their_pairs() -> None:
    """Each moment's requests by name would be 10^10 numbers here."""
    num = 100_000
    rows = tuple(
        LoggedRequest(start_s=n, end_s=n + num, temperature=0.7, output_tokens=100)
        for n in range(num)
    )
    found = profile(Log(requests=rows, num_lines=num, skipped={}), ProfileSettings())
    assert found.most_at_once == num
    assert sum(found.weights.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("took", "tokens", "says"),
    [
        (2500, 100, "such as 2500 s for 100 tokens: is it in milliseconds?"),
        (0.0025, 100, "such as 0.0025 s for 100 tokens: is it in seconds?"),
        (7200, None, "such as 7200 s for an answer: is it in milliseconds?"),
    ],
)
def test_durations_that_are_not_believed_are_named_and_most_of_them_refused(
    took: float, tokens: int | None, says: str
) -> None:
    told = {} if tokens is None else usage(tokens)
    odd, plain = request(0, took, **told), request(0, 2.5, **usage(100))
    mostly_plain, mostly_odd = log_of(odd, plain, plain), log_of(odd, odd, plain)

    check_durations(mostly_plain)
    missing = profile(mostly_plain, ProfileSettings()).missing
    assert any(text.startswith("1 of 3 requests took") and says in text for text in missing)
    with pytest.raises(ConfigError, match=f"2 of 3 requests took.*{re.escape(says)}"):
        check_durations(mostly_odd)


def test_command_refuses_a_log_in_another_unit(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(request(0, 2500, **usage(100))))
    with pytest.raises(ConfigError, match="name a duration by its unit"):
        run(path)


def test_long_prompt_and_short_answer_are_believed() -> None:
    check_durations(log_of(request(0, 300, **usage(1))))
