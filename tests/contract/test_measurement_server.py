"""Blocks measured with the real load against the shipped server: the same reasons as in memory.

What hangs on when a busy machine lets a chunk arrive (the count within the window, and how many
requests one look finds running) decides no test here; `unit/test_measurement.py` has it exact.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from orchestrator.core.checks import Expectations
from orchestrator.core.node_health import NodeNeeds
from orchestrator.core.requests import LoadResult, Moment
from orchestrator.core.sampling import Shaping
from orchestrator.core.types import Arm, Block, Cell, Invalid
from orchestrator.fakes.openai import (
    DONE,
    Act,
    Chunk,
    EngineSettings,
    Script,
    SseServer,
    engine_server,
    serving,
    text,
)
from orchestrator.load.settings import LoadSettings
from orchestrator.load.streams import HttpLoad
from orchestrator.load.workload import Prompt, Workload
from orchestrator.measurement import BlockOrder, Instruments, measure_block
from orchestrator.ports import LoadRequest, Observe

WORKLOAD = Workload(
    name="w",
    digest="d",
    prompts=tuple(Prompt(prompt_id=f"p{i}", category="c", text=f"text {i}") for i in range(7)),
)
PACE: dict[str, Any] = {"ttft_s": 0.004, "gap_s": 0.002, "tokens_per_chunk": 3}
DEPTH = 2
ARM = Arm(
    engine_build="0.32.0",
    num_speculative_tokens=DEPTH,
    draft_sample_method="probabilistic",
    rejection_sample_method="block",
)


@dataclass
class Acting:
    """A load during which something happens at a moment."""

    inner: HttpLoad
    act: Mapping[Moment, Callable[[], None]] = field(default_factory=dict)

    def run(self, request: LoadRequest, observe: Observe) -> LoadResult:
        done: set[Moment] = set()

        def look(moment: Moment) -> None:
            if moment not in done:
                done.add(moment)
                self.act.get(moment, lambda: None)()
            observe(moment)

        return self.inner.run(request, look)


def measure(
    server: SseServer,
    *,
    streams: int = 2,
    arm: Arm | None = None,
    act: Mapping[Moment, Callable[[], None]] | None = None,
    metrics: Callable[[], str] | None = None,
    needs_counters: bool = True,
    **changes: Any,
) -> Block:
    values: dict[str, Any] = {
        "shaping": Shaping(),
        "endpoint": "completions",
        "max_tokens": 24,
        "ignore_eos": True,
        "block_s": 0.25,
        "warmup_requests_per_stream": 1,
        "warmup_max_tokens": 4,
        "request_timeout_s": 10.0,
    }
    load = HttpLoad(WORKLOAD, settings=LoadSettings(**(values | changes)))
    order = BlockOrder(
        boot_id="b",
        index=0,
        request=LoadRequest(
            base_url=server.url, model="m", cell=Cell(streams=streams, temperature=0.7), seed=5
        ),
        expected=Expectations(arm=arm, needs_counters=needs_counters),
    )
    instruments = Instruments(
        load=Acting(load, act or {}),
        metrics_text=(metrics or (lambda: server.engine.metrics())) if needs_counters else None,
        node=None,
        needs=NodeNeeds(),
    )
    return measure_block(order, instruments).block


def causes(block: Block) -> set[Invalid]:
    """Return the reasons that no lag of this machine can have made."""
    return {
        item.kind
        for item in block.invalid
        if item.kind is not Invalid.CONCURRENCY
        and not item.detail.startswith("within the window")
        and "while its edges were read" not in item.detail
    }


@pytest.fixture
def server() -> Iterator[SseServer]:
    with serving(engine_server(EngineSettings(**PACE, num_speculative_tokens=DEPTH))) as running:
        yield running


@pytest.fixture
def make_server(request: pytest.FixtureRequest) -> Callable[..., SseServer]:
    def make(**changes: Any) -> SseServer:
        context = serving(engine_server(EngineSettings(**(PACE | changes))))
        running = context.__enter__()
        request.addfinalizer(lambda: context.__exit__(None, None, None))
        return running

    return make


def test_block_agrees_with_the_engine_to_the_token(server: SseServer) -> None:
    block = measure(server, streams=8, arm=ARM)

    assert causes(block) == set()
    assert block.audit.engine_total == block.audit.client_total > 0
    assert block.output_tokens > 0
    assert (block.num_failed, block.num_refused, block.audit.unknown_total) == (0, 0, 0)


def test_block_with_other_traffic_is_contaminated(
    make_server: Callable[..., SseServer],
) -> None:
    """B12: one token of another's for each dozen of ours."""
    assert causes(measure(make_server(foreign_tokens=2))) == {Invalid.CONTAMINATED}


def test_block_of_a_warm_prefix_cache_is_cached(make_server: Callable[..., SseServer]) -> None:
    """B09."""
    assert causes(measure(make_server(cached_share=0.9))) == {Invalid.CACHED}


@pytest.mark.parametrize("moment", [Moment.DURING, Moment.AFTER])
def test_block_of_an_engine_that_was_restarted_is_no_sum_of_two(
    server: SseServer, moment: Moment
) -> None:
    def restart() -> None:
        old = server.engine.counters
        server.engine.restart()
        # As far as the old process had come and further: only its start tells.
        for name in ("generation_tokens", "prompt_tokens", "num_drafts", "num_draft_tokens"):
            setattr(server.engine.counters, name, getattr(old, name) + 1000)
        server.engine.counters.accepted_per_pos = [n + 1000 for n in old.accepted_per_pos]

    block = measure(server, act={moment: restart})

    assert causes(block) == {Invalid.RESTARTED}
    assert block.counters.generation_tokens is None


def test_block_where_ends_are_not_ignored_is_truncated(
    make_server: Callable[..., SseServer],
) -> None:
    """B06: asked for 24 tokens with ignore_eos, answered with 8."""
    server = make_server(eos_after=8)
    answer = server.behaviour
    server.behaviour = lambda number, body: answer(number, {**body, "ignore_eos": False})

    block = measure(server)

    assert causes(block) == {Invalid.TRUNCATED}
    assert "stop" in block.finish_reasons


def test_block_behind_a_queue_is_not_of_its_concurrency(
    make_server: Callable[..., SseServer],
) -> None:
    """B14: eight streams where the engine takes four."""
    block = measure(make_server(max_num_seqs=4), streams=8)

    assert Invalid.CONCURRENCY in {item.kind for item in block.invalid}
    assert block.most_running is not None
    assert block.most_running <= 4
    assert causes(block) == set()


def test_block_with_one_reset_among_sixteen_streams_stands(server: SseServer) -> None:
    """B19."""
    answer = server.behaviour
    reset = Script(parts=(text("a"), Act.RESET))
    server.behaviour = lambda number, body: reset if number == 40 else answer(number, body)

    block = measure(server, streams=16)

    assert causes(block) == set()
    assert block.num_failed == 1
    assert list(block.errors.values()) == [1]


def test_block_with_a_stream_that_never_sends_stands_and_tells(server: SseServer) -> None:
    answer = server.behaviour
    hang = Script(parts=(Act.HANG,))
    server.behaviour = lambda number, body: hang if number == 20 else answer(number, body)

    block = measure(server, streams=4, stall_timeout_s=1.5, block_s=0.8)

    assert causes(block) == set()
    assert block.num_failed == 1
    assert next(iter(block.errors)).startswith("no byte for 1.5 s")


def test_block_of_a_server_that_never_sends_has_no_window(server: SseServer) -> None:
    """E13: the port is open, /metrics answers, and every completion hangs."""
    server.behaviour = lambda _number, _body: Script(parts=(Act.HANG,))

    block = measure(
        server,
        stall_timeout_s=0.2,
        request_timeout_s=0.3,
        warmup_requests_per_stream=0,
        needs_counters=False,
    )

    assert causes(block) == {Invalid.REQUESTS}
    assert block.duration_s == 0
    assert "the window never opened" in (block.invalid_reason or "")


def uncounted(words: str = "def add left right") -> Script:
    return Script(
        parts=(*(text(f"{word} ") for word in words.split()), text("end", "length"), DONE)
    )


def test_block_of_answers_without_any_count_is_no_measurement(server: SseServer) -> None:
    server.behaviour = lambda _number, _body: uncounted()

    block = measure(server, needs_counters=False)

    assert causes(block) == {Invalid.TOKENS}
    assert "the answers carry no usage" in (block.invalid_reason or "")


def test_block_where_one_answer_in_four_has_no_count_is_no_measurement(server: SseServer) -> None:
    answer = server.behaviour
    server.behaviour = lambda number, body: uncounted() if number % 4 == 3 else answer(number, body)

    block = measure(server, needs_counters=False)

    assert causes(block) == {Invalid.TOKENS}
    assert "carry neither usage nor another count" in (block.invalid_reason or "")


def test_block_counted_by_the_end_of_the_answer_alone_is_still_exact_in_all(
    make_server: Callable[..., SseServer],
) -> None:
    """B01: without counts along the way, tokens come from usage and never from chunks."""
    block = measure(make_server(has_continuous_usage=False))

    assert causes(block) == set()
    assert block.audit.engine_total == block.audit.client_total


@pytest.mark.parametrize("value", ["a ", " ", ""])
def test_block_of_one_token_for_ever_is_garbage(
    make_server: Callable[..., SseServer], value: str
) -> None:
    """A12: HTTP 200, usage in order, and no text."""
    server = make_server()
    answer = server.behaviour

    def garbage(number: int, body: dict[str, Any]) -> Script:
        script = answer(number, body)
        parts = tuple(_emptied(part, value) for part in script.parts if isinstance(part, Chunk))
        return Script(parts=parts, prompt_tokens=script.prompt_tokens)

    server.behaviour = garbage

    found = causes(measure(server))
    assert Invalid.GARBAGE in found
    # Where no chunk has text an answer's tokens all come with its end, and on which side of the
    # window's edges that falls is chance: then the counts may disagree, too, and by right.
    assert found <= ({Invalid.GARBAGE, Invalid.TOKENS} if not value else {Invalid.GARBAGE})


def _emptied(part: Chunk, value: str) -> Chunk:
    lines = part.data.decode().split("\n\n")
    items = [line.removeprefix("data: ") for line in lines if line]
    told = []
    for item in items:
        if item != "[DONE]":
            event = json.loads(item)
            for choice in event["choices"]:
                choice["text"] = value * part.tokens
            item = json.dumps(event)
        told.append(f"data: {item}\n\n")
    return Chunk(data="".join(told).encode(), tokens=part.tokens, at_s=part.at_s)


def test_block_of_an_engine_that_dies_under_load_says_what_broke(server: SseServer) -> None:
    """A17: the cell that it dies in is invalid and kept."""
    answer = server.behaviour
    dead = Script(status=500, parts=(b'{"error": {"message": "EngineDeadError"}}',))
    server.behaviour = lambda number, body: answer(number, body) if number < 20 else dead

    block = measure(server, block_s=30.0)

    assert causes(block) == {Invalid.REQUESTS}
    assert block.num_lost_streams >= 1
    assert next(iter(block.errors)) == "HTTP 500: EngineDeadError"
    assert block.duration_s < 20


def test_block_whose_refusals_are_asked_again_stands(server: SseServer) -> None:
    answer = server.behaviour
    busy = Script(status=503, parts=(b"busy",), headers={"Retry-After": "0"})
    numbers = itertools.count()
    server.behaviour = lambda number, body: (
        busy if next(numbers) in (3, 4) else answer(number, body)
    )

    block = measure(server)

    assert causes(block) == set()
    assert (block.num_refused, block.num_failed) == (2, 0)
