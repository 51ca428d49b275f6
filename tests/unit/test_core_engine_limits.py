from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import cli, commands
from orchestrator.config import CONF_DIR, load_config
from orchestrator.core.engine_limits import prompts_beyond, require_room, stated_count
from orchestrator.errors import ConfigError
from orchestrator.prepare_prompts import load_prompts, too_long

TARGET = CONF_DIR.parent / "infra" / "tiny_models" / "target"
DEMO = str(CONF_DIR / "study" / "demo.yaml")


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (8192, 8192), ("8192", 8192), ("8k", 8000), ("8K", 8192), ("1.5k", 1500), ("1M", 2**20),
        ("auto", None), (-1, None), (0, None), (True, None), (None, None), (2.5, None), ("", None),
        ("9" * 400, None), ([8], None),
    ],
)  # fmt: skip
def test_count_is_read_as_the_engine_reads_it(value: object, count: int | None) -> None:
    assert stated_count({"max_model_len": value}, "max_model_len") == count
    assert stated_count({}, "max_model_len") is None


@given(most=st.integers(1, 64), streams=st.lists(st.integers(1, 64), max_size=4))
def test_streams_have_room_up_to_the_engines_own_limit(most: int, streams: list[int]) -> None:
    if max(streams, default=0) <= most:
        require_room({"max_num_seqs": most}, streams=streams, answers={})
        return
    with pytest.raises(ConfigError, match=rf"load.streams: \d+ is above .*max_num_seqs={most},"):
        require_room({"max_num_seqs": most}, streams=streams, answers={})


@given(limit=st.integers(1, 4096), tokens=st.integers(1, 4096))
def test_answer_leaves_room_for_a_prompt(limit: int, tokens: int) -> None:
    args, answers = {"max_model_len": limit}, {"load.max_tokens": tokens}
    if tokens < limit:
        require_room(args, streams=(), answers=answers)
        return
    with pytest.raises(ConfigError, match=rf"load.max_tokens: {tokens} leaves no room"):
        require_room(args, streams=(), answers=answers)


def test_prompts_are_counted_that_do_not_fit_with_their_answer() -> None:
    assert prompts_beyond({"max_model_len": 100}, [10, 50, 51, 100], 50) == 2
    assert prompts_beyond({"max_model_len": "auto"}, [10**9], 50) == 0


@pytest.mark.parametrize("command", ["plan", "study"])
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["engine.args.max_num_seqs=1", "load.streams=[2]"], ("load.streams: 2", "max_num_seqs=1")),
        (["load.max_tokens=1024"], ("load.max_tokens: 1024", "max_model_len=1024")),
        (["load.warmup_max_tokens=4000"], ("load.warmup_max_tokens: 4000",)),
        (["proof.answer_tokens=1024"], ("proof.answer_tokens: 1024",)),
        (["engine.args.max_model_len=1k"], ()),
    ],
)
def test_load_that_the_engine_cannot_run_is_refused_before_any_boot(
    command: str,
    settings: list[str],
    words: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def begun(*_asked: object, **_options: object) -> int:
        return 77

    monkeypatch.setattr(commands, command, begun)

    status = cli.main([command, DEMO, *settings])

    said = capsys.readouterr().err
    assert status == (2 if words else 77)
    assert all(word in said for word in words)
    assert len(said.splitlines()) == bool(words)


WORDS = [" ".join(["word"] * number) for number in (1, 2, 3, 4, 5, 6, 7, 8, 9, 99)]


@pytest.mark.parametrize(
    ("limit", "num_beyond"), [("60", 10), ("120", 1), ("auto", 0), ("20000", 0)]
)
def test_prompts_that_the_engine_cannot_take_are_counted_by_the_targets_tokenizer(
    limit: str, num_beyond: int, tmp_path: Path
) -> None:
    workload = tmp_path / "words.jsonl"
    workload.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in WORDS))
    settings = [
        f"engine.args.max_model_len={limit}", "load.max_tokens=59", f"load.workload={workload}",
        "proof.answer_tokens=1",
    ]  # fmt: skip
    config = load_config(Path(DEMO), settings)
    prompts = load_prompts(config)

    if num_beyond > 1:
        with pytest.raises(ConfigError, match=rf"{num_beyond} of 10 prompts of 'words' are beyond"):
            too_long(config, TARGET, prompts)
        return
    notes = too_long(config, TARGET, prompts)
    assert len(notes) == num_beyond
    assert all("1 of 10 prompts" in note and "only the others" in note for note in notes)
    assert too_long(config, tmp_path, prompts) == [], "no tokenizer is here"
