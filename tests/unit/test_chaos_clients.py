"""What the clients of the promotion's faults count: an answer is whole, or they say what it was."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from infra.chaos.clients import NUM_TOKENS, Clients, Tally
from infra.chaos.promotion import Row
from orchestrator.fakes.openai import Act, Script, SseServer, failure, serving
from orchestrator.fakes.openai.events import DONE, event, usage
from orchestrator.fakes.openai.script import Part
from serve_apps.router.policy import VERSION_HEADER


def chunk(*tokens: int) -> bytes:
    return event({"choices": [{"index": 0, "text": "x", "token_ids": list(tokens)}]})


def answer(*parts: Part) -> Script:
    return Script(parts=parts, headers={VERSION_HEADER: "specpilot-v3"})


HALF = range(NUM_TOKENS // 2)
WHOLE = answer(chunk(*HALF), chunk(*HALF), usage(NUM_TOKENS), DONE)
KINDS: Mapping[str, tuple[Script, Callable[[Tally], int]]] = {
    "whole": (WHOLE, lambda tally: tally.answered["specpilot-v3"]),
    "short": (answer(chunk(*HALF), usage(NUM_TOKENS), DONE), lambda tally: tally.truncated),
    "no end": (answer(chunk(*HALF), chunk(*HALF)), lambda tally: tally.truncated),
    "twice": (
        answer(chunk(*HALF), chunk(*HALF), chunk(*HALF), usage(NUM_TOKENS), DONE),
        lambda tally: tally.duplicated,
    ),
    "broken": (answer(chunk(*HALF), Act.CLOSE), lambda tally: tally.failed.total()),
    "refused": (failure(503, "no engine answers"), lambda tally: tally.failed.total()),
    "error inside": (
        answer(chunk(*HALF), event({"error": {"message": "the engine died"}})),
        lambda tally: tally.failed.total(),
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_client_counts_what_an_answer_was(name: str) -> None:
    script, count = KINDS[name]

    def behaviour(_number: int, _body: dict[str, Any]) -> Script:
        return script

    with (
        serving(SseServer(behaviour=behaviour)) as server,
        Clients(server.url, "specpilot", streams=2) as tally,
    ):
        deadline = time.monotonic() + 20
        while not count(tally) and time.monotonic() < deadline:
            time.sleep(0.01)

    found = count(tally)
    assert found >= 1
    assert tally.answered.total() + tally.num_bad == found, "nothing else was counted"


ROW = Row(
    scenario="promotion",
    expected=2,
    champion=2,
    whole_s=0.5,
    tally=Tally(),
    may_fail=False,
    note="",
)


@pytest.mark.parametrize(
    ("changes", "is_right"),
    [
        ({}, True),
        ({"champion": 1}, False),
        ({"whole_s": None}, False),
        ({"tally": Tally(truncated=1)}, False),
        ({"tally": Tally(truncated=1), "may_fail": True}, True),
        ({"champion": None, "expected": None}, False),
    ],
)
def test_row_is_right_when_the_champion_serves_alone_and_nothing_was_lost(
    changes: dict[str, Any], is_right: bool
) -> None:
    row = replace(ROW, **changes)

    assert row.is_right is is_right
    assert row.line().startswith("ok" if is_right else "WRONG")
