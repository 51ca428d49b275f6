"""The text test on the real engine: without speculation, and one that speculates beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from cpu_engine import MAX_MODEL_LEN, NEEDS_ENGINE, ROOT, Engine
from lossless_contract import LosslessContract, ask

from orchestrator.load.scoring import TokenServer
from orchestrator.load.workload import Workload, load_workload

pytestmark = NEEDS_ENGINE
PROMPTS = ROOT / "infra" / "tiny_models" / "heldout_prompts.jsonl"


class TestRealEngine(LosslessContract):
    @pytest.fixture
    def server(self, control_engine: Engine) -> TokenServer:
        return TokenServer(base_url=control_engine.url, model="tiny", name="the arm")

    @pytest.fixture
    def workload(self) -> Workload:
        return load_workload(PROMPTS)

    def test_server_says_its_context(self, server: TokenServer) -> None:
        assert ask(server, lambda client: client.max_model_len()) == MAX_MODEL_LEN


def lossless(arm: Engine, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "orchestrator", "lossless", "--url", arm.url),
            *("--workload", str(PROMPTS), "--max-tokens", "64", "--json", "--seed", "3"),
            *arguments,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, record


def test_command_tests_an_arm_that_speculates_beside_its_control(
    control_engine: Engine, speculating_engine: Engine
) -> None:
    """Few tokens: what is shown is that speculated tokens are sampled, scored and judged."""
    accepted = "vllm:spec_decode_num_accepted_tokens_total"
    before = speculating_engine.counter(accepted)
    status, record = lossless(
        speculating_engine, "--control-url", control_engine.url, "--tokens", "500",
        "--concurrency", "4", "--control-samples", "500",
    )  # fmt: skip

    outcome = record["outcome"]
    assert (status, outcome["result"]["kind"]) == (3, "cannot_tell")
    assert speculating_engine.counter(accepted) - before > 50
    assert outcome["result"]["num_tokens"] >= 500
    assert outcome["control"]["floor"] < 1e-3
    assert outcome["refused"] == {}
    assert outcome["remarks"] == []
    assert record["arm"]["builds"][0].startswith("vllm-0.32.0")
