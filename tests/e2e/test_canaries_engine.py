"""Canaries and scored tasks on one boot of the real engine without speculation."""

import pytest
from cpu_engine import MAX_MODEL_LEN, NEEDS_ENGINE, TARGET, Engine

from orchestrator.canaries.run import NAMES, CanarySettings, run_canaries
from orchestrator.canaries.scored import ScoreSettings, find_task, score_tasks
from orchestrator.canaries.served import ask_served
from orchestrator.canaries.wire import Server
from orchestrator.core.proportions import wilson_interval
from orchestrator.core.quality import (
    CanaryFault,
    TaskAnswer,
    canaries_gate,
    compare_canary,
    compare_task,
)

pytestmark = NEEDS_ENGINE


@pytest.fixture
def server(control_engine: Engine) -> Server:
    return Server(base=control_engine.url, model="tiny")


def test_canaries_small_model_without_parsers_fails_them_and_says_nothing(server: Server) -> None:
    results = run_canaries(server, CanarySettings(max_tokens=48))
    found = {result.name: result for result in results}

    assert tuple(found) == NAMES
    for name in ("tool_call", "tool_call_stream", "image"):
        assert found[name].fault is CanaryFault.UNSUPPORTED, found[name]
        assert "HTTP 400" in found[name].reason
    assert f"of {MAX_MODEL_LEN:,}" in found["long_context"].reason
    assert all(result.passed is False for result in results)
    compared = [compare_canary(result, result) for result in results]
    assert {item.passed for item in compared} == {None}
    assert canaries_gate(compared).passed is None


def test_canaries_engine_says_its_limit(server: Server) -> None:
    assert ask_served(server).max_model_len == MAX_MODEL_LEN


def test_scored_tasks_tell_what_the_small_model_knows_from_what_it_does_not(
    server: Server,
) -> None:
    settings = ScoreSettings(tokenizer=TARGET, limit=40, max_model_len=MAX_MODEL_LEN)
    tasks = [find_task("python_completion"), find_task("json_extract")]

    python, extract = score_tasks(server, tasks, settings)

    assert (python.refused, extract.refused) == (None, None)
    interval = wilson_interval(python.hits, python.total, confidence=0.99)
    assert interval is not None
    assert interval[0] > python.chance == 0.25, "it was trained on such code"
    assert compare_task(python, python).answer is TaskAnswer.CANNOT_TELL, "40 items are few"
    plumbing = compare_task(extract, extract)
    assert plumbing.answer is TaskAnswer.PLUMBING, "it writes no JSON"
    assert canaries_gate([], [plumbing]).passed is None
