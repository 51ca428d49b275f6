"""The real engine under the contract of servers, and under the whole measurement."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from cpu_engine import MAX_MODEL_LEN, NEEDS_ENGINE, ROOT, Engine
from server_contract import ServerContract, ServerUnderTest

pytestmark = NEEDS_ENGINE


@pytest.fixture
def engine(speculating_engine: Engine) -> Engine:
    return speculating_engine


class TestRealEngine(ServerContract):
    @pytest.fixture
    def server(self, engine: Engine) -> ServerUnderTest:
        return ServerUnderTest(
            base_url=engine.url + "/v1",
            model="tiny",
            max_model_len=MAX_MODEL_LEN,
            read_metrics=lambda: engine.get("/metrics"),
        )


def measure(engine: Engine, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "orchestrator", "measure", "--url", engine.url + "/v1"),
            *("--workload", "infra/tiny_models/heldout_prompts.jsonl", "--max-tokens", "32"),
            *("--endpoint", "completions", "--temperature", "0.7", "--json", *arguments),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    record: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, record


def test_measure_of_the_real_engine_is_valid_and_adds_up(engine: Engine) -> None:
    status, record = measure(engine, "--concurrency", "2", "--duration", "6", "--requests")

    assert record["invalid"] == []
    assert (status, record["valid"]) == (0, True)
    audit = record["block"]["audit"]
    assert audit["engine_total"] == audit["client_total"]
    assert audit["client_total"] == sum(item["output_tokens"] for item in record["requests"])
    measured = record["measured"]
    assert 1.5 < measured["acceptance_length"] < 8
    by_steps = measured["acceptance_length"] * 2 / measured["step_time_s"]
    # Each answer's first token has no draft: 1 of 32.
    assert by_steps == pytest.approx(measured["output_throughput"], rel=0.15)
    assert 0 < measured["effective_concurrency"] <= 2
    assert record["block"]["chunk_gap_s"]["num_values"] > 10
    assert all(len(i["chunk_tokens"]) == len(i["chunk_times_s"]) for i in record["requests"])


def test_measure_of_more_streams_than_the_engine_runs_is_not_valid(engine: Engine) -> None:
    """F10: the engine runs four at a time."""
    status, record = measure(engine, "--concurrency", "8", "--duration", "4")

    assert (status, record["valid"]) == (1, False)
    assert "concurrency" in {item["kind"] for item in record["invalid"]}


def test_measure_of_answers_longer_than_the_context_is_truncated(engine: Engine) -> None:
    """The engine shortens what does not fit, without a word."""
    status, record = measure(engine, "--max-tokens", str(MAX_MODEL_LEN), "--duration", "2")

    assert (status, record["valid"]) == (1, False)
    assert "truncated" in {item["kind"] for item in record["invalid"]}
