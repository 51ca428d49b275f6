"""One small load for the tests of the load clients: its prompts, its settings, its request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orchestrator.core.exposition import parse_counters
from orchestrator.core.requests import LoadResult, Moment, RequestRecord
from orchestrator.core.sampling import Shaping
from orchestrator.core.types import Cell
from orchestrator.fakes.openai import EngineSettings
from orchestrator.load.prompts import Prompt
from orchestrator.load.settings import LoadSettings
from orchestrator.load.streams import HttpLoad
from orchestrator.load.workload import Workload
from orchestrator.ports import LoadRequest

WORKLOAD = Workload(
    name="w",
    digest="d",
    prompts=tuple(Prompt(prompt_id=f"p{i}", category="c", text=f"text {i}") for i in range(7)),
)
MAX_TOKENS = 24
PACE = EngineSettings(ttft_s=0.004, gap_s=0.002, tokens_per_chunk=3)
"""Answers of about 20 ms, so that a window of 0.3 s holds several."""


def nothing(_moment: Moment) -> None:
    pass


def settings(**changes: Any) -> LoadSettings:
    values: dict[str, Any] = {
        "shaping": Shaping(),
        "endpoint": "completions",
        "max_tokens": MAX_TOKENS,
        "ignore_eos": True,
        "block_s": 0.3,
        "warmup_requests_per_stream": 1,
        "warmup_max_tokens": 16,
        "request_timeout_s": 10.0,
    }
    return LoadSettings(**(values | changes))


def http_load(**changes: Any) -> HttpLoad:
    return HttpLoad(WORKLOAD, settings=settings(**changes))


def request(
    base_url: str, *, streams: int = 2, seed: int = 5, request_rate: float = 0.0
) -> LoadRequest:
    cell = Cell(streams=streams, temperature=0.7, request_rate=request_rate)
    return LoadRequest(base_url=base_url, model="m", cell=cell, seed=seed)


def succeeded(result: LoadResult) -> list[RequestRecord]:
    return [record for record in result.records if record.fault is None]


class Edges:
    """Reads an engine's output tokens at each moment."""

    def __init__(self, read: Callable[[], str]) -> None:
        self._read = read
        self.tokens: dict[Moment, float] = {}

    def __call__(self, moment: Moment) -> None:
        counted = parse_counters(self._read()).total.generation_tokens
        assert counted is not None
        self.tokens[moment] = counted
