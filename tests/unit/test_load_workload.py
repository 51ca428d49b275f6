from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ConfigError
from orchestrator.load.workload import Prompt, Workload, draw, load_workload

CHAT = Path(__file__).resolve().parents[2] / "conf" / "workload" / "chat.jsonl"


def workload_of(num_prompts: int) -> Workload:
    prompts = tuple(
        Prompt(prompt_id=f"p{i}", category="c", text=f"prompt {i}") for i in range(num_prompts)
    )
    return Workload(name="w", digest="d", prompts=prompts)


def write(folder: Path, *lines: str) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_load_workload_keeps_ids_categories_and_order(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '{"id": "a", "category": "code", "prompt": "def f():"}',
        "",
        '{"prompt": "two\\nlines"}',
    )

    workload = load_workload(path)

    assert workload.name == "prompts"
    assert [p.prompt_id for p in workload.prompts] == ["a", "3"]
    assert [p.text for p in workload.prompts] == ["def f():", "two\nlines"]
    assert workload.prompts[0].category == "code"


def test_load_workload_digest_follows_the_prompts_not_the_formatting(tmp_path: Path) -> None:
    first = load_workload(write(tmp_path, '{"id":"a","prompt":"x"}')).digest
    spaced = load_workload(write(tmp_path, '{ "prompt": "x", "id": "a" }', "")).digest
    changed = load_workload(write(tmp_path, '{"id":"a","prompt":"y"}')).digest

    assert first == spaced
    assert first != changed


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ((), "holds no prompt"),
        (("", "  "), "holds no prompt"),
        (('{"prompt": "x"}', "{oops"), "line 2 is not JSON"),
        (('{"prompt": "x"}', '"text"'), "line 2 has no prompt"),
        (('{"id": "a"}',), "line 1 has no prompt"),
        (('{"prompt": "  "}',), "line 1 has no prompt"),
        (('{"prompt": 7}',), "line 1 has no prompt"),
        (('{"id": "a", "prompt": "x"}', '{"id": "a", "prompt": "y"}'), "the id 'a' twice"),
    ],
)
def test_load_workload_bad_file_names_key_and_line(
    tmp_path: Path, lines: tuple[str, ...], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        load_workload(write(tmp_path, *lines))

    assert caught.value.where == "load.workload"


def test_load_workload_missing_or_binary_file_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")

    for name in ("missing.jsonl", "binary.jsonl", "."):
        with pytest.raises(ConfigError, match="cannot be read"):
            load_workload(tmp_path / name)


def test_shipped_chat_workload_loads_with_sixteen_prompts() -> None:
    assert len(load_workload(CHAT).prompts) == 16


def test_draw_same_arguments_give_the_same_prompt_and_seed() -> None:
    workload = workload_of(8)

    draws = [
        draw(workload, seed=5, cell_key="c2_t1", streams=2, stream=1, turn=3) for _ in range(2)
    ]

    assert draws[0] == draws[1]


def test_draw_order_depends_on_the_seed_and_not_on_the_cell() -> None:
    workload = workload_of(32)

    def order(seed: int, cell_key: str) -> list[str]:
        return [
            draw(workload, seed=seed, cell_key=cell_key, streams=1, stream=0, turn=t).prompt_id
            for t in range(32)
        ]

    assert order(1, "c1_t1") == order(1, "c1_t0.7")
    assert order(1, "c1_t1") != order(2, "c1_t1")
    assert sorted(order(1, "c1_t1")) == sorted(p.prompt_id for p in workload.prompts)


@given(
    num_prompts=st.integers(1, 9),
    streams=st.integers(1, 5),
    turns=st.integers(1, 12),
    seeds=st.lists(st.integers(0, 2**31), min_size=1, max_size=3, unique=True),
)
def test_draw_never_repeats_a_text_or_a_seed_within_a_boot(
    num_prompts: int, streams: int, turns: int, seeds: list[int]
) -> None:
    workload = workload_of(num_prompts)

    draws = [
        draw(workload, seed=seed, cell_key=cell, streams=streams, stream=s, turn=t)
        for seed in seeds
        for cell in ("c1_t0.7", "c1_t1")
        for s in range(streams)
        for t in range(-2, turns)
    ]

    first_lines = {d.text.split("\n", 1)[0] for d in draws}
    assert len(first_lines) == len(draws)
    assert all(0 <= d.seed < 2**31 for d in draws)


def test_draw_salt_is_a_comment_line_before_the_whole_prompt() -> None:
    chosen = draw(workload_of(1), seed=1, cell_key="c1_t1", streams=1, stream=0, turn=0)

    salt, rest = chosen.text.split("\n", 1)
    assert salt.startswith("# ")
    assert int(salt.removeprefix("# "), 16) >= 0
    assert rest == "prompt 0"


def test_draw_uses_every_prompt_once_before_any_comes_again() -> None:
    workload = workload_of(6)

    ids = [
        draw(workload, seed=1, cell_key="c", streams=2, stream=s, turn=t).prompt_id
        for t in range(3)
        for s in range(2)
    ]

    assert len(set(ids)) == 6
    assert json.dumps(sorted(ids)) == json.dumps([f"p{i}" for i in range(6)])
