"""The card beside a workload."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ConfigError
from orchestrator.load.prompts import Prompt
from orchestrator.load.workload import load_workload
from orchestrator.load.workload_card import (
    Card,
    TokenLengths,
    card_path,
    card_text,
    new_card,
    read_card,
    renewed,
    token_lengths,
)

PROMPTS = (
    Prompt(prompt_id="a", category="sql", text="one"),
    Prompt(prompt_id="b", category="code", text="two"),
    Prompt(prompt_id="c", category="sql", text="three"),
)
LENGTHS = TokenLengths(tokenizer="t", p50=1, p95=2, max=3)


def card_of(**changes: object) -> Card:
    card = new_card("mine", PROMPTS, kind="text")
    return dataclasses.replace(card, **changes)  # type: ignore[arg-type]


def write(folder: Path, card: Card | None, prompts: tuple[Prompt, ...] = PROMPTS) -> Path:
    path = folder / "mine.jsonl"
    path.write_text(
        "".join(
            json.dumps({"id": p.prompt_id, "category": p.category, "prompt": p.text}) + "\n"
            for p in prompts
        )
    )
    if card is not None:
        card_path(path).write_text(card_text(card))
    return path


def test_card_path_lies_beside_the_file() -> None:
    assert card_path(Path("a/code.jsonl")) == Path("a/code.card.json")


def test_card_reads_back_as_it_was_written(tmp_path: Path) -> None:
    card = card_of(description="d", token_lengths=LENGTHS)
    path = tmp_path / "x.card.json"
    path.write_text(card_text(card))

    assert read_card(path) == card


def test_load_workload_without_a_card_has_none(tmp_path: Path) -> None:
    assert load_workload(write(tmp_path, None)).card is None


def test_load_workload_with_its_card_carries_it(tmp_path: Path) -> None:
    card = card_of(license="CC0-1.0")

    assert load_workload(write(tmp_path, card)).card == card


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"digest": "0" * 64}, "says digest"),
        ({"num_prompts": 4}, "says num_prompts 4"),
        ({"categories": {"sql": 3}}, "says categories"),
        ({"endpoint": "chat"}, "says endpoint 'chat'"),
    ],
)
def test_load_workload_with_the_card_of_other_prompts_says_what_to_do(
    tmp_path: Path, changes: dict[str, object], problem: str
) -> None:
    path = write(tmp_path, card_of(**changes))

    with pytest.raises(ConfigError, match=f"{problem}.*python -m orchestrator workload card"):
        load_workload(path)


def test_load_workload_after_an_edit_of_one_prompt_is_refused(tmp_path: Path) -> None:
    edited = (*PROMPTS[:2], dataclasses.replace(PROMPTS[2], text="three "))

    with pytest.raises(ConfigError, match="says digest"):
        load_workload(write(tmp_path, card_of(), edited))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "7",
        "null",
        "{}",
        json.dumps({**json.loads(card_text(card_of())), "extra": 1}),
        json.dumps({**json.loads(card_text(card_of())), "name": None}),
        json.dumps({**json.loads(card_text(card_of())), "kind": "words"}),
        json.dumps({**json.loads(card_text(card_of())), "token_lengths": 7}),
        json.dumps({**json.loads(card_text(card_of())), "token_lengths": {"p50": 1}}),
    ],
)
def test_load_workload_with_a_broken_card_names_it(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, None)
    card_path(path).write_text(text)

    with pytest.raises(ConfigError, match=r"mine\.card\.json is no card"):
        load_workload(path)


def test_read_card_that_is_no_text_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "x.card.json").write_bytes(b"\xff\xfe")

    with pytest.raises(ConfigError, match="cannot be read"):
        read_card(tmp_path / "x.card.json")


def test_renewed_keeps_what_was_written_and_counts_again() -> None:
    stale = card_of(description="d", source="s", digest="old", num_prompts=9, token_lengths=LENGTHS)

    fresh = renewed(stale, PROMPTS)

    assert (fresh.description, fresh.source) == ("d", "s")
    assert (fresh.digest, fresh.num_prompts) == (card_of().digest, 3)
    assert fresh.token_lengths is None, "they were counted in other prompts"


def test_renewed_keeps_token_lengths_of_the_same_prompts() -> None:
    assert renewed(card_of(token_lengths=LENGTHS), PROMPTS).token_lengths == LENGTHS


@given(counts=st.lists(st.integers(0, 10_000), min_size=1, max_size=50))
def test_token_lengths_are_lengths_that_occur_in_order(counts: list[int]) -> None:
    lengths = token_lengths(counts, tokenizer="t")

    assert {lengths.p50, lengths.p95, lengths.max} <= set(counts)
    assert lengths.p50 <= lengths.p95 <= lengths.max == max(counts)
