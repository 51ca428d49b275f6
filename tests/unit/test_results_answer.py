"""Rows to an answer: what counts, what is compared, and what the rows cannot show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from result_rows import Row, as_raw, make_row, plain_row, study_rows

from orchestrator.errors import ConfigError
from orchestrator.results.answer import answers
from orchestrator.results.boots import row_boots
from orchestrator.results.doubts import Sifted, sift
from orchestrator.results.observation import Observation, observe
from orchestrator.results.question import Answer, Question


def read(rows: Sequence[Row]) -> list[Observation]:
    found = []
    for number, row in enumerate(rows, 2):
        observation, faults = observe(as_raw(row, f"rows.csv line {number}"))
        assert observation is not None, faults
        found.append(observation)
    return found


def sifted(rows: Sequence[Row]) -> Sifted:
    return sift(read(rows))


def ask(rows: Sequence[Row], **question: object) -> Answer:
    found = answers(sifted(rows).observations, Question(**question))  # type: ignore[arg-type]
    assert len(found) == 1
    return found[0]


def speeds(values: Sequence[float], *, arm: str = "block", streams: int = 1) -> list[Row]:
    """Return runs of tokens / s alone, without boot or counters."""
    none = dict.fromkeys(("boot", "tokens", "seconds", "drafts", "draft_tokens", "accepted"), "")
    return [
        make_row(**none, rejection_sample_method=arm, streams=streams, tok_s=value)
        for value in values
    ]


BLOCK, STANDARD = "probabilistic+block-7", "probabilistic+standard-7"


def test_rows_with_counters_get_the_verdict_of_the_core() -> None:
    answer = ask(study_rows())

    assert answer.basis == "counters"
    assert answer.outcome == "winner"
    assert answer.verdict is not None
    assert answer.winner is not None
    assert answer.winner.label == BLOCK
    assert {gate.name for gate in answer.gates if gate.passed is None} >= {"in_force", "lossless"}
    assert not any(gate.blocks for gate in answer.gates)
    asked = {gate.name: gate.reason for gate in answer.gates if gate.passed is None}
    assert all("; a study asks" in reason for reason in asked.values()), "no key of a study unset"
    assert not any("Production stays" in text for text in answer.sentences)
    assert not any("counters" in text for text in answer.limits)


def test_rows_in_which_what_serves_is_fastest_keep_it() -> None:
    answer = ask(study_rows(), reference=BLOCK)

    assert answer.outcome == "keep"
    assert answer.winner == answer.reference


def test_leader_without_fresh_boots_is_not_proven() -> None:
    answer = ask(study_rows(num_boots=2))

    assert answer.outcome == "cannot_tell"
    assert answer.winner is None
    assert answer.sentences[0].startswith(f"{BLOCK} leads and is not proven")


def test_single_boot_that_is_faster_than_replicated_ones_is_not_passed_over() -> None:
    rows = [row for row in study_rows() if row["boot"] in ("p0", "p1", "p2", "s0")]
    answer = ask(rows)

    assert answer.outcome == "cannot_tell"
    assert answer.sentences[0].startswith(f"{BLOCK} leads and is not proven")


@given(st.randoms(use_true_random=False))
@settings(max_examples=15)
def test_verdict_does_not_hang_on_the_order_of_the_rows(random: Random) -> None:
    rows = study_rows(num_boots=4, gain=1.1)
    by_boot = [rows[at : at + 4] for at in range(0, len(rows), 4)]
    random.shuffle(by_boot)
    mixed = ask([row for four in by_boot for row in four])
    sound = ask(rows)

    assert (mixed.outcome, mixed.winner) == (sound.outcome, sound.winner)
    assert [gate.reason for gate in mixed.gates] == [gate.reason for gate in sound.gates]
    assert mixed.sentences == sound.sentences


def test_boots_are_in_the_order_of_their_numbers() -> None:
    rows = read([make_row(boot=name) for name in ("b10", "b9", "a", "b1", "")])
    names = [boot.name for boot in row_boots(rows, "blocks")]

    assert names == ["not stated", "a", "b1", "b9", "b10"]


def test_three_runs_in_one_boot_are_one_boot() -> None:
    rows = [*speeds([39.7, 33.1, 31.5]), *speeds([29.3], arm="standard")]
    answer = ask(rows, reference=STANDARD)

    assert answer.outcome == "cannot_tell"
    assert [place.num_boots for place in answer.ranking] == [1, 1]
    assert any("three runs in one boot are one boot" in text for text in answer.limits)
    assert any("One boot of each arm" in text for text in answer.limits)
    assert any("Tokens/s without counters" in text for text in answer.limits)


def test_runs_taken_as_boots_are_doubted_aloud() -> None:
    rows = [*speeds([39.7, 38.1, 39.0]), *speeds([29.3, 29.9, 28.8], arm="standard")]
    answer = ask(rows, reference=STANDARD, runs_are="boots")

    assert answer.outcome == "winner"
    assert [place.num_boots for place in answer.ranking] == [3, 3]
    assert any("If they were repeats in one boot" in text for text in answer.limits)


def test_noisy_runs_taken_as_boots_cannot_tell() -> None:
    rows = [*speeds([39.7, 33.1, 31.5]), *speeds([29.3], arm="standard")]
    answer = ask(rows, reference=STANDARD, runs_are="boots")

    assert answer.outcome == "cannot_tell"
    assert "1.18 times as fast (95 % interval 0.64 to 2.16, 3 and 1 boots)" in answer.sentences[0]


def test_best_of_several_has_a_wider_interval_than_one_challenger() -> None:
    rows = [
        *speeds([31.3, 30.4, 32.0, 30.6]),
        *speeds([29.5, 28.9, 29.4, 28.6], arm="standard"),
    ]
    alone = ask(rows, reference=STANDARD, runs_are="boots")
    others = [row for k in (3, 4, 5, 6) for row in speeds([20.1, 20.9, 20.4])]
    for index, row in enumerate(others):
        row["num_speculative_tokens"] = 3 + index // 3
    among = ask([*rows, *others], reference=STANDARD, runs_are="boots")

    assert "95 %" in alone.sentences[0]
    assert "99 %" in among.sentences[0]
    assert "picked as the best of 5 by these very rows" in among.sentences[1]


def test_interval_of_the_best_of_many_is_never_of_all_values() -> None:
    """Rounded to four digits the widened coverage was 1, and no row could show anything."""
    rows = [*speeds([31.3, 31.4, 31.2]), *speeds([25.1, 25.0, 25.2], arm="standard")]
    for depth in range(3, 7):
        others = speeds([20.1, 20.0, 20.2])
        rows += [{**row, "num_speculative_tokens": depth} for row in others]
    answer = ask(rows, reference=STANDARD, runs_are="boots", confidence=0.9999)

    assert answer.outcome == "winner"
    assert "(99.998 % interval" in answer.sentences[0]


def test_equal_arms_within_a_percent_are_no_difference() -> None:
    values = [30.0 + 0.01 * index for index in range(6)]
    rows = [*speeds(values), *speeds([value - 0.01 for value in values], arm="standard")]
    assert ask(rows, reference=STANDARD, runs_are="boots").outcome == "no_difference"


def test_arm_that_loses_in_a_cell_is_kept_out() -> None:
    rows = [
        *speeds([30, 30.2, 29.9]),
        *speeds([20, 20.2, 19.9], arm="standard"),
        *speeds([100, 101, 102], streams=8),
        *speeds([130, 131, 132], arm="standard", streams=8),
    ]
    answer = ask(rows, reference=STANDARD, runs_are="boots", weights={"c1_t0.7": 9, "c8_t0.7": 1})

    assert answer.outcome == "keep"
    assert any("c8_t0.7" in text for text in answer.sentences)


def test_two_engine_builds_are_answered_apart() -> None:
    rows = [*study_rows(), *(row | {"engine_build": "0.28.0"} for row in study_rows(gain=0.2))]
    for index, row in enumerate(rows[len(rows) // 2 :]):
        if row["drafts"]:
            row |= {"drafts": 2950 - index, "accepted": 6050 + index, "draft_tokens": ""}
    found = answers(sifted(rows).observations, Question())

    assert [answer.engine_build for answer in found] == ["0.28.0", "0.32.0"]
    assert [answer.outcome for answer in found] == ["keep", "winner"]
    for answer in found:
        arms = {line.arm for line in answer.cells}
        assert {arm.engine_build for arm in arms} == {answer.engine_build}


def test_cells_without_counters_are_named_and_compared_by_speed() -> None:
    rows = [*speeds([160, 161], streams=8), *speeds([30, 31])]
    for row in rows[2:]:
        row |= {"tokens": 9000, "seconds": 300.0, "tok_s": 30, "drafts": 3000, "accepted": 6000}
    rows[3] |= {"drafts": 3001, "accepted": 6002}
    answer = ask([*rows, *speeds([150], arm="standard", streams=8)], reference=STANDARD)

    assert f"{BLOCK} has no counters in c8_t0.7." in answer.limits
    assert answer.basis == "throughput"
    assert "c1_t0.7 is not in the objective: not measured of probabilistic+standard-7." in (
        answer.limits
    )


def test_arms_without_a_common_cell_are_not_ranked() -> None:
    answer = ask([*speeds([30]), *speeds([150], arm="standard", streams=8)], reference=STANDARD)

    assert answer.outcome == "cannot_tell"
    assert all(place.seconds is None for place in answer.ranking)
    assert "No cell was measured of all arms" in answer.sentences[0]


def test_weights_of_a_cell_that_is_not_there_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"no row is of the cell c3_t0\.7; there are: c1_t0\.7"):
        ask(study_rows(), weights={"c3_t0.7": 1.0})


def test_cells_of_two_workloads_are_not_one() -> None:
    rows = [*study_rows(), *(row | {"workload": "chat"} for row in study_rows()[:2])]
    rows[-1] |= {"drafts": 2990, "accepted": 6007, "draft_tokens": ""}
    with pytest.raises(ConfigError, match="several workloads: chat, code"):
        ask(rows, weights={"c1_t0.7": 1.0})


@pytest.mark.parametrize(
    ("reference", "says"),
    [(None, "nothing to compare with"), ("greedy+block-3", "no row is of greedy")],
)
def test_missing_reference_names_the_arms_that_are_there(reference: str | None, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        ask(speeds([30]), reference=reference)
    assert BLOCK in str(caught.value)


def test_equal_counters_in_two_boots_are_one_observation() -> None:
    found = sifted([make_row(), make_row(boot="b", seconds=271.0)])

    assert len(found.observations) == 1
    assert "the same counters to the token: one observation made twice" in found.doubts[0]


def test_equal_rows_count_once_and_equal_speeds_of_unnamed_boots_do_not() -> None:
    assert len(sifted([make_row(), make_row()]).observations) == 1
    fine, coarse = plain_row(seconds=246.317), plain_row()
    assert len(sifted([fine, fine]).observations) == 1
    assert len(sifted([coarse, coarse]).observations) == 2
    assert len(sifted(speeds([30.0, 30.0])).observations) == 2


def test_equal_counters_of_two_arms_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"line 2 .* and rows\.csv line 3 .*the same counters"):
        sifted([make_row(), make_row(rejection_sample_method="standard")])


def test_invalid_rows_do_not_count_and_are_named() -> None:
    found = sifted([make_row(tokens=7000), make_row(boot="b")])

    assert [item.boot for item in found.observations] == ["b"]
    assert "rows.csv line 2 does not count: step_time" in found.doubts[0]


def test_boots_of_one_name_on_two_nodes_are_two_and_named() -> None:
    rows = [
        {**row, "boot": "b0", "node": node}
        for row, node in zip(speeds([30.0, 31.3, 32.1]), ("n1", "n2", ""), strict=True)
    ]
    found = sifted([*rows, *speeds([25.0], arm="standard")])

    assert [boot.name for boot in row_boots(found.observations, "blocks")][:2] == [
        "b0 on n1",
        "b0 on n2",
    ]
    assert "b0 of probabilistic+block-7 is on n1 and n2: a boot runs on one node" in found.doubts[0]
    alone = sifted([{**row, "node": "n1"} for row in rows])
    assert (len(row_boots(alone.observations, "blocks")), alone.doubts) == (1, ())


def test_reference_alone_is_no_comparison() -> None:
    answer = ask([plain_row(boot=name, seconds=246.0 + n) for n, name in enumerate("abc")])

    assert (answer.outcome, answer.winner) == ("cannot_tell", None)
    assert answer.sentences == ("no-speculation is the only arm in these cells.",)


def test_mean_of_more_runs_than_there_are_is_named() -> None:
    rows = speeds([30.0, 31.0])
    rows[1]["runs"] = 1e30
    assert "is the mean of 1e+30 runs that are not in the file" in sifted(rows).doubts[0]


def test_outlier_among_many_runs_names_a_few_of_them() -> None:
    rng = np.random.default_rng(1)
    found = sifted(speeds([*(30 * rng.lognormal(0, 0.01, 1000)), 40.0]))

    assert "40 stands out against" in found.doubts[0]
    assert "and 992 more" in found.doubts[0]


def test_mean_beside_its_runs_does_not_count_twice() -> None:
    rows = [*speeds([39.7, 33.1, 31.5]), *speeds([34.8])]
    rows[-1]["runs"] = 3
    found = sifted(rows)

    assert [item.tok_s for item in found.observations] == [39.7, 33.1, 31.5]
    assert "is the mean of lines 2, 3, 4" in found.doubts[0]


def test_mean_without_its_runs_counts_as_one_and_is_named() -> None:
    rows = speeds([120.1])
    rows[0]["runs"] = 3
    found = sifted(rows)

    assert len(found.observations) == 1
    assert "their spread is not known" in found.doubts[0]


def test_run_that_stands_out_is_flagged_and_counts() -> None:
    found = sifted(speeds([161.8, 167.8, 160.9, 178.5], streams=8))

    assert len(found.observations) == 4
    assert "178.5 stands out against 161.8, 167.8, 160.9" in found.doubts[0]
    assert sifted(speeds([161.8, 167.8, 160.9, 168.5], streams=8)).doubts == ()


def test_speeds_that_rise_with_the_rows_are_said_to_drift() -> None:
    found = sifted(speeds([30.0, 30.5, 31.1, 31.8, 32.0, 32.9]))

    assert "the speeds rise in the order of the rows" in found.doubts[0]
    assert len(found.observations) == 6
    assert sifted(speeds([30.0, 31.8, 30.5, 32.9, 31.1, 32.0])).doubts == ()


def test_equal_arms_by_speed_seldom_have_a_winner() -> None:
    rng = np.random.default_rng(7)
    wins = 0
    for _ in range(200):
        rows = [
            row
            for depth in range(3, 8)
            for row in speeds((30 * np.exp(rng.normal(0, 0.05, 3))).tolist())
            if row.update(num_speculative_tokens=depth) is None
        ]
        answer = ask(rows, reference="probabilistic+block-5", runs_are="boots")
        wins += answer.outcome == "winner"

    assert wins <= 10, "5 % of 200; the one-sided level is 2.5 %"


@settings(max_examples=60)
@given(
    logs=st.lists(
        st.tuples(st.floats(-0.3, 0.3), st.floats(-0.3, 0.3)), min_size=2, max_size=6, unique=True
    )
)
def test_conclusion_by_speed_never_names_a_winner_that_is_slower_on_average(
    logs: list[tuple[float, float]],
) -> None:
    rows = [
        *speeds([30 * math.exp(a) for a, _ in logs]),
        *speeds([30 * math.exp(b) for _, b in logs], arm="standard"),
    ]
    answer = ask(rows, reference=STANDARD, runs_are="boots")

    if answer.outcome == "winner":
        assert sum(a for a, _ in logs) > sum(b for _, b in logs)
        assert answer.ranking[0].contrast is not None
        assert answer.ranking[0].contrast.excludes_zero
