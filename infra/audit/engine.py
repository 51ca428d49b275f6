"""One real engine on a CPU, of any build, with or without the audit, under load."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from infra.local.processes import end_group
from orchestrator.core.exposition import EngineCounters, parse_counters
from serve_apps.audit.plugin import AUDIT_DIR_VARIABLE
from serve_apps.cpu import environment
from serve_apps.engine.sockets import free_port

PROJECT = Path(__file__).resolve().parents[2]
MODELS = PROJECT / "infra" / "tiny_models"
BOOT_DEADLINE_S = 600.0
REQUEST_DEADLINE_S = 600.0
ANSWER_TOKENS = 160
"""Of one answer; the tiny models' context is 1,024."""

Rule = tuple[str, str]
"""Draft rule and rejection rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """An engine build and the interpreter that has it."""

    version: str
    python: Path

    @property
    def is_installed(self) -> bool:
        """Whether its environment exists here."""
        return self.python.exists()


def build(version: str) -> Build:
    """Return a build: the project's own, or one that `make engine` installed."""
    own = PROJECT / ".engines" / version / "bin" / "python"
    return Build(version=version, python=own if own.exists() else Path(sys.executable))


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A running engine."""

    port: int
    group: int
    """Its process group."""

    def counters(self) -> EngineCounters:
        """Return the engine's counters now."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as answer:
            return parse_counters(answer.read().decode())

    def complete(self, prompt: str, *, max_tokens: int, seed: int) -> None:
        """Send one completion at temperature 1 over the whole vocabulary and wait for its end."""
        body = {
            "model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "seed": seed,
            "temperature": 1.0, "ignore_eos": True,
        }  # fmt: skip
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=REQUEST_DEADLINE_S) as answer:
            answer.read()


def command(chosen: Build, rule: Rule | None, *, port: int, depth: int) -> list[str]:
    """Return the command line that serves the tiny target under a rule pair."""
    words = [
        str(chosen.python), "-m", "serve_apps.cpu.launch", "serve", str(MODELS / "target"),
        "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port),
        "--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "8",
        "--max-num-batched-tokens", "512", "--dtype", "float32", "--no-enable-prefix-caching",
        "--generation-config", "vllm", "--disable-uvicorn-access-log",
    ]  # fmt: skip
    if rule is not None:
        config = {
            "method": "dflash", "model": str(MODELS / "draft"), "num_speculative_tokens": depth,
            "draft_sample_method": rule[0], "rejection_sample_method": rule[1],
        }  # fmt: skip
        words += ["--speculative-config", json.dumps(config)]
    return words


@contextmanager
def booted(
    chosen: Build, rule: Rule | None, *, depth: int, log: Path, records: Path | None
) -> Iterator[Engine]:
    """Boot an engine and end its process group afterwards.

    Args:
        chosen: The build.
        rule: Draft and rejection rule; None without speculation.
        depth: Draft tokens a step.
        log: What the engine prints is appended here.
        records: Where the audit writes; None for a boot without it.

    Raises:
        RuntimeError: The engine ended or did not answer in time; the log says why.
    """
    port = free_port()
    with log.open("ab") as output:
        process = subprocess.Popen(
            command(chosen, rule, port=port, depth=depth),
            env=_environment(records),
            cwd=PROJECT,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    engine = Engine(port=port, group=process.pid)
    try:
        _wait_ready(engine, process, log)
        yield engine
    finally:
        end_group(process)


def _environment(records: Path | None) -> Mapping[str, str]:
    paths = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    inherited = {k: v for k, v in os.environ.items() if k != AUDIT_DIR_VARIABLE}
    chosen = {**inherited, **environment(), "PYTHONPATH": os.pathsep.join(paths)}
    return chosen if records is None else {**chosen, AUDIT_DIR_VARIABLE: str(records)}


def _wait_ready(engine: Engine, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + BOOT_DEADLINE_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the engine ended with code {process.returncode}, see {log}")
        try:
            engine.complete("x", max_tokens=1, seed=0)
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.5)
        else:
            return
    raise RuntimeError(f"the engine did not answer in {BOOT_DEADLINE_S:.0f} s, see {log}")


def prompts() -> list[str]:
    """Return the prompts that the models were not trained on."""
    lines = (MODELS / "heldout_prompts.jsonl").read_text(encoding="ascii").splitlines()
    return [json.loads(line)["prompt"] for line in lines]


@contextmanager
def loaded(engine: Engine, *, streams: int, seed: int) -> Iterator[None]:
    """Keep streams busy until the end of the block, each request with a seed of its own."""
    texts, stop, turns = prompts(), threading.Event(), itertools.count()

    def stream() -> None:
        while not stop.is_set():
            turn = next(turns)
            text = texts[(turn + 37 * seed) % len(texts)]
            engine.complete(text, max_tokens=ANSWER_TOKENS, seed=1_000_000 * seed + turn)

    threads = [threading.Thread(target=stream, daemon=True) for _ in range(streams)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=REQUEST_DEADLINE_S)
