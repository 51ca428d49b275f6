"""The shipped tasks' items and scoring, and when a harness's score is refused."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.canaries.scored import (
    TASKS_DIR,
    find_task,
    read_score,
    settings_problem,
    shipped_tasks,
)
from orchestrator.canaries.tasks import scoring
from orchestrator.errors import ConfigError


def items(task: str) -> list[dict[str, Any]]:
    text = (TASKS_DIR / f"{task}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_shipped_tasks_have_50_to_100_items_that_differ() -> None:
    assert shipped_tasks() == ("arithmetic", "json_extract", "python_completion")
    for task in shipped_tasks():
        lines = [json.dumps(item, sort_keys=True) for item in items(task)]
        assert 50 <= len(lines) == len(set(lines)) <= 100


def test_arithmetic_answers_are_right() -> None:
    for item in items("arithmetic"):
        numbers = [int(text) for text in re.findall(r"\d+", item["question"])]
        assert int(item["answer"]) == _solve(item["question"], numbers), item


def _solve(question: str, numbers: list[int]) -> int:
    if " + " in question:
        return numbers[0] + numbers[1]
    if " - " in question:
        return numbers[0] - numbers[1]
    if "times" in question:
        return numbers[0] * numbers[1]
    if "divided" in question:
        return numbers[0] // numbers[1]
    if "boxes" in question:
        return numbers[0] * numbers[1] - numbers[2]
    return numbers[0] - numbers[1] * numbers[2]


def test_json_extract_targets_stand_in_their_texts() -> None:
    for item in items("json_extract"):
        target = json.loads(item["target"])
        assert list(target) == ["customer", "city", "item", "quantity"]
        assert all(str(value) in item["text"] for value in target.values())


def test_python_completion_choices_differ_and_the_right_one_stands_anywhere() -> None:
    golds = [item["gold"] for item in items("python_completion")]

    assert all(len(set(item["choices"])) == 4 for item in items("python_completion"))
    assert {golds.count(index) > 5 for index in range(4)} == {True}


@pytest.mark.parametrize(
    ("answer", "marks"),
    [
        (" 68", (1, 1)),
        (" 68.", (1, 1)),
        ("\n 68 nuts\nmore 5", (1, 1)),
        ("23 + 45 = 68", (1, 1)),
        ("68.0", (1, 1)),
        ("67", (0, 1)),
        ("168", (0, 1)),
        ("sixty-eight", (0, 0)),
        ("", (0, 0)),
    ],
)
def test_number_is_the_last_of_the_first_line(answer: str, marks: tuple[int, int]) -> None:
    found = scoring.number({"answer": "68"}, [answer])

    assert (found["hit"], found["parsed"]) == marks


@pytest.mark.parametrize(
    ("answer", "marks"),
    [
        (' {"a": 1, "b": "x"}', (1, 1)),
        ('{"b": "x", "a": 1}\nText: more', (1, 1)),
        ('```json\n{"a": 1, "b": "x"}\n```', (1, 1)),
        ('{"a": 1}', (0, 1)),
        ('{"a": "1", "b": "x"}', (0, 1)),
        ('{"a": 1, "b": "x", "c": 2}', (0, 1)),
        ('{"a": 1, "b": "x"', (0, 0)),
        ("a is 1", (0, 0)),
        ("", (0, 0)),
    ],
)
def test_json_object_counts_in_any_order(answer: str, marks: tuple[int, int]) -> None:
    found = scoring.json_object({"target": '{"a": 1, "b": "x"}'}, [answer])

    assert (found["hit"], found["parsed"]) == marks


def test_choice_without_likelihoods_is_not_parsed() -> None:
    assert scoring.choice({"gold": 1}, [(-3.0, False), (-1.0, True)]) == {"hit": 1, "parsed": 1}
    assert scoring.choice({"gold": 0}, [(-3.0, False), (-1.0, True)]) == {"hit": 0, "parsed": 1}
    assert scoring.choice({"gold": 0}, [(float("nan"), False), (-1.0, True)])["parsed"] == 0


def test_find_task_unknown_name_is_named() -> None:
    with pytest.raises(ConfigError, match="poetry"):
        find_task("poetry")


ASKED: dict[str, Any] = {
    "task": "sums",
    "output_type": "generate_until",
    "num_fewshot": 0,
    "doc_to_text": "{{question}}",
    "generation_kwargs": {"until": ["\n"], "max_gen_toks": 48, "temperature": 0.0},
    "process_results": {"function": "scoring.number"},
    "metric_list": [{"metric": "hit"}],
    "metadata": {"version": 1.0},
}
SENT: dict[str, Any] = {"max_tokens": 48, "temperature": 0.0, "stop": ["\n"], "seed": 1234}


def answer(hits: str = "1101", **changes: Any) -> dict[str, Any]:
    records = [
        {"id": i, "hit": int(h), "parsed": 1, "num_choices": 1, "answer": f"said {i}"}
        for i, h in enumerate(hits)
    ]
    given = {
        "asked": copy.deepcopy(ASKED),
        "reported": copy.deepcopy(ASKED) | {"process_results": "def number(...)", "repeats": 1},
        "sent": [dict(SENT)],
        "metric": "hit",
        "aggregate": sum(map(int, hits)) / len(hits) if hits else 0.0,
        "items": records,
        "version": "0.4.13",
    }
    return given | changes


def test_read_score_that_agrees_is_believed() -> None:
    score = read_score("sums", answer())

    assert (score.hits, score.total, score.refused, score.rate) == (3, 4, None, 0.75)
    assert score.items == (True, True, False, True)
    assert score.example == "said 2"
    assert score.settings == SENT


def with_generation(**kwargs: Any) -> dict[str, Any]:
    return ASKED | {"generation_kwargs": ASKED["generation_kwargs"] | kwargs}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"reported": ASKED | {"num_fewshot": 5}}, "num_fewshot"),
        ({"reported": with_generation(max_gen_toks=256)}, "generation_kwargs"),
        ({"reported": with_generation(until=["\n\n"])}, "generation_kwargs"),
        ({"reported": {k: v for k, v in ASKED.items() if k != "doc_to_text"}}, "doc_to_text"),
        ({"sent": [SENT | {"max_tokens": 256}]}, "max_tokens"),
        ({"sent": [SENT | {"temperature": 1.0}]}, "temperature"),
        ({"sent": [SENT | {"stop": []}]}, "stop"),
        ({"sent": [SENT | {"top_p": 0.9}]}, "top_p"),
        ({"sent": [SENT, SENT | {"max_tokens": 256}]}, "2 sets"),
        ({"sent": []}, "0 sets"),
        ({"items": []}, "no item"),
        ({"aggregate": 0.5}, "the harness scores"),
    ],
)
def test_read_score_with_other_settings_than_asked_is_refused(
    changes: dict[str, Any], told: str
) -> None:
    score = read_score("sums", answer(**changes))

    assert score.refused is not None
    assert told in score.refused
    assert (score.rate, score.total) == (None, 0)


def test_read_score_of_shares_instead_of_hits_is_refused() -> None:
    given = answer()
    given["items"][0]["hit"] = 0.5

    assert "no hit or miss" in (read_score("sums", given).refused or "")


def test_read_score_of_choices_knows_what_guessing_hits() -> None:
    given = answer()
    for side in ("asked", "reported"):
        given[side] |= {"output_type": "multiple_choice"}
        del given[side]["generation_kwargs"]
    for item in given["items"]:
        item["num_choices"] = 4
    given["sent"] = [{"max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True}]

    score = read_score("sums", given)

    assert (score.refused, score.chance) == (None, 0.25)


def test_settings_problem_a_stop_of_the_models_own_is_no_other_setting() -> None:
    sent = SENT | {"stop": ["\n", "<|endoftext|>"]}

    assert settings_problem(ASKED, ASKED, [sent]) is None


@given(st.sampled_from(["max_gen_toks", "temperature"]), st.integers(0, 500))
def test_settings_problem_none_only_where_all_three_agree(key: str, value: int) -> None:
    asked = with_generation(**{key: value})
    is_same = asked["generation_kwargs"] == ASKED["generation_kwargs"]

    assert (settings_problem(asked, asked, [SENT]) is None) is is_same
    assert (settings_problem(asked, ASKED, [SENT]) is None) is is_same
