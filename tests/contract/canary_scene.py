"""Servers that tests of the canaries ask, and how they run ``canary`` in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from orchestrator.canaries.wire import Server
from orchestrator.cli import main
from orchestrator.fakes.openai import Behaviour, Engine, EngineSettings, Script, SseServer, serving
from orchestrator.fakes.openai.scholar import Scholar
from serve_apps.engine.fake.scholar import KNOWN

LIMIT = 1000
"""Words that prompt and answer may have together."""

Capture = pytest.CaptureFixture[str]
Spoil = Callable[[Script, Mapping[str, Any]], Script]


@contextmanager
def scholar(
    *, limit: int = LIMIT, spoil: Spoil | None = None, behaviour: Behaviour | None = None,
    **scholar: Any,
) -> Iterator[SseServer]:  # fmt: skip
    """Serve a model that can do everything, or one whose answers are spoiled."""
    abilities: dict[str, Any] = {"knows": KNOWN, "max_model_len": limit} | scholar
    model = Scholar(**abilities)

    def answer(number: int, body: dict[str, Any]) -> Script:
        script = model.answer(number, body)
        return script if spoil is None else spoil(script, body)

    engine = Engine(EngineSettings(models=("target",), max_model_len=limit))
    with serving(SseServer(engine=engine, behaviour=behaviour or answer)) as server:
        yield server


def server_at(fake: SseServer, **changes: Any) -> Server:
    given: dict[str, Any] = {"base": fake.url, "model": "target", "timeout_s": 20.0} | changes
    return Server(**given)


def canary(capsys: Capture, arm: str, control: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run the command and return its status and record."""
    status = main(["canary", "--url", arm, "--control-url", control, "--json", *arguments])
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    return status, record
