"""Arrivals that follow a clock, whatever the answers do."""

from __future__ import annotations

import pytest
from load_setup import MAX_TOKENS, PACE, WORKLOAD, http_load, nothing, request, settings, succeeded

from orchestrator.fakes.openai import EngineSettings, engine_server, serving
from orchestrator.load.sequence import CallSequence
from serve_apps.engine.sockets import free_port


class TestOpenLoop:
    def test_arrivals_do_not_wait_for_answers(self) -> None:
        slow = EngineSettings(ttft_s=0.2, gap_s=0.01, tokens_per_chunk=12)
        with serving(engine_server(slow)) as server:
            result = http_load(block_s=0.6).run(
                request(server.url, streams=64, request_rate=60.0), nothing
            )

            assert server.most_in_flight > 3
        assert result.num_delayed == 0
        assert result.window is not None
        assert succeeded(result)

    def test_arrivals_are_the_same_for_every_arm(self) -> None:
        def asked() -> list[str]:
            with serving(engine_server(PACE)) as server:
                result = http_load().run(
                    request(server.url, streams=64, request_rate=80.0), nothing
                )
                return [record.prompt_id for record in result.records][:10]

        assert asked() == asked()

    def test_gaps_between_arrivals_have_the_mean_of_the_rate(self) -> None:
        with serving(engine_server(PACE)) as server:
            result = http_load(block_s=1.0).run(
                request(server.url, streams=256, request_rate=200.0), nothing
            )

        starts = [record.started_s for record in result.records]
        rate = (len(starts) - 1) / (starts[-1] - starts[0])
        # 200 arrivals have a standard error of 7 %.
        assert rate == pytest.approx(200.0, rel=0.35)

    def test_waiting_for_a_connection_is_counted_and_part_of_the_time(self) -> None:
        slow = EngineSettings(ttft_s=0.1, gap_s=0.001, tokens_per_chunk=12)
        with serving(engine_server(slow)) as server:
            result = http_load(block_s=0.5).run(
                request(server.url, streams=1, request_rate=40.0), nothing
            )

        assert result.num_delayed > 0
        longest = max(record.ttft_s or 0.0 for record in succeeded(result))
        assert longest > 0.15

    def test_dead_server_ends_the_load(self) -> None:
        dead = request(f"http://127.0.0.1:{free_port()}", streams=8, request_rate=200.0)

        result = http_load(block_s=30.0, warmup_requests_per_stream=0).run(dead, nothing)

        assert result.num_lost_streams == 1
        assert result.window is None


def test_calls_of_the_open_loop_are_one_sequence_of_full_answers() -> None:
    calls = CallSequence(WORKLOAD, settings(), request("http://x", streams=9, request_rate=1.0))

    made = [calls.measured(0, turn) for turn in range(7)]

    assert {call.sampling.max_tokens for call in made} == {MAX_TOKENS}
    assert len({call.prompt_id for call in made}) == 7
