"""Scored tasks through the real harness, in its child process, on the fake server."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from canary_scene import Capture, canary, scholar, server_at

from orchestrator.canaries.scored import TASKS_DIR, ScoreSettings, find_task, score_tasks
from orchestrator.fakes.openai import Behaviour, Script, failure

NUM_ITEMS = 24
ANSWERS = {
    item["question"]: item["answer"]
    for line in (TASKS_DIR / "arithmetic.jsonl").read_text(encoding="utf-8").splitlines()
    for item in [json.loads(line)]
}

FIVE_STOPS = """\
task: five_stops
dataset_path: json
dataset_kwargs:
  data_files:
    test: items.jsonl
test_split: test
output_type: generate_until
num_fewshot: 0
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs:
  until: ["a", "b", "c", "d", "e"]
  max_gen_toks: 8
  temperature: 0.0
metric_list:
  - metric: exact_match
"""


def calculator(*, wrong_every: int = 0) -> Behaviour:
    """Return a model that can calculate, with a wrong answer to one question in so many."""

    def answer(_number: int, body: Mapping[str, Any]) -> Script:
        question = body["prompt"].rpartition("Question: ")[2].removesuffix("\nAnswer:")
        is_wrong = wrong_every and [*ANSWERS].index(question) % wrong_every == 0
        text = " no idea" if is_wrong else f" {ANSWERS[question]}"
        item = {"choices": [{"index": 0, "text": text, "finish_reason": "stop"}]}
        return Script(parts=(json.dumps(item).encode(),), content_type="application/json")

    return answer


def test_command_with_tasks_compares_scores(capsys: Capture) -> None:
    arguments = ("--tasks", "arithmetic", "--items", str(NUM_ITEMS), "--canaries", "chat")
    with (
        scholar(behaviour=calculator(wrong_every=2)) as arm,
        scholar(behaviour=calculator()) as control,
    ):
        status, record = canary(capsys, arm.url, control.url, *arguments)

        asked = [body for body in arm.bodies if "prompt" in body]
        assert len(asked) == NUM_ITEMS
        assert {(b["max_tokens"], b["temperature"]) for b in asked} == {(48, 0.0)}
        prompts = [[b["prompt"] for b in s.bodies if "prompt" in b] for s in (arm, control)]
        assert sorted(prompts[0]) == sorted(prompts[1])
    (task,) = record["tasks"]
    assert (task["arm"]["hits"], task["control"]["hits"]) == (NUM_ITEMS // 2, NUM_ITEMS)
    assert task["arm"]["num_unparsed"] == NUM_ITEMS // 2
    assert task["answer"] == "worse"
    assert (status, record["gate"]["passed"]) == (1, False)
    assert "lm_eval" not in sys.modules


def test_task_whose_settings_the_harness_does_not_send_has_no_score(tmp_path: Path) -> None:
    (tmp_path / "items.jsonl").write_text('{"question": "1 + 1 =", "answer": "2"}\n')
    (tmp_path / "five_stops.yaml").write_text(FIVE_STOPS)
    said = {"choices": [{"index": 0, "message": {"content": "2"}, "finish_reason": "stop"}]}
    told = Script(parts=(json.dumps(said).encode(),), content_type="application/json")
    task = find_task(str(tmp_path / "five_stops.yaml"))

    with scholar(behaviour=lambda _number, _body: told) as server:
        (score,) = score_tasks(server_at(server), [task], ScoreSettings(endpoint="chat"))

    assert score.rate is None
    assert score.refused == "requests did not carry the stop 'e'"


def test_task_with_filters_and_functions_of_its_own_has_a_score(tmp_path: Path) -> None:
    """A filter is named by the key ``function`` and is none; judging beside the task is."""
    (tmp_path / "items.jsonl").write_text('{"question": "1 + 1 =", "answer": "2"}\n')
    (tmp_path / "judge.py").write_text(
        "def mark(doc, results):\n    return {'hit': int(doc['answer'] == results[0])}\n"
    )
    (tmp_path / "own.yaml").write_text(
        FIVE_STOPS.replace("five_stops", "own")
        .replace('["a", "b", "c", "d", "e"]', '["a"]')
        .replace('"{{question}}"', "\"{{question | regex_replace('1', '1')}}\"")
        .replace("exact_match", "hit\n    aggregation: mean\n    higher_is_better: true")
        + "process_results: !function judge.mark\n"
        "filter_list:\n  - name: first\n    filter:\n      - function: take_first\n"
    )
    item = {"choices": [{"index": 0, "text": "2", "finish_reason": "stop"}]}
    told = Script(parts=(json.dumps(item).encode(),), content_type="application/json")
    with scholar(behaviour=lambda _number, _body: told) as server:
        (score,) = score_tasks(server_at(server), [tmp_path / "own.yaml"])

    assert (score.refused, score.hits, score.total) == (None, 1, 1)


def test_task_on_a_server_that_refuses_has_no_score_and_no_key_in_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-somebody-elses-key")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    refuses = failure(400, "no completions here")
    with scholar(behaviour=lambda _number, _body: refuses) as fake:
        server = server_at(fake, api_key="sk-planted-0123456789")
        (score,) = score_tasks(server, [find_task("arithmetic")], ScoreSettings(limit=1))

        sent = {head["Authorization"] for head in fake.headers}
    assert sent == {"Bearer sk-planted-0123456789"}
    assert score.rate is None
    assert score.refused is not None
    assert "400" in score.refused
    assert "no completions here" in score.refused
    assert "planted" not in score.refused


def test_key_that_an_error_is_cut_in_is_not_shown_in_part() -> None:
    key = "sk-planted-" + "0123456789" * 4
    refuses = failure(400, "x" * 470 + key + "y" * 500)
    with scholar(behaviour=lambda _number, _body: refuses) as fake:
        server = server_at(fake, api_key=key)
        (score,) = score_tasks(server, [find_task("arithmetic")], ScoreSettings(limit=1))

    assert score.refused is not None
    assert "xxx" in score.refused
    assert "planted" not in score.refused


RUNS_CODE = {
    "template": FIVE_STOPS.replace(
        '"{{question}}"', "\"{{ cycler.__init__.__globals__.os.system('touch MADE') }}\""
    ),
    "module": FIVE_STOPS.replace('"{{question}}"', "!function subprocess.getoutput"),
    "absolute": FIVE_STOPS.replace('"{{question}}"', "!function MADE-other/code.run"),
    "list": FIVE_STOPS + "  - !function subprocess.getoutput\n",
    "include": "include: base.yaml\n" + FIVE_STOPS.replace('doc_to_text: "{{question}}"\n', ""),
    "tag": FIVE_STOPS.replace(
        '"{{question}}"', "!!python/object/apply:os.system ['touch MADE']"
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", RUNS_CODE)
def test_task_file_cannot_run_code(way: str, tmp_path: Path) -> None:
    made, other = tmp_path / "made", tmp_path / "made-other"
    other.mkdir()
    (other / "code.py").write_text(f"open({str(made)!r}, 'w')\n")
    task = tmp_path / "five_stops.yaml"
    task.write_text(RUNS_CODE[way].replace("MADE", str(made)))
    (tmp_path / "base.yaml").write_text("doc_to_text: !function subprocess.getoutput\n")
    items = [{f"touch {made}": "", "question": "Is it?", "answer": "yes"}]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))

    with scholar(behaviour=calculator()) as server:
        (score,) = score_tasks(server_at(server), [task])

    assert score.refused
    assert not made.exists()
