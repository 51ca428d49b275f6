"""``workload import``, ``workload card`` and ``workload show``, on files."""

from __future__ import annotations

import argparse
import json
import resource
import signal
from pathlib import Path

import pytest

from orchestrator import workload_command
from orchestrator.adapters.tokenizer import FolderTokenizer
from orchestrator.errors import ConfigError
from orchestrator.load.workload import load_workload
from orchestrator.load.workload_card import card_path, read_card

TARGET = Path(__file__).resolve().parents[2] / "infra" / "tiny_models" / "target"


def run(*arguments: object) -> int:
    root = argparse.ArgumentParser()
    workload_command.add_parser(root.add_subparsers(dest="command"))
    return workload_command.run(root.parse_args(["workload", *map(str, arguments)]))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "requests.jsonl"
    bodies = [{"prompt": f"prompt number {i}", "temperature": 0.7} for i in range(5)]
    path.write_text("".join(json.dumps(body) + "\n" for body in bodies) + "{broken\n")
    return path


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_import_writes_a_workload_with_its_card_and_reports(
    tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine.jsonl"

    assert run("import", log, "--format", "openai-log", "--out", out, "--tokenizer", TARGET) == 0

    workload = load_workload(out)
    assert len(workload.prompts) == 5
    assert workload.card is not None
    assert workload.card.source == "requests.jsonl", "no path of this machine"
    assert workload.card.token_lengths is not None
    assert workload.card.token_lengths.tokenizer == "target"
    printed = capsys.readouterr().out
    assert "read 6, kept 5" in printed
    assert "line 6: not JSON" in printed
    assert "dropped temperature: 0.7 x 5" in printed
    assert names(tmp_path) == {"requests.jsonl", "mine.jsonl", "mine.card.json"}


def test_import_sharegpt_and_text_folder_give_loadable_workloads(tmp_path: Path) -> None:
    talk = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
    (tmp_path / "talks.json").write_text(json.dumps([talk]))
    folder = tmp_path / "texts"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a.py").write_text("def f():\n    pass\n")
    (folder / "b.txt").write_text("hello\n")
    (folder / "c.bin").write_bytes(b"\xff\x00")
    (folder / ".hidden").write_text("secret")
    (folder / "link.txt").symlink_to(tmp_path / "talks.json")

    run("import", tmp_path / "talks.json", "--format", "sharegpt", "--out", tmp_path / "t.jsonl")
    run("import", folder, "--format", "text", "--out", tmp_path / "f.jsonl", "--max-chars", 12)

    assert [p.text for p in load_workload(tmp_path / "t.jsonl").prompts] == ["a"]
    texts = {p.prompt_id: p.text for p in load_workload(tmp_path / "f.jsonl").prompts}
    assert texts == {"b.txt": "hello", "sub/a.py": "def f():"}


def test_import_limit_takes_a_seeded_sample(tmp_path: Path, log: Path) -> None:
    def sample(seed: int) -> list[str]:
        out = tmp_path / f"s{seed}.jsonl"
        run(
            *("import", log, "--format", "openai-log", "--out", out),
            *("--limit", 2, "--seed", seed, "--force"),
        )
        return [prompt.text for prompt in load_workload(out).prompts]

    assert len(sample(1)) == 2
    assert sample(1) == sample(1)
    assert len({tuple(sample(seed)) for seed in range(6)}) > 1


@pytest.mark.parametrize("existing", ["mine.jsonl", "mine.card.json"])
def test_import_never_overwrites_unless_forced(tmp_path: Path, log: Path, existing: str) -> None:
    (tmp_path / existing).write_text("precious")
    arguments = ("import", log, "--format", "openai-log", "--out", tmp_path / "mine.jsonl")

    with pytest.raises(ConfigError, match=f"{existing} exists.*--force"):
        run(*arguments)
    assert (tmp_path / existing).read_text() == "precious"

    run(*arguments, "--force")
    assert len(load_workload(tmp_path / "mine.jsonl").prompts) == 5


def test_import_of_nothing_usable_writes_nothing_and_names_the_lines(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"x": 1}\n{oops\n')

    with pytest.raises(
        ConfigError, match=r"nothing in .*line 1: no request body.*line 2: not JSON"
    ):
        run("import", log, "--format", "openai-log", "--out", tmp_path / "mine.jsonl")

    assert names(tmp_path) == {"log.jsonl"}


@pytest.mark.parametrize(
    ("source", "format_name", "out", "problem"),
    [
        ("missing", "openai-log", "o.jsonl", "cannot be read"),
        ("missing", "sharegpt", "o.jsonl", "cannot be read"),
        ("missing", "text", "o.jsonl", "is no folder"),
        ("requests.jsonl", "text", "o.jsonl", "is no folder"),
        (".", "openai-log", "o.jsonl", "cannot be read"),
        ("requests.jsonl", "openai-log", "o.json", "does not end in .jsonl"),
        ("requests.jsonl", "openai-log", "no/o.jsonl", "there is no folder"),
    ],
)
@pytest.mark.usefixtures("log")
def test_import_with_a_wrong_path_is_a_config_error(
    tmp_path: Path, source: str, format_name: str, out: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        run("import", tmp_path / source, "--format", format_name, "--out", tmp_path / out)


@pytest.mark.parametrize("value", ["0", "-1", "x"])
def test_import_limit_that_is_no_count_is_a_usage_error(log: Path, value: str) -> None:
    with pytest.raises(SystemExit) as caught:
        run("import", log, "--format", "openai-log", "--out", "o.jsonl", f"--limit={value}")

    assert caught.value.code == 2


def test_card_of_a_bare_file_leaves_written_fields_open(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text('{"category": "sql", "prompt": "SELECT"}\n')

    run("card", path)

    card = load_workload(path).card
    assert card is not None
    assert (card.name, card.license, card.kind) == ("w", "not stated", "text")
    assert card.token_lengths is None


def test_card_after_an_edit_accepts_it_and_keeps_what_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text('{"prompt": "x"}\n')
    run("card", path, "--tokenizer", TARGET)
    card = json.loads(card_path(path).read_text())
    card_path(path).write_text(json.dumps({**card, "license": "CC0-1.0"}))
    path.write_text('{"prompt": "y"}\n{"prompt": "z"}\n')
    with pytest.raises(ConfigError, match="says digest"):
        load_workload(path)

    run("card", path)

    fresh = load_workload(path).card
    assert fresh is not None
    assert (fresh.license, fresh.num_prompts, fresh.token_lengths) == ("CC0-1.0", 2, None)
    assert "2 prompts" in capsys.readouterr().out


def test_show_prints_counts_digest_lengths_and_the_card(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text('{"category": "a", "prompt": "one"}\n{"prompt": "three"}\n')

    run("show", path, "--tokenizer", TARGET)

    printed = capsys.readouterr().out
    assert load_workload(path).digest in printed
    assert "(none) 1, a 1" in printed
    assert "min 3, median 5, max 5" in printed
    assert "without the chat template" in printed
    assert "card        none" in printed
    assert names(tmp_path) == {"w.jsonl"}


def test_show_of_random_tokens_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text('{"prompt": "x"}\n')
    run("card", path)
    card = json.loads(card_path(path).read_text())
    card_path(path).write_text(json.dumps({**card, "kind": "random_tokens"}))

    run("show", path)

    assert "WARNING" in capsys.readouterr().out


def test_card_that_is_written_while_it_exists_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text('{"prompt": "x"}\n')

    run("card", path)
    run("card", path)

    assert read_card(card_path(path)) is not None
    assert names(tmp_path) == {"w.jsonl", "w.card.json"}, "no scratch file stays"


def test_tokenizer_counts_tokens_without_special_ones() -> None:
    tokenizer = FolderTokenizer(TARGET, "--tokenizer")

    counts = tokenizer.counts(["", "x", "def f():\n    return 1\n" * 400])

    assert tokenizer.name == "target"
    assert counts[:2] == [0, 1]
    assert counts[2] > 2000, "not cut at the model's context"


@pytest.mark.parametrize("content", [None, "{}", "no json"])
def test_tokenizer_folder_without_a_usable_file_is_a_config_error(
    tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)

    with pytest.raises(ConfigError, match=r"tokenizer"):
        FolderTokenizer(tmp_path, "--tokenizer")


@pytest.mark.parametrize("action", ["card", "show"])
def test_file_that_is_missing_is_reported_under_the_command(tmp_path: Path, action: str) -> None:
    with pytest.raises(ConfigError, match=f"^workload {action}: .*none.jsonl cannot be read"):
        run(action, tmp_path / "none.jsonl")


@pytest.mark.parametrize("count", ["0", "-1", "many", "1.5"])
def test_import_count_that_is_none_is_refused_in_words(
    tmp_path: Path, count: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run("import", tmp_path, "--format", "text", "--out", tmp_path / "o.jsonl", "--limit", count)

    assert f"argument --limit: '{count}' is no whole number from 1" in capsys.readouterr().err


def test_import_over_its_own_source_is_refused_even_by_force(tmp_path: Path, log: Path) -> None:
    before = log.read_bytes()
    link = tmp_path / "link.jsonl"
    link.symlink_to(log)
    for out in (log, link, tmp_path / "." / log.name):
        with pytest.raises(ConfigError, match="what is imported"):
            run("import", log, "--format", "openai-log", "--out", out, "--force")
    assert log.read_bytes() == before


def test_import_over_a_file_of_its_source_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("one text")
    with pytest.raises(ConfigError, match="what is imported"):
        run("import", tmp_path, "--format", "text", "--out", tmp_path / "a.jsonl", "--force")
    assert (tmp_path / "a.jsonl").read_text() == "one text"


def test_import_of_a_file_named_in_no_utf8_can_be_read_back(tmp_path: Path) -> None:
    folder = tmp_path / "\udcfftexts"
    folder.mkdir()
    (folder / "a\udcff.txt").write_text("some words of it")
    out = tmp_path / "out.jsonl"

    assert run("import", folder, "--format", "text", "--out", out) == 0

    workload = load_workload(out)
    assert workload.prompts[0].prompt_id == "a\\udcff.txt"
    assert workload.card is not None
    assert workload.card.source == "\\udcfftexts"


@pytest.mark.parametrize("place", ["/proc", "/sys"])
def test_import_to_where_nothing_can_be_written_is_one_line(log: Path, place: str) -> None:
    out = Path(place) / "specpilot-test.jsonl"
    with pytest.raises(ConfigError, match="cannot be written"):
        run("import", log, "--format", "openai-log", "--out", out)


def test_import_to_a_folder_is_refused(tmp_path: Path, log: Path) -> None:
    out = tmp_path / "folder.jsonl"
    out.mkdir()
    with pytest.raises(ConfigError, match="is no file"):
        run("import", log, "--format", "openai-log", "--out", out, "--force")


def test_import_without_room_leaves_nothing_and_what_was_there(tmp_path: Path, log: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert run("import", log, "--format", "openai-log", "--out", out) == 0
    before = (out.read_bytes(), card_path(out).read_bytes(), names(tmp_path))
    # The card fits, the prompts do not: nothing of either may change.
    (_, most) = resource.getrlimit(resource.RLIMIT_FSIZE)
    log.write_text(json.dumps({"prompt": "word " * 5000}) + "\n")
    kept = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, most))
    try:
        with pytest.raises(ConfigError, match="cannot be written"):
            run("import", log, "--format", "openai-log", "--out", out, "--force")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        signal.signal(signal.SIGXFSZ, kept)
    assert (out.read_bytes(), card_path(out).read_bytes(), names(tmp_path)) == before
