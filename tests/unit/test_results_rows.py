"""Rows to observations: what is read, what is missing, and what cannot be so."""

from __future__ import annotations

from pathlib import Path

import pytest
from core_samples import make_arm, make_block
from result_rows import Row, as_raw, make_row, plain_row

from orchestrator.core.codec import to_plain
from orchestrator.core.types import Arm, Cell
from orchestrator.results.columns import COLUMNS, near_match
from orchestrator.results.files import Raw
from orchestrator.results.observation import observe


def test_row_with_all_columns_becomes_a_block_with_its_counters() -> None:
    row = make_row(p0=2800, p1=2000, p2=1200, engine_tokens=9000, ttft_s=0.3, requests=40)
    observation, faults = observe(as_raw(row))

    assert faults == []
    assert observation is not None
    assert observation.arm == Arm(
        engine_build="0.32.0",
        num_speculative_tokens=7,
        draft_sample_method="probabilistic",
        rejection_sample_method="block",
    )
    assert observation.cell == Cell(streams=1, temperature=0.7, workload="code")
    assert (observation.boot, observation.node) == ("a", "n1")
    block = observation.block
    assert block is not None
    assert block.is_valid, block.invalid_reason
    assert block.counters.num_accepted_tokens_per_pos == (2800, 2000, 1200)
    assert block.counters.generation_tokens == block.audit.engine_window == 9000
    assert block.ttft_s == (0.3,)
    assert observation.has_counters
    assert observation.tok_s == pytest.approx(9000 / 270)


def test_row_what_is_missing_is_missing_and_never_zero() -> None:
    row = {**make_row(tok_s=33.3), "tokens": "", "seconds": "-", "drafts": "NA", "boot": ""}
    row |= {"accepted": "", "draft_tokens": "", "node": "", "workload": ""}
    observation, faults = observe(as_raw(row))

    assert faults == []
    assert observation is not None
    assert (observation.block, observation.boot, observation.node) == (None, None, None)
    assert observation.tok_s == 33.3
    assert observation.given_length is None
    assert not observation.has_counters
    assert observation.cell.workload == "unknown"


@pytest.mark.parametrize(
    ("given", "tokens", "seconds"),
    [
        ({"tok_s": 30.0, "tokens": ""}, 8100, 270),
        ({"tok_s": 30.0, "seconds": ""}, 9000, 300),
    ],
)
def test_row_two_of_tokens_seconds_and_speed_give_the_third(
    given: Row, tokens: int, seconds: float
) -> None:
    row = make_row(**given, drafts=tokens // 3, accepted=2 * tokens // 3, draft_tokens="")
    observation, faults = observe(as_raw(row))

    assert faults == []
    assert observation is not None
    assert observation.block is not None
    assert observation.block.output_tokens == tokens
    assert observation.block.duration_s == pytest.approx(seconds)


@pytest.mark.parametrize("listed", ["[2800, 2000, 1200]", "2800 2000 1200", "2800;2000;1200"])
def test_row_positions_as_a_list_are_those_of_columns(listed: str) -> None:
    observation, faults = observe(as_raw(make_row(accepted_per_pos=listed, accepted="")))

    assert faults == []
    assert observation is not None
    assert observation.block is not None
    assert observation.block.counters.num_accepted_tokens_per_pos == (2800, 2000, 1200)
    assert observation.block.counters.num_accepted_tokens == 6000, "their sum"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"engine_build": ""}, "engine_build is missing"),
        ({"num_speculative_tokens": ""}, "num_speculative_tokens is missing"),
        ({"draft_sample_method": ""}, "must be stated with a depth"),
        ({"num_speculative_tokens": 0}, "a rule is stated although"),
        ({"streams": ""}, "streams is missing"),
        ({"streams": 0}, "streams is 0"),
        ({"temperature": ""}, "temperature is missing"),
        ({"seconds": -270}, "seconds -270 is negative"),
        ({"seconds": "nan"}, "seconds is nan"),
        ({"tokens": "inf"}, "tokens is inf"),
        ({"tokens": 9000.5}, "no whole number"),
        ({"drafts": "3,000"}, "is the point a comma?"),
        ({"acceptance_rate": "65%"}, "'65%' is no number: a share of 1 belongs there, 0.65"),
        ({"acceptance_rate": "0.65 %"}, "a share of 1 belongs there, 0.0065"),
        ({"acceptance_rate": "0,65%"}, "a share of 1 belongs there, 0.0065"),
        ({"acceptance_rate": "100%"}, "a share of 1 belongs there, 1"),
        ({"acceptance_rate": "650%"}, "a percent sign does not belong there"),
        ({"temperature": "70%"}, "a percent sign does not belong there"),
        ({"acceptance_rate": 65}, "in percent? 0.65"),
        ({"acceptance_length": 0.65}, "is it a rate"),
        ({"acceptance_length": 28.57}, "in percent?"),
        ({"acceptance_length": 8.2}, "outside 1 to 8"),
        ({"acceptance_length": 2.5}, "is not 1 + accepted / drafts"),
        ({"accepted": 30000, "draft_tokens": ""}, "are drafts drafted tokens?"),
        ({"draft_tokens": 5000}, "more than 5000 drafted"),
        ({"drafts": "", "draft_tokens": ""}, "without drafts"),
        ({"seconds": 270000}, "seconds in ms?"),
        ({"seconds": 270000, "tok_s": 33.33}, "seconds in ms?"),
        ({"streams": 4, "tok_s": 8.333}, "tok_s of one stream?"),
        ({"tokens": "", "seconds": ""}, "no speed"),
        ({"tok_s": 0, "tokens": "", "seconds": ""}, "tok_s is 0"),
        ({"seconds": 0}, "seconds is 0"),
        ({"ttft_s": 300}, "in ms?"),
        ({"tpot_s": 80}, "tpot_s 80 is not believed: in ms?"),
        ({"draft_sample_method": "gready"}, "'gready' is not known: is it greedy?"),
        ({"rejection_sample_method": "Block"}, "'Block' is not known: is it block?"),
        ({"num_speculative_tokens": 1e18}, "num_speculative_tokens 1e+18 is not believed"),
        ({"temperature": 70}, "temperature 70 is not believed"),
        ({"acceptance_rate": 0.9}, "acceptance_rate 0.9 is not accepted / drafted tokens, 0.286"),
        ({"draft_tokens": 30000}, "30000 drafted tokens in 3000 drafts are more than 7 each"),
        ({"drafts": 0, "accepted": 0, "draft_tokens": 0}, "0 drafts of an arm that speculates"),
        ({"requests": 4, "failed": 9}, "9 of 4 requests failed"),
        ({"runs": 0}, "runs is 0"),
        ({"boot": "a\x1b[31m"}, "boot 'a\\x1b[31m' has characters that cannot be printed"),
        ({"p0": 0.93, "p1": 0.67, "p2": 0.4}, "no whole number: a share where a count belongs?"),
        ({"p0": 1, "p1": 1, "p2": 1}, "look like rates"),
        ({"p0": 3500, "p1": 2500}, "more than 3000 drafts"),
        ({"p0": 2800, "p1": 2000}, "sum to 4800"),
        ({"p0": 2800, "p2": 2000}, "have a gap"),
        ({"accepted_per_pos": "2800 x"}, "accepted_per_pos: 'x' is no number"),
        ({"accepted_per_pos": "1 1 1 1 1 1 1 1", "accepted": 8}, "more than the depth 7"),
    ],
)
def test_row_that_cannot_be_so_names_column_and_value(change: Row, says: str) -> None:
    observation, faults = observe(as_raw(make_row(**change)))

    assert observation is None
    assert any(says in fault for fault in faults), faults


def test_row_without_speculation_that_drafts_is_named() -> None:
    _, faults = observe(as_raw(plain_row(drafts=10)))

    assert faults == ["10 drafts of an arm that does not speculate"]


def test_row_whose_counters_are_of_another_window_is_no_valid_block() -> None:
    observation, faults = observe(as_raw(make_row(tokens=7000)))

    assert faults == []
    assert observation is not None
    assert observation.block is not None
    assert "step_time: 3000 drafts and 6000 accepted tokens make 9000" in str(
        observation.block.invalid_reason
    )


def test_row_with_rising_positions_is_no_valid_block() -> None:
    observation, _ = observe(as_raw(make_row(p0=1500, p1=2500, p2=2000)))

    assert observation is not None
    assert observation.block is not None
    assert "rises" in str(observation.block.invalid_reason)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("acepted", "accepted"),
        ("Temperature", "temperature"),
        ("k", "num_speculative_tokens"),
        ("gpu_name", None),
    ],
)
def test_near_match_finds_slips_and_usual_names(name: str, meant: str | None) -> None:
    assert near_match(name) == meant


@pytest.mark.parametrize(
    ("rate", "length", "depth", "is_so"),
    [
        (0.65, 2.2, 5, False),
        (0.65, 4.25, 5, True),
        (0.65, 4.2, 5, True),  # written to one decimal
        (0.64, 1.6, 1, True),
        (0.64, 1.64, 1, True),
        (0.64, 1.8, 1, False),
        (0.0, 1.0, 5, True),
        (0.3, 1.0, 5, False),
    ],
)
def test_rate_and_length_without_counts_are_held_against_each_other(
    rate: float, length: float, depth: int, is_so: bool
) -> None:
    none = dict.fromkeys(("drafts", "draft_tokens", "accepted"), "")
    row = make_row(**none, num_speculative_tokens=depth)
    row |= {"acceptance_rate": rate, "acceptance_length": length}
    _, faults = observe(as_raw(row))

    said = f"acceptance_rate {rate:g} and acceptance_length {length:g} contradict each other: 1 + "
    assert [text.startswith(said) for text in faults] == ([] if is_so else [True])


def test_rate_of_drafts_shorter_than_the_depth_is_that_of_what_was_drafted() -> None:
    row = make_row(accepted="", draft_tokens=12000)  # 4 of 7 a draft
    assert observe(as_raw({**row, "acceptance_rate": 0.5, "acceptance_length": 3.0}))[1] == []
    assert observe(as_raw({**row, "acceptance_rate": 0.5, "acceptance_length": 4.5}))[1] != []


def test_length_is_held_against_counts_by_position() -> None:
    row = make_row(accepted="", p0=3000, p1=2000, p2=1000, acceptance_length=4.5)
    _, faults = observe(as_raw(row))
    assert faults == ["acceptance_length 4.5 is not 1 + accepted / drafts, 3.000"]


def test_whole_number_that_no_float_holds_is_named() -> None:
    _, faults = observe(Raw(where="rows.jsonl record 1", values={**make_row(), "tokens": 10**400}))

    assert faults == ["tokens has 401 digits"]


def test_rule_that_is_like_no_known_one_is_an_arm_of_its_own() -> None:
    observation, faults = observe(as_raw(make_row(rejection_sample_method="not-published")))

    assert faults == []
    assert observation is not None
    assert observation.arm.label == "probabilistic+not-published-7"


@pytest.mark.parametrize("value", [{"a": 1}, ["greedy"], True])
def test_text_that_is_no_text_is_named(value: object) -> None:
    row = {**make_row(), "boot": value}
    _, faults = observe(Raw(where="rows.jsonl record 1", values=row))

    assert len(faults) == 1
    assert faults[0].startswith("boot ")
    assert faults[0].endswith("is no text")


def test_record_of_measure_needs_its_arm(tmp_path: Path) -> None:
    arm = make_arm()
    record = {"schema": "specpilot.measure/1", "block": to_plain(make_block(arm))}
    observation, faults = observe(Raw(where="here", values=record))
    assert observation is None
    assert "add the arm's keys" in faults[-1]

    keys = {"boot": "b1", **{name: getattr(arm, name) for name in Arm.__dataclass_fields__}}
    observation, faults = observe(Raw(where="here", values={**record, **keys}))
    assert faults == []
    assert observation is not None
    assert (observation.arm, observation.boot) == (arm, "b1")


def test_docs_have_every_column() -> None:
    text = (Path(__file__).parents[2] / "docs/decide.md").read_text(encoding="utf-8")
    assert [name for name in COLUMNS if f"`{name}`" not in text] == []
