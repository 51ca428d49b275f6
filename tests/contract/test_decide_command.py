"""``python -m orchestrator decide`` on files: what it prints and how it ends."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest
from result_rows import study_rows, write_csv

from orchestrator import decide_command
from orchestrator.errors import ConfigError

Capture = pytest.CaptureFixture[str]


def run(*arguments: object) -> int:
    root = argparse.ArgumentParser()
    decide_command.add_parser(root.add_subparsers(dest="command"))
    return decide_command.run(root.parse_args(["decide", *map(str, arguments)]))


@pytest.fixture(scope="module")
def study_csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return four boots of two arms in two cells."""
    busy = [row | {"streams": 8, "seconds": float(str(row["seconds"])) / 4} for row in study_rows()]
    for row in busy:
        if row["drafts"]:
            row |= {"drafts": int(str(row["drafts"])) - 1, "draft_tokens": ""}
    path = tmp_path_factory.mktemp("study") / "study.csv"
    return write_csv(path, [*study_rows(), *busy])


def test_decide_of_rows_with_counters_names_a_winner_and_what_files_cannot_answer(
    study_csv: Path, capsys: Capture
) -> None:
    status = run(study_csv, "--json")

    record = json.loads(capsys.readouterr().out)
    assert record["schema"] == "specpilot.decide/1"
    (answer,) = record["answers"]
    assert answer["basis"] == "counters"
    assert answer["reference"].endswith("no-speculation")
    assert (status, answer["outcome"]) == (0, "winner")
    assert answer["verdict"]["winner"] == answer["winner"]
    assert "in_force" in [g["name"] for g in answer["gates"] if g["passed"] is None]
    assert len(answer["cells"]) == len({(c["cell"], c["arm"]) for c in answer["cells"]})


def test_decide_prints_the_verdict_and_its_tables(study_csv: Path, capsys: Capture) -> None:
    run(study_csv)

    out = capsys.readouterr().out
    assert "32 rows count" in out
    assert "vLLM 0.32.0: FASTER: probabilistic+block-7" in out
    assert "A promotion also asks what files cannot answer" in out
    assert "Production" not in out
    assert out.isascii()


def test_decide_prints_findings_when_asked(study_csv: Path, capsys: Capture) -> None:
    run(study_csv, "--findings")

    out = capsys.readouterr().out
    assert "## What would turn it round" in out
    assert "no-speculation would be as fast" in out
    assert "## Depth curves" in out


def test_decide_with_nothing_to_promote_ends_with_three(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(
        "num_speculative_tokens,draft_sample_method,rejection_sample_method,tok_s\n"
        "7,probabilistic,block,39.7\n7,probabilistic,block,33.1\n7,probabilistic,block,31.5\n"
        "5,probabilistic,block,29.3\n"
    )
    common = ["--set", "engine_build=0.28.0", "--set", "streams=1", "--set", "temperature=0.7"]

    status = run(path, *common, "--reference", "probabilistic+block-5")

    assert status == 3
    out = capsys.readouterr().out
    assert "CANNOT TELL from these rows" in out
    assert "39.7 33.1 31.5" in out
    assert "what these rows do not show:" in out


def test_decide_takes_other_names_and_leaves_rows_out(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(
        "config,k,draft,reject,T,concurrency,tok_s\n"
        "a,5,greedy,standard,0.7,1,28.5\nb,5,probabilistic,standard,0.7,1,25.7\nmtp,,,,0.7,1,20\n"
    )
    names = {
        "num_speculative_tokens": "k",
        "draft_sample_method": "draft",
        "rejection_sample_method": "reject",
        "temperature": "T",
        "streams": "concurrency",
    }
    options = [text for ours, theirs in names.items() for text in ("--column", f"{ours}={theirs}")]
    options += ["--set", "engine_build=0.28.0", "--leave-out", "config=mtp"]

    assert run(path, *options, "--reference", "greedy+standard-5") == 3

    out = capsys.readouterr().out
    assert "1 row left out as asked" in out
    assert "KEEP: greedy+standard-5" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--weights", "c1_t0.7"], "--weights: 'c1_t0.7' has no name and value"),
        (["--weights", "c1_t0.7=x"], "--weights: 'c1_t0.7=x' is no share"),
        (["--weights", "c1_t0.7=-1"], "--weights"),
        (["--weights", "c1_t0.7=0"], "--weights: all are 0"),
        (["--weights", "c1_t0.7=1,c1_t0.7=2"], "stands there twice"),
        (["--weights", "c9_t0.7=1"], "no row is of the cell c9_t0.7"),
        (["--confidence", "95"], "--confidence: 95"),
        (["--confidence", "0.9999999999999999"], "--confidence: 0.99999999999999989"),
        (["--set", "steams=1"], "--set: there is no column 'steams'; do you mean streams"),
        (["--column", "speed=tok_s"], "--column: there is no column 'speed'"),
        (["--set", "node=n1", "--set", "node=n2"], "--set: node stands there twice, as 'n1' and"),
        (["--column", "node=boot", "--column", "node=note"], "--column: node stands there twice"),
        (["--column", "note=node", "--column", "config=node"], "'node' is read as note and config"),
        (["--column", "node=boot"], "the columns 'boot' and 'node', and both would be node"),
        (["--set", "engine_build=-"], "--set: '-' says no engine_build"),
        (["--set", "streams=some"], "--set: streams 'some' is no number"),
        (["--set", "temperature=0.3"], "line 2 says temperature '0.7' and --set says '0.3'"),
        (["--set", "engine_build=0.32"], "says engine_build '0.32.0' and --set says '0.32'"),
        (
            ["--leave-out", "boot=p9"],
            "--leave-out: no row has the value 'p9' in boot; there are: p0",
        ),
        (["--ignore", "nothing"], "has no column 'nothing'"),
        (["--reference", "greedy+block-99"], "--reference: no row is of greedy"),
    ],
)
def test_bad_option_is_refused_with_its_name(
    study_csv: Path, arguments: list[str], says: str
) -> None:
    with pytest.raises(ConfigError, match=says.replace("+", r"\+")):
        run(study_csv, *arguments)


def test_decide_needs_neither_ray_nor_mlflow() -> None:
    names = {name.partition(".")[0] for name in vars(decide_command)}
    assert not {"ray", "mlflow"} & names
    assert "orchestrator.decide_command" in sys.modules


def test_decide_counts_copies_of_a_file_once_and_says_so(tmp_path: Path, capsys: Capture) -> None:
    text = (
        "engine_build,num_speculative_tokens,draft_sample_method,rejection_sample_method,"
        "streams,temperature,tok_s\n"
        "0.28.0,7,probabilistic,block,1,0.7,39\n0.28.0,5,probabilistic,block,1,0.7,33\n"
    )
    paths = [tmp_path / f"{name}.csv" for name in "abc"]
    for path in paths:
        path.write_text(text)

    status = run(*paths, "--reference", "probabilistic+block-5", "--runs-are", "boots", "--json")

    record = json.loads(capsys.readouterr().out)
    assert (status, record["num_rows"]) == (3, 2)
    assert [
        f"{path} holds the rows of {paths[0]}" in "".join(record["doubts"]) for path in paths
    ] == [False, True, True]


def test_decide_with_set_that_rows_say_too_is_no_quarrel(study_csv: Path) -> None:
    assert run(study_csv, "--set", "temperature=0.70", "--set", "engine_build=0.32.0") == 0


def test_decide_leaves_out_what_one_of_two_files_has(tmp_path: Path, capsys: Capture) -> None:
    one = write_csv(tmp_path / "one.csv", study_rows())
    other = write_csv(tmp_path / "other.csv", [row | {"temperature": 0.5} for row in study_rows()])

    run(one, other, "--leave-out", "temperature=0.50")

    assert "other.csv: 16 rows left out as asked" in capsys.readouterr().out


def test_decide_leaves_zero_of_json_lines_out(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in study_rows()))

    with pytest.raises(ConfigError, match="no row is without speculation"):
        run(path, "--leave-out", "num_speculative_tokens=0")


def test_decide_with_an_interval_that_no_float_holds_cannot_tell(
    tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(
        "engine_build,num_speculative_tokens,draft_sample_method,rejection_sample_method,boot,"
        "streams,temperature,tok_s\n0.28,0,,,a,1,0.7,12\n0.28,0,,,b,1,0.7,17\n"
        "0.28,5,greedy,standard,a,1,0.7,20\n"
    )

    assert run(path, "--confidence", "0.9999") == 3
    assert "(99.99 % interval 0.00 to inf, 1 and 2 boots)" in capsys.readouterr().out
    assert run(path, "--confidence", "0.9999", "--json") == 3
    (answer,) = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["answers"]
    assert [place["high"] for place in answer["ranking"]] == [None, None]
    assert answer["ranking"][0]["speedup"] == pytest.approx(20 / (12 * 17) ** 0.5)


def test_decide_takes_one_boot_in_two_files_as_one_and_says_so(
    tmp_path: Path, capsys: Capture
) -> None:
    paths = [tmp_path / f"{name}.csv" for name in ("quiet", "busy")]
    for path, streams in zip(paths, ("1", "8"), strict=True):
        path.write_text(
            "engine_build,num_speculative_tokens,draft_sample_method,rejection_sample_method,"
            f"boot,node,streams,temperature,tok_s\n0.28,0,,,a,n1,{streams},0.7,12.3\n"
            f"0.28,5,greedy,standard,a,n1,{streams},0.7,20.1\n"
        )

    run(*paths, "--json")

    record = json.loads(capsys.readouterr().out)
    said = f"{paths[0]} and {paths[1]} have rows of a of no-speculation, a of greedy+standard-5: "
    assert any(text.startswith(said) for text in record["doubts"])
    assert [place["num_boots"] for place in record["answers"][0]["ranking"]] == [1, 1]
