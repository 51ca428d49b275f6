"""Files to rows: what is read, what is missing, and what cannot be so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from core_samples import make_arm, make_block, make_facts
from result_rows import Row, as_raw, make_row, plain_row, write_csv

from orchestrator.core.codec import to_plain
from orchestrator.core.types import Arm, Cell
from orchestrator.decide_command import read_observations
from orchestrator.errors import ConfigError
from orchestrator.results.columns import COLUMNS, near_match
from orchestrator.results.files import Raw, ReadOptions, read_raw
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
        ({"acceptance_rate": "65%"}, "without the sign"),
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


def test_csv_with_comments_and_other_names_is_read(tmp_path: Path) -> None:
    rows = [make_row(k=row) for row in (7, 5)]
    for row in rows:
        del row["num_speculative_tokens"]
        del row["engine_build"]
    path = write_csv(tmp_path / "rows.csv", rows)
    path.write_text("# source: somewhere\n" + path.read_text())
    options = ReadOptions(
        columns={"num_speculative_tokens": "k"},
        constants={"engine_build": "0.28.0"},
        left_out=[("k", "5")],
    )

    raws, num_left_out, _ = read_raw(path, options)

    assert num_left_out == 1
    assert [raw.where for raw in raws] == ["rows.csv line 3"]
    observation, faults = observe(raws[0])
    assert faults == []
    assert observation is not None
    assert observation.arm.key == "0.28.0/probabilistic+block-7"


def test_csv_with_a_nameless_column_and_short_rows_is_read(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rows.csv", [make_row()])
    header, row = path.read_text().splitlines()
    path.write_text(f"{header},ttft_s,\n{row}\n")

    observations, notes = read_observations([path], ReadOptions())

    assert len(observations) == 1
    assert observations[0].block is not None
    assert observations[0].block.ttft_s == ()
    assert notes == []


@pytest.mark.parametrize("layout", ["lines", "array", "pretty"])
def test_json_is_read_as_lines_array_or_objects(tmp_path: Path, layout: str) -> None:
    rows = [make_row(boot="a"), make_row(boot="b", accepted_per_pos=[3000, 2000, 1000])]
    texts = {
        "lines": "\n".join(json.dumps(row) for row in rows),
        "array": json.dumps(rows),
        "pretty": "\n".join(json.dumps(row, indent=2) for row in rows),
    }
    path = tmp_path / "rows.jsonl"
    path.write_text(texts[layout])

    observations, notes = read_observations([path], ReadOptions())

    assert [item.boot for item in observations] == ["a", "b"]
    assert notes == []


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("none.csv", None, "cannot be read"),
        ("empty.csv", "a,b\n", "holds no row"),
        ("wide.csv", "a,b\n1,2,3\n", "line 2 has more fields"),
        ("broken.jsonl", '{"a": 1}\n{"a": ', "line 2 is not JSON"),
        ("number.jsonl", "17", "no object"),
        ("semicolons.csv", "a;b\n1,5;2\n", "one column, with semicolons in its name"),
        ("twice.csv", "a,b,a\n1,2,3\n", "the column 'a' twice"),
        (
            "twice.jsonl",
            '{"a": 1}\n{"a": 1, "a": 2}',
            "line 2 .*the key 'a' stands there twice",
        ),
        ("long.csv", f"a,b\n1,{'x' * 200_000}\n", "line 2 is no CSV"),
        ("strange.csv", "a,b\x00\n1,2\n", "a column 'b.x00', which cannot be printed"),
    ],
)
def test_file_that_is_broken_is_refused_with_its_place(
    tmp_path: Path, name: str, text: str | None, says: str
) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        read_raw(path, ReadOptions())


def test_csv_lines_end_where_the_rows_do(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a,note\r\n1,before\u2028after\r\n\r\n2,\n", newline="")
    rows, *_ = read_raw(path, ReadOptions())

    assert [row.values["a"] for row in rows] == ["1", "2"]
    assert [row.where for row in rows] == ["rows.csv line 2", "rows.csv line 4"]


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


def test_file_without_a_named_column_says_which_it_has(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rows.csv", [make_row()])
    with pytest.raises(ConfigError, match="no column 'depth'; it has: accepted, boot"):
        read_raw(path, ReadOptions(columns={"num_speculative_tokens": "depth"}))


def test_faults_of_many_rows_are_told_once_with_their_number(tmp_path: Path) -> None:
    rows = [make_row(boot=str(n), acceptance_rate=65) for n in range(5)]
    path = write_csv(tmp_path / "rows.csv", rows)
    with pytest.raises(ConfigError, match=r"rows.csv line 2 and 4 more: acceptance_rate 65"):
        read_observations([path], ReadOptions())


def test_unknown_columns_are_named_and_slips_are_faults(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rows.csv", [make_row(gpu_name="GB10", note="warm")])
    _, notes = read_observations([path], ReadOptions())
    assert notes == ["rows.csv: not read: gpu_name."]

    row = make_row(acepted=6000)
    del row["accepted"]
    path = write_csv(tmp_path / "slip.csv", [row])
    with pytest.raises(ConfigError, match="'acepted' is not known: is it accepted"):
        read_observations([path], ReadOptions())


def test_slip_in_a_needed_column_is_said_once(tmp_path: Path) -> None:
    row = make_row(concurrency=1)
    del row["streams"]
    path = write_csv(tmp_path / "slip.csv", [row, row])
    with pytest.raises(ConfigError, match="'concurrency' is not known: is it streams") as error:
        read_observations([path], ReadOptions())
    assert "streams is missing" not in str(error.value)


def test_blocks_of_a_trial_are_read_with_the_arm_that_the_engine_stated(tmp_path: Path) -> None:
    arm = make_arm()
    blocks = [to_plain(make_block(arm, index=index)) for index in range(2)]
    (tmp_path / "blocks.json").write_text(json.dumps(blocks))
    (tmp_path / "engine_facts.json").write_text(json.dumps(to_plain(make_facts(arm))))

    observations, notes = read_observations([tmp_path / "blocks.json"], ReadOptions())

    assert notes == []
    assert [item.arm for item in observations] == [arm, arm]
    assert {item.boot for item in observations} == {"boot"}
    assert observations[0].facts == make_facts(arm)
    assert observations[1].block == make_block(arm, index=1)


def test_blocks_without_the_facts_beside_them_do_not_say_their_arm(tmp_path: Path) -> None:
    (tmp_path / "blocks.json").write_text(json.dumps([to_plain(make_block(make_arm()))]))
    with pytest.raises(ConfigError, match=r"keep engine_facts\.json beside it"):
        read_observations([tmp_path / "blocks.json"], ReadOptions())


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


def test_record_of_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "later.json"
    path.write_text(json.dumps({"schema": "specpilot.measure/9", "block": {}}))
    with pytest.raises(ConfigError, match=r"schema 'specpilot\.measure/9' is not known"):
        read_observations([path], ReadOptions())


def test_docs_have_every_column() -> None:
    text = (Path(__file__).parents[2] / "docs/decide.md").read_text(encoding="utf-8")
    assert [name for name in COLUMNS if f"`{name}`" not in text] == []
