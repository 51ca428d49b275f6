"""The workloads that ship."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from infra.workloads import long_context
from orchestrator.load.workload import load_workload
from orchestrator.load.workload_card import NOT_STATED

FOLDER = Path(__file__).resolve().parents[2] / "conf" / "workload"

LEAST = {"code": 64, "chat": 32, "json": 24, "reasoning": 24, "tools": 24, "long_context": 8}
"""Prompts at least, by workload."""


def test_all_shipped_workloads_are_looked_at() -> None:
    assert {path.stem for path in FOLDER.glob("*.jsonl")} == set(LEAST)


@pytest.mark.parametrize("name", LEAST)
def test_shipped_workload_loads_with_a_card_that_is_filled_in(name: str) -> None:
    workload = load_workload(FOLDER / f"{name}.jsonl")

    assert len(workload.prompts) >= LEAST[name]
    card = workload.card
    assert card is not None
    assert card.name == name
    assert (card.license, card.language, card.kind) == ("Apache-2.0", "en", "text")
    assert NOT_STATED not in (card.description, card.source)
    assert "" not in workload.mix
    assert (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").isascii()


@pytest.mark.parametrize("name", LEAST)
def test_shipped_workload_has_no_prompt_twice(name: str) -> None:
    texts = Counter(p.full_text for p in load_workload(FOLDER / f"{name}.jsonl").prompts)

    assert max(texts.values()) == 1


@pytest.mark.parametrize("name", LEAST)
def test_shipped_workload_needs_chat_only_for_tools(name: str) -> None:
    assert load_workload(FOLDER / f"{name}.jsonl").needs_chat == (name == "tools")


def test_code_workload_asks_many_kinds_of_things() -> None:
    mix = load_workload(FOLDER / "code.jsonl").mix

    kinds = {"complete", "explain", "refactor", "test", "debug", "translate", "sql", "shell"}
    assert kinds <= set(mix)
    assert min(mix[kind] for kind in kinds) >= 5


def test_tools_workload_sets_tool_choice_and_its_card_says_what_vllm_needs() -> None:
    workload = load_workload(FOLDER / "tools.jsonl")

    assert {str(p.extra["tool_choice"]) for p in workload.prompts} == {"auto"}
    assert workload.card is not None
    assert "--enable-auto-tool-choice" in workload.card.description


def test_tool_results_answer_a_call_of_their_chat() -> None:
    for prompt in load_workload(FOLDER / "tools.jsonl").prompts:
        calls = {
            call["id"]
            for message in prompt.messages
            if isinstance(made := message.get("tool_calls"), list)
            for call in made
        }
        answers = {m["tool_call_id"] for m in prompt.messages if m["role"] == "tool"}
        assert calls == answers, prompt.prompt_id


def test_long_context_file_is_small_enough_and_its_prompts_long_enough() -> None:
    path = FOLDER / "long_context.jsonl"

    assert path.stat().st_size < 600_000
    # About four characters a token.
    assert all(24_000 < len(p.text) < 90_000 for p in load_workload(path).prompts)


def test_long_context_asks_what_its_builder_asks() -> None:
    prompts = load_workload(FOLDER / "long_context.jsonl").prompts

    assert len(prompts) == len(long_context.TASKS)
    for prompt, task in zip(prompts, long_context.TASKS, strict=True):
        assert prompt.category == task.category
        assert prompt.text.endswith(task.question)
