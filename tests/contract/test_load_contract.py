"""What every load client owes the trial, and what the one in memory adds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from load_setup import MAX_TOKENS, PACE, Edges, http_load, nothing, request, succeeded

from orchestrator.core.exposition import parse_counters
from orchestrator.core.requests import LoadResult, Moment, RequestFault, TokenSource
from orchestrator.core.types import Arm
from orchestrator.core.window import tokens_between
from orchestrator.fakes.board import FakeBoard, Faults
from orchestrator.fakes.engine import FakeEngine
from orchestrator.fakes.load import FakeLoad
from orchestrator.fakes.openai import (
    Act,
    Script,
    SseServer,
    engine_server,
    serving,
    text,
)
from orchestrator.ports import LoadClient
from serve_apps.engine.sockets import free_port

ARM = Arm(
    engine_build="0.32.0",
    num_speculative_tokens=7,
    draft_sample_method="probabilistic",
    rejection_sample_method="block",
)


@dataclass(frozen=True, slots=True)
class Setup:
    """A load client and where it sends."""

    client: LoadClient
    base_url: str
    fail_every: Callable[[int], Setup]
    dead_url: str


def real_setup(server: SseServer) -> Setup:
    answer = server.behaviour

    def fail_every(count: int) -> Setup:
        reset = Script(parts=(text("a"), Act.RESET))
        server.behaviour = lambda number, body: (
            reset if number % count == 0 else answer(number, body)
        )
        return real

    real = Setup(http_load(), server.url, fail_every, f"http://127.0.0.1:{free_port()}")
    return real


def fake_setup(faults: Faults | None = None) -> Setup:
    board = FakeBoard(faults={ARM: faults or Faults()})
    FakeEngine(board).start(ARM, lambda _line: None)
    client = FakeLoad(board, block_s=5.0, max_tokens=MAX_TOKENS)

    def fail_every(count: int) -> Setup:
        return fake_setup(Faults(reset_every=count))

    return Setup(client, board.base_url, fail_every, "http://elsewhere.invalid:8000")


@pytest.fixture(params=["http", "fake"])
def setup(request: pytest.FixtureRequest) -> Iterator[Setup]:
    if request.param == "fake":
        yield fake_setup()
        return
    with serving(engine_server(PACE)) as server:
        yield real_setup(server)


class TestLoadClientContract:
    def test_run_observes_each_moment_in_its_order(self, setup: Setup) -> None:
        moments: list[Moment] = []

        setup.client.run(request(setup.base_url), moments.append)

        around = [moment for moment in moments if moment is not Moment.DURING]
        assert around == [Moment.BEFORE, Moment.OPEN, Moment.CLOSE, Moment.AFTER]
        during = [index for index, moment in enumerate(moments) if moment is Moment.DURING]
        assert during
        assert all(1 < index < len(moments) - 2 for index in during)

    def test_run_records_are_whole(self, setup: Setup) -> None:
        result = setup.client.run(request(setup.base_url), nothing)

        assert (result.num_failed, result.num_refused, result.num_lost_streams) == (0, 0, 0)
        for record in result.records:
            assert record.text
            assert record.ttft_s is not None
            assert record.e2e_s is not None
            assert 0 < record.ttft_s <= record.e2e_s
            assert record.output_tokens == record.max_tokens
            assert record.token_source is TokenSource.USAGE
            assert record.chunk_tokens is not None
            assert len(record.chunk_tokens) == len(record.chunk_times_s)
            assert list(record.chunk_tokens) == sorted(set(record.chunk_tokens))
            assert record.chunk_tokens[-1] == record.output_tokens
        assert len({record.request_id for record in result.records}) == len(result.records)
        starts = [record.started_s for record in result.records]
        assert starts == sorted(starts)

    def test_run_every_stream_decodes_from_edge_to_edge_of_the_window(self, setup: Setup) -> None:
        """No ramp inside: each stream had text before the window opened and asks to its end.

        A stream may be between two answers when the window closes, never an answer's length away.
        """
        result = setup.client.run(request(setup.base_url, streams=3), nothing)

        assert result.opening is not None
        assert result.closing is not None
        for stream in range(3):
            own = [r for r in succeeded(result) if r.request_id.split("-")[-2] == str(stream)]
            first_text_s = min(r.started_s + (r.ttft_s or 0.0) for r in own)
            last_text_s = max(r.started_s + (r.e2e_s or 0.0) for r in own)
            assert first_text_s <= result.opening.end_s
            longest_s = max(r.e2e_s or 0.0 for r in own)
            assert last_text_s >= result.closing.start_s - longest_s
        assert max(r.started_s for r in result.records) <= result.closing.end_s

    def test_run_every_stream_asks_more_than_once(self, setup: Setup) -> None:
        result = setup.client.run(request(setup.base_url, streams=3), nothing)

        assert len(result.records) > 6

    def test_run_some_failures_are_counted_and_the_window_goes_on(self, setup: Setup) -> None:
        """B19: a reset costs its request and not the cell."""
        failing = setup.fail_every(5)

        result = failing.client.run(request(failing.base_url), nothing)

        assert result.window is not None
        assert 0 < result.num_failed < len(result.records)
        assert result.num_lost_streams == 0
        failed = [record for record in result.records if record.fault is not None]
        assert {record.fault for record in failed} == {RequestFault.CONNECTION}
        assert all(record.error and record.e2e_s is None for record in failed)

    def test_run_nobody_answers_every_stream_gives_up(self, setup: Setup) -> None:
        result = setup.client.run(request(setup.dead_url), nothing)

        assert result.window is None
        assert result.num_lost_streams >= 1
        assert result.records
        assert {record.fault for record in result.records} == {RequestFault.CONNECTION}

    def test_run_same_seed_asks_the_same_prompts(self, setup: Setup) -> None:
        first = setup.client.run(request(setup.base_url, streams=1), nothing)
        second = setup.client.run(request(setup.base_url, streams=1), nothing)
        other = setup.client.run(request(setup.base_url, streams=1, seed=6), nothing)

        def prompts(result: LoadResult) -> list[str]:
            return [record.prompt_id for record in result.records][:5]

        assert prompts(first) == prompts(second)
        assert prompts(first) != prompts(other)


class TestFakeLoad:
    """What the fake adds: counters of the engine that move with the load."""

    def counters(self, faults: Faults) -> tuple[Edges, LoadResult, FakeEngine]:
        board = FakeBoard(faults={ARM: faults})
        engine = FakeEngine(board)
        engine.start(ARM, lambda _line: None)
        edges = Edges(engine.metrics_text)
        result = FakeLoad(board).run(request(board.base_url, streams=4), edges)
        return edges, result, engine

    def test_engine_and_client_agree_on_the_tokens(self) -> None:
        edges, result, _ = self.counters(Faults())

        assert edges.tokens[Moment.BEFORE] > 0
        total = edges.tokens[Moment.AFTER] - edges.tokens[Moment.BEFORE]
        assert total == sum(record.output_tokens or 0 for record in result.records)
        assert result.window is not None
        inside = edges.tokens[Moment.CLOSE] - edges.tokens[Moment.OPEN]
        assert tokens_between(result.records, result.window) == inside > 0

    def test_foreign_traffic_shows_in_the_engine_only(self) -> None:
        edges, result, _ = self.counters(Faults(foreign_tokens=500))

        total = edges.tokens[Moment.AFTER] - edges.tokens[Moment.BEFORE]
        assert total == sum(record.output_tokens or 0 for record in result.records) + 500

    def test_positions_fall_and_add_up_to_the_accepted_tokens(self) -> None:
        _, _, engine = self.counters(Faults())

        counters = parse_counters(engine.metrics_text()).total
        per_pos = counters.num_accepted_tokens_per_pos
        assert per_pos is not None
        assert list(per_pos) == sorted(per_pos, reverse=True)
        assert sum(per_pos) == counters.num_accepted_tokens

    def test_garbage_accepts_nothing_and_repeats_itself(self) -> None:
        _, result, engine = self.counters(Faults(is_garbage=True))

        assert parse_counters(engine.metrics_text()).total.num_accepted_tokens == 0
        assert set(result.records[0].text.split()) == {"a"}

    def test_runs_of_one_seed_are_equal(self) -> None:
        first, second = self.counters(Faults()), self.counters(Faults())

        assert (first[0].tokens, first[1]) == (second[0].tokens, second[1])
