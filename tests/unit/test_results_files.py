"""Files and options to rows: formats, columns of one file and of several, what is given for all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from core_samples import make_arm, make_block, make_facts
from result_rows import Row, make_row, plain_row, write_csv

from orchestrator.core.codec import to_plain
from orchestrator.decide_command import read_observations
from orchestrator.errors import ConfigError
from orchestrator.results.files import ReadOptions, read_raw
from orchestrator.results.observation import observe


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

    file = read_raw(path, options)

    assert file.num_left_out == 1
    assert [raw.where for raw in file.rows] == [f"{path} line 3"]
    observation, faults = observe(file.rows[0])
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


def test_csv_quoted_fields_hold_lines_of_any_kind(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('# source\nboot,note\nb0,"one\n# two\n\nthree"\n# aside\n\nb1,"one\n# two"\n')

    rows = read_raw(path, ReadOptions()).rows

    assert [row.values for row in rows] == [
        {"boot": "b0", "note": "one\n# two\n\nthree"},
        {"boot": "b1", "note": "one\n# two"},
    ]
    assert [row.where for row in rows] == [f"{path} line 6", f"{path} line 10"]


@pytest.mark.parametrize("rows", ['b0,"odd\nb1,\nb2,\n', 'b0,"odd\nb1,"odd\nb2,\n'])
def test_csv_open_quote_is_refused_and_swallows_no_rows(tmp_path: Path, rows: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"boot,note\n{rows}")

    with pytest.raises(ConfigError, match="is no CSV"):
        read_raw(path, ReadOptions())


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


@pytest.mark.parametrize("name", ["rows", "rows.txt", "rows.csv", "rows.tsv", "rows.out.1"])
@pytest.mark.parametrize("layout", ["commas", "tabs", "lines", "array"])
def test_what_is_in_a_file_says_its_format(tmp_path: Path, name: str, layout: str) -> None:
    row = {key: str(value) for key, value in make_row().items()}
    table = f"# made elsewhere\n{','.join(row)}\n{','.join(row.values())}\n"
    texts = {
        "commas": table,
        "tabs": table.replace(",", "\t"),
        "lines": f"\n{json.dumps(row)}\n",
        "array": json.dumps([row]),
    }
    path = tmp_path / name
    path.write_text(texts[layout])

    (read,) = read_raw(path, ReadOptions()).rows
    assert read.values == row
    assert read.where.startswith(f"{path} ")


def test_file_that_is_no_format_says_so(tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_text("results of monday\n")
    with pytest.raises(ConfigError, match="neither JSON nor a table: its first line is 'results"):
        read_raw(path, ReadOptions())


def two_files(folder: Path, one: Row, other: Row) -> list[Path]:
    """Return two files of one name in two folders."""
    paths = [folder / name / "runs.csv" for name in ("monday", "tuesday")]
    for path, row in zip(paths, (one, other), strict=True):
        path.parent.mkdir()
        write_csv(path, [row])
    return paths


def renamed(row: Row, old: str, new: str) -> Row:
    return {new if name == old else name: value for name, value in row.items()}


def test_column_that_one_of_two_files_has_is_read_there(tmp_path: Path) -> None:
    other = renamed(make_row(boot="b"), "num_speculative_tokens", "k")
    paths = two_files(tmp_path, make_row(), other)
    with pytest.raises(ConfigError) as error:
        read_observations(paths, ReadOptions())
    assert f"{paths[1]}: column 'k' is not known" in str(error.value)
    assert "--column num_speculative_tokens='k', or --ignore 'k'" in str(error.value)

    options = ReadOptions(columns={"num_speculative_tokens": "k"})
    observations, notes = read_observations(paths, options)
    assert [item.arm.num_speculative_tokens for item in observations] == [7, 7]
    assert notes == []
    with pytest.raises(ConfigError, match=r"no file has a column 'kk'; they have: .*, k, node"):
        read_observations(paths, ReadOptions(ignored=["kk"]))


def test_file_without_a_column_that_an_option_names_is_named(tmp_path: Path) -> None:
    paths = two_files(tmp_path, make_row(config="mtp", server="n1"), make_row(boot="b", node=""))
    options = ReadOptions(
        columns={"note": "server"}, left_out=[("config", "mtp")], ignored=["node"]
    )
    observations, notes = read_observations(paths, options)

    assert [item.boot for item in observations] == ["b"]
    assert notes == [
        f"{paths[1]} has no column 'config': no row of it is left out by that.",
        f"{paths[1]} has no column 'server', so its rows say no note.",
        f"{paths[0]}: 1 row left out as asked.",
    ]


def test_value_that_one_of_two_files_lacks_gets_advice_that_works(tmp_path: Path) -> None:
    silent = {name: value for name, value in make_row().items() if name != "engine_build"}
    stating = make_row(boot="b")
    paths = two_files(tmp_path, silent, stating)
    with pytest.raises(ConfigError) as error:
        read_observations(paths, ReadOptions())
    said = f"other rows say 0.32.0: write it into {paths[0]}, or give --set engine_build=0.32.0"
    assert f"{paths[0]} line 2: engine_build is missing and {said} if it is the same" in str(
        error.value
    )
    observations, _ = read_observations(paths, ReadOptions(constants={"engine_build": "0.32.0"}))
    assert len(observations) == 2

    with pytest.raises(ConfigError) as error:
        read_observations(paths, ReadOptions(constants={"engine_build": "0.28.0"}))
    assert f"{paths[1]} line 2 says engine_build '0.32.0'" in str(error.value)
    assert f"write engine_build into the rows of {paths[0]} that do not say it" in str(error.value)

    write_csv(paths[0], [{**silent, "engine_build": "0.28.0"}])
    assert len(read_observations(paths, ReadOptions())[0]) == 2


def test_set_that_rows_say_otherwise_gets_advice_that_works(tmp_path: Path) -> None:
    paths = two_files(tmp_path, *(renamed(make_row(boot=b), "engine_build", "v") for b in "ab"))
    options = ReadOptions(columns={"engine_build": "v"}, constants={"engine_build": "0.33.0"})
    with pytest.raises(ConfigError, match=r"leave --set engine_build=0\.33\.0 out, or --ignore v"):
        read_observations(paths, options)

    observations, _ = read_observations(paths, replace(options, ignored=["v"]))
    assert {item.arm.engine_build for item in observations} == {"0.33.0"}


@pytest.mark.parametrize("empty", ["", " ", "-", "NA", "n/a", "None", "NULL", "nan"])
def test_what_is_given_for_all_rows_fills_what_is_not_known(tmp_path: Path, empty: str) -> None:
    path = write_csv(tmp_path / "rows.csv", [make_row(engine_build=empty, node=empty)])
    options = ReadOptions(constants={"engine_build": "0.28.0"})
    (found,), _ = read_observations([path], options)

    assert (found.arm.engine_build, found.node) == ("0.28.0", None)


def test_rule_that_is_given_for_all_rows_is_not_of_rows_without_speculation(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rows.csv", [make_row(draft_sample_method=""), plain_row()])
    options = ReadOptions(constants={"draft_sample_method": "greedy"})
    found, _ = read_observations([path], options)

    assert [item.arm.draft_sample_method for item in found] == ["greedy", None]


def test_csv_lines_end_where_the_rows_do(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a,note\r\n1,before\u2028after\r\n\r\n2,\n", newline="")
    rows = read_raw(path, ReadOptions()).rows

    assert [row.values["a"] for row in rows] == ["1", "2"]
    assert [row.where for row in rows] == [f"{path} line 2", f"{path} line 4"]


def test_file_without_a_named_column_says_which_it_has(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rows.csv", [make_row()])
    with pytest.raises(ConfigError, match="no column 'depth'; it has: accepted, boot"):
        read_observations([path], ReadOptions(columns={"num_speculative_tokens": "depth"}))


def test_faults_of_many_rows_are_told_once_with_their_number(tmp_path: Path) -> None:
    rows = [make_row(boot=str(n), acceptance_rate=65) for n in range(5)]
    path = write_csv(tmp_path / "rows.csv", rows)
    with pytest.raises(ConfigError, match=r"rows.csv line 2 and 4 more: acceptance_rate 65"):
        read_observations([path], ReadOptions())


def test_unknown_columns_are_named_and_slips_are_faults(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rows.csv", [make_row(gpu_name="GB10", note="warm")])
    _, notes = read_observations([path], ReadOptions())
    assert notes == [f"{path}: not read: gpu_name."]

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


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"num_speculative_tokens": "3"}, "num_speculative_tokens is given as '3' and the record"),
        ({"engine_build": "0.1"}, "engine_build is given as '0.1' and the record says"),
        ({"draft_sample_method": "greedy"}, "draft_sample_method is given as 'greedy'"),
        ({"temperature": "0.1"}, "temperature is given as '0.1' and the record says"),
        ({"streams": "64"}, "streams is given as '64' and the record says"),
        ({"boot": "other"}, "boot is given as 'other' and the record says 'boot'"),
    ],
)
def test_set_is_held_against_what_the_engine_and_the_block_say(
    tmp_path: Path, given: dict[str, str], says: str
) -> None:
    arm = make_arm()
    path = tmp_path / "blocks.json"
    path.write_text(json.dumps([to_plain(make_block(arm))]))
    (tmp_path / "engine_facts.json").write_text(json.dumps(to_plain(make_facts(arm))))
    with pytest.raises(ConfigError, match=says):
        read_observations([path], ReadOptions(constants=given))

    depth, workload = f"{arm.num_speculative_tokens}.0", make_block(arm).cell.workload
    same = {"num_speculative_tokens": depth, "workload": workload}
    assert len(read_observations([path], ReadOptions(constants=same))[0]) == 1


def test_engine_that_does_not_say_its_version_is_given_it(tmp_path: Path) -> None:
    arm = make_arm()
    path = tmp_path / "blocks.json"
    path.write_text(json.dumps([to_plain(make_block(arm))]))
    facts = {**to_plain(make_facts(arm)), "engine_version": None}
    (tmp_path / "engine_facts.json").write_text(json.dumps(facts))
    with pytest.raises(ConfigError, match="engine_build is missing: give the column or --set"):
        read_observations([path], ReadOptions())

    (found,), _ = read_observations([path], ReadOptions(constants={"engine_build": "0.30"}))
    assert found.arm == replace(arm, engine_build="0.30")


def test_blocks_without_the_facts_beside_them_do_not_say_their_arm(tmp_path: Path) -> None:
    (tmp_path / "blocks.json").write_text(json.dumps([to_plain(make_block(make_arm()))]))
    with pytest.raises(ConfigError, match=r"keep engine_facts\.json beside it"):
        read_observations([tmp_path / "blocks.json"], ReadOptions())


def test_record_of_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "later.json"
    path.write_text(json.dumps({"schema": "specpilot.measure/9", "block": {}}))
    with pytest.raises(ConfigError, match=r"schema 'specpilot\.measure/9' is not known"):
        read_observations([path], ReadOptions())
