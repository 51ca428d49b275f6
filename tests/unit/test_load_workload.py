from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ConfigError
from orchestrator.load.workload import (
    Draw,
    Prompt,
    Workload,
    draw,
    find_workload,
    load_workload,
)

CONF = Path(__file__).resolve().parents[2] / "conf"


def workload_of(num_prompts: int) -> Workload:
    prompts = tuple(
        Prompt(prompt_id=f"p{i}", category="c", text=f"prompt {i}") for i in range(num_prompts)
    )
    return Workload(name="w", digest="d", prompts=prompts)


def chats_of(num_prompts: int) -> Workload:
    """Return chats, every second one with content in parts."""
    prompts = tuple(
        Prompt(
            prompt_id=f"p{i}",
            category="c",
            text="",
            messages=(
                {"role": "system", "content": f"s{i}"}
                if i % 2
                else {"role": "user", "content": [{"type": "text", "text": f"u{i}"}]},
                {"role": "user", "content": "go on"},
            ),
            extra={"tool_choice": "none"},
        )
        for i in range(num_prompts)
    )
    return Workload(name="w", digest="d", prompts=prompts)


def first_text(chosen: Draw) -> str:
    """Return what the server sees first."""
    if not chosen.messages:
        return chosen.text
    content = chosen.messages[0]["content"]
    return content[0]["text"] if isinstance(content, list) else str(content)


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


@pytest.mark.parametrize("make", [workload_of, chats_of])
@given(
    num_prompts=st.integers(1, 9),
    streams=st.integers(1, 5),
    turns=st.integers(1, 12),
    seeds=st.lists(st.integers(0, 2**31), min_size=1, max_size=3, unique=True),
)
def test_draw_never_repeats_a_text_or_a_seed_within_a_boot(
    make: Callable[[int], Workload], num_prompts: int, streams: int, turns: int, seeds: list[int]
) -> None:
    draws = [
        draw(workload, seed=seed, cell_key=cell, streams=streams, stream=s, turn=t)
        for workload in (make(num_prompts),)
        for seed in seeds
        for cell in ("c1_t0.7", "c1_t1")
        for s in range(streams)
        for t in range(-2, turns)
    ]

    first_lines = {first_text(d).split("\n", 1)[0] for d in draws}
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


@pytest.mark.parametrize("make", [workload_of, chats_of])
@given(
    num_prompts=st.integers(1, 9),
    seed=st.integers(0, 2**31),
    streams=st.integers(1, 4),
    turn=st.integers(-3, 9),
)
def test_draw_without_salt_differs_by_the_salt_line_only(
    make: Callable[[int], Workload], num_prompts: int, seed: int, streams: int, turn: int
) -> None:
    def chosen(salt: bool) -> Draw:
        return draw(
            make(num_prompts),
            seed=seed,
            cell_key="c",
            streams=streams,
            stream=streams - 1,
            turn=turn,
            salt=salt,
        )

    bare, salted = chosen(salt=False), chosen(salt=True)

    prompt = next(p for p in make(num_prompts).prompts if p.prompt_id == bare.prompt_id)
    assert (bare.text, bare.messages, bare.extra) == (prompt.text, prompt.messages, prompt.extra)
    assert (salted.prompt_id, salted.seed) == (bare.prompt_id, bare.seed)
    assert salted.messages[1:] == bare.messages[1:]
    line = first_text(salted).split("\n", 1)[0]
    assert line.startswith("# ")
    assert first_text(salted).removeprefix(f"{line}\n") in (first_text(bare), "")


def test_draw_salts_parts_in_front_and_leaves_the_workload_alone() -> None:
    workload = chats_of(1)

    chosen = draw(workload, seed=1, cell_key="c", streams=1, stream=0, turn=0)

    content = chosen.messages[0]["content"]
    assert isinstance(content, list)
    assert content[0]["text"].startswith("# ")
    assert content[0]["text"].endswith("\n")
    assert content[1:] == [{"type": "text", "text": "u0"}]
    assert workload == chats_of(1)


@given(seed=st.integers(0, 2**31), streams=st.integers(1, 6), turns=st.integers(1, 8))
def test_draw_gives_all_arms_the_same_requests(seed: int, streams: int, turns: int) -> None:
    def requests() -> list[Draw]:
        # Every arm reads the file for itself.
        return [
            draw(chats_of(5), seed=seed, cell_key="c", streams=streams, stream=s, turn=t)
            for t in range(turns)
            for s in range(streams)
        ]

    assert requests() == requests()


def test_draw_has_another_order_in_each_pass() -> None:
    workload = workload_of(16)
    passes = [
        [
            draw(workload, seed=1, cell_key="c", streams=1, stream=0, turn=t).prompt_id
            for t in range(16 * lap, 16 * lap + 16)
        ]
        for lap in range(3)
    ]

    assert len({tuple(order) for order in passes}) == 3
    assert len({tuple(sorted(order)) for order in passes}) == 1


def test_load_workload_reports_its_mix_and_whether_it_needs_chat(tmp_path: Path) -> None:
    lines = [
        '{"id": "a", "category": "tools", "messages": [{"role": "user", "content": "hi"}]}',
        '{"id": "b", "category": "code", "prompt": "x"}',
        '{"id": "c", "category": "code", "prompt": "y"}',
        '{"id": "d", "prompt": "z"}',
    ]
    mixed = load_workload(write(tmp_path, *lines))
    plain = load_workload(write(tmp_path, *lines[1:]))

    assert mixed.mix == {"": 1, "code": 2, "tools": 1}
    assert mixed.needs_chat
    assert not plain.needs_chat


def test_load_workload_with_byte_order_mark_and_carriage_returns_loads(tmp_path: Path) -> None:
    plain = load_workload(write(tmp_path, '{"id":"a","prompt":"x"}', '{"id":"b","prompt":"y"}'))
    path = tmp_path / "windows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"id":"a","prompt":"x"}\r\n{"id":"b","prompt":"y"}\r\n')

    assert load_workload(path).digest == plain.digest


def test_find_workload_by_name_or_path_gives_the_file(tmp_path: Path) -> None:
    own = write(tmp_path, '{"prompt": "x"}')

    assert find_workload("code", CONF) == CONF / "workload" / "code.jsonl"
    assert find_workload(str(own), CONF) == own


@pytest.mark.parametrize("name", ["cod", "missing.jsonl", "folder/code"])
def test_find_workload_unknown_name_lists_those_there_are(name: str) -> None:
    with pytest.raises(ConfigError, match=r"chat, code, json.*tools") as caught:
        find_workload(name, CONF)

    assert name in str(caught.value)
