"""The SSE client against servers that are odd, but whole."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import replace

import pytest
from client_calls import CALL, CHAT, answer, ask

from orchestrator.core.requests import RequestRecord, TokenSource
from orchestrator.errors import ConfigError
from orchestrator.fakes.openai import (
    DONE,
    KEEP_ALIVE,
    SseServer,
    chat,
    event,
    good,
    serving,
    split_bytes,
    text,
    tool_call,
    usage,
)
from orchestrator.load.call import Call
from orchestrator.load.client import SseClient
from serve_apps.engine.sockets import free_port


def test_client_states_all_sampling_in_every_request(sse_server: SseServer) -> None:
    ask(sse_server.url)

    body = sse_server.bodies[0]
    expected = {
        "model": "m",
        "prompt": "def f():",
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "seed": 11,
        "max_tokens": 8,
        "ignore_eos": True,
    }
    assert {key: body[key] for key in expected} == expected
    assert sse_server.paths == ["/v1/completions"]


def test_client_chat_endpoint_sends_one_user_message(sse_server: SseServer) -> None:
    answer(sse_server, chat({"role": "assistant"}), chat({"content": "hi"}, "stop"), usage(2), DONE)

    record = ask(sse_server.url + "/v1/", CHAT)

    assert sse_server.paths == ["/v1/chat/completions"]
    assert sse_server.bodies[0]["messages"] == [{"role": "user", "content": "def f():"}]
    assert (record.text, record.output_tokens, record.error) == ("hi", 2, None)
    assert len(record.chunk_times_s) == 1


def test_client_several_tokens_a_chunk_counts_usage_not_chunks(sse_server: SseServer) -> None:
    chunks = [text("word ") for _ in range(48)]
    answer(sse_server, *chunks, text("end", "length"), usage(200), DONE)

    record = ask(sse_server.url)

    assert record.output_tokens == 200
    assert record.prompt_tokens == 9
    assert record.token_source is TokenSource.USAGE
    assert len(record.chunk_times_s) == 49
    assert record.finish_reason == "length"


def test_client_usage_on_every_chunk_takes_the_last(sse_server: SseServer) -> None:
    def chunk(tokens: int, finish: str | None) -> bytes:
        choice = {"index": 0, "text": "x", "finish_reason": finish}
        return event({"choices": [choice], "usage": {"completion_tokens": tokens}})

    answer(sse_server, chunk(3, None), chunk(7, "stop"), DONE)

    assert ask(sse_server.url).output_tokens == 7


def test_client_without_usage_leaves_the_tokens_unknown(sse_server: SseServer) -> None:
    answer(sse_server, text("a"), text("b", "stop"), DONE)

    record = ask(sse_server.url)

    assert record.error is None
    assert record.output_tokens is None
    assert record.token_source is TokenSource.NONE
    assert record.tpot_s is None


@pytest.mark.parametrize("tokens", [-1, "12", None, True, 3.5, float("nan"), 10**30, [1], {}])
def test_client_usage_that_is_no_count_leaves_the_tokens_unknown(
    sse_server: SseServer, tokens: object
) -> None:
    counts = {"completion_tokens": tokens, "prompt_tokens_details": None}
    answer(sse_server, text("a", "stop"), event({"choices": [], "usage": counts}), DONE)

    assert ask(sse_server.url).token_source is TokenSource.NONE


def test_client_cached_prompt_tokens_are_reported(sse_server: SseServer) -> None:
    details = {"cached_tokens": 48}
    answer(sse_server, text("a", "stop"), usage(1, prompt_tokens_details=details), DONE)

    assert ask(sse_server.url).cached_tokens == 48


def test_client_keep_alive_comments_are_no_chunks(sse_server: SseServer) -> None:
    ping = KEEP_ALIVE
    answer(sse_server, ping, ping, text("a"), ping, text("b", "stop"), ping, usage(2), DONE)

    record = ask(sse_server.url)

    assert record.text == "ab"
    assert len(record.chunk_times_s) == 2


def test_client_stream_without_done_is_whole_when_it_gave_a_reason(sse_server: SseServer) -> None:
    answer(sse_server, text("a", "stop"), usage(1))

    record = ask(sse_server.url)

    assert record.error is None
    assert record.output_tokens == 1


def test_client_stream_without_done_and_reason_is_cut_short(sse_server: SseServer) -> None:
    answer(sse_server, text("a"))

    record = ask(sse_server.url)

    assert record.error == "the stream ended before the answer did"
    assert record.e2e_s is None


def test_client_last_event_without_blank_line_counts(sse_server: SseServer) -> None:
    answer(sse_server, text("a", "stop"), usage(5).rstrip(b"\n"))

    assert ask(sse_server.url).output_tokens == 5


def test_client_characters_split_over_reads_stay_whole(sse_server: SseServer) -> None:
    whole = text("\u2603 caf\u00e9 \U0001f40d", "stop")
    answer(sse_server, *split_bytes([whole]), usage(4), DONE)

    assert ask(sse_server.url).text == "\u2603 caf\u00e9 \U0001f40d"


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_client_reasoning_counts_as_content_for_ttft(sse_server: SseServer, key: str) -> None:
    parts = [chat({"role": "assistant", "content": ""}), chat({key: "hmm "}), chat({}, "length")]
    answer(sse_server, *parts, usage(64), DONE)

    record = ask(sse_server.url, CHAT)

    assert record.error is None
    assert record.ttft_s is not None
    assert record.text == "hmm "
    assert record.output_tokens == 64


def test_client_tool_call_counts_as_content_for_ttft(sse_server: SseServer) -> None:
    pieces = (tool_call("", "look"), tool_call("{}"))
    answer(sse_server, *pieces, chat({}, "tool_calls"), usage(3), DONE)

    record = ask(sse_server.url, CHAT)

    assert record.ttft_s is not None
    assert record.finish_reason == "tool_calls"
    assert len(record.chunk_times_s) == 2


def test_client_early_stop_keeps_actual_tokens_and_reason(sse_server: SseServer) -> None:
    answer(sse_server, text("short", "stop"), usage(3), DONE)

    record = ask(sse_server.url)

    assert (record.output_tokens, record.finish_reason) == (3, "stop")


def test_client_empty_text_with_usage_is_a_success(sse_server: SseServer) -> None:
    answer(sse_server, chat({}, "stop"), usage(12), DONE)

    record = ask(sse_server.url, CHAT)

    assert (record.error, record.output_tokens, record.ttft_s) == (None, 12, None)


def test_client_times_count_from_the_moment_the_request_is_sent(sse_server: SseServer) -> None:
    ticks = itertools.count(100.0, 0.5)
    record = ask(sse_server.url, clock=lambda: next(ticks))

    assert record.started_s == 100.5, "read once before and once when it is handed to the socket"
    assert record.ttft_s is not None
    assert record.e2e_s is not None
    assert 0 < record.ttft_s <= record.e2e_s
    assert record.chunk_times_s == tuple(sorted(record.chunk_times_s))
    assert record.tpot_s == pytest.approx((record.e2e_s - record.ttft_s) / 7)


def test_client_times_of_an_arrival_hold_the_wait_before_it_was_sent(sse_server: SseServer) -> None:
    ticks = itertools.count(100.0, 0.5)
    record = ask(sse_server.url, clock=lambda: next(ticks), arrived_s=90.0)

    assert record.started_s == 90.0
    assert record.ttft_s is not None
    assert record.ttft_s > 10.0


def test_client_connection_is_kept_for_the_next_request() -> None:
    async def run(url: str) -> list[RequestRecord]:
        client = SseClient(url, timeout_s=10.0, clock=time.monotonic, origin_s=0.0)
        async with client:
            return [await client.complete(CALL) for _ in range(3)]

    with serving() as server:
        records = asyncio.run(run(server.url))

        assert [record.fault for record in records] == [None] * 3
        assert server.num_connections == 1


@pytest.mark.parametrize("call", [CALL, CHAT])
def test_client_continuous_usage_gives_the_tokens_of_each_chunk(
    sse_server: SseServer, call: Call
) -> None:
    record = ask(sse_server.url, call)

    assert record.chunk_tokens == (3, 6, 8)
    assert record.output_tokens == record.max_tokens == 8


def test_client_tokens_without_text_are_a_chunk_once_text_has_begun(sse_server: SseServer) -> None:
    def chunk(value: str, tokens: int, finish: str | None = None) -> bytes:
        choice = {"index": 0, "text": value, "finish_reason": finish}
        return event({"choices": [choice], "usage": {"completion_tokens": tokens}})

    parts = (chunk("", 1), chunk("a", 2), chunk("", 2), chunk("", 5), chunk("b", 5, "stop"))
    answer(sse_server, *parts, usage(6), DONE)

    assert ask(sse_server.url).chunk_tokens == (2, 5, 5, 6)


@pytest.mark.parametrize("counts", [(3, 2), (None, 4), (0, 4), (2, None)])
def test_client_counts_that_cannot_be_true_give_no_chunk_tokens(
    sse_server: SseServer, counts: tuple[int | None, ...]
) -> None:
    chunks = [
        event({"choices": [{"text": "x"}], "usage": {"completion_tokens": count}})
        for count in counts
    ]
    answer(sse_server, *chunks, text("y", "stop"), usage(9), DONE)

    record = ask(sse_server.url)

    assert record.chunk_tokens is None
    assert record.output_tokens == 9


def test_client_token_ids_are_counted_when_there_is_no_usage(sse_server: SseServer) -> None:
    chunks = [
        event({"choices": [{"text": "x", "token_ids": ids, "finish_reason": finish}]})
        for ids, finish in (([1, 2], None), ([3], None), ([4, 5, 6], "length"))
    ]
    answer(sse_server, *chunks, DONE)

    record = ask(sse_server.url)

    assert (record.output_tokens, record.token_source) == (6, TokenSource.SERVER)
    assert record.chunk_tokens == (2, 3, 6)


def test_client_timings_of_llama_cpp_are_counts(sse_server: SseServer) -> None:
    timings = {"prompt_n": 5, "cache_n": 20, "predicted_n": 7}
    last = {"choices": [{"text": "", "finish_reason": "stop"}], "timings": timings}
    answer(sse_server, text("a"), event(last), DONE)

    record = ask(sse_server.url)

    assert (record.output_tokens, record.token_source) == (7, TokenSource.SERVER)
    assert (record.prompt_tokens, record.cached_tokens) == (25, 20)


def test_client_usage_is_better_than_other_counts(sse_server: SseServer) -> None:
    timed = event({"choices": [], "timings": {"predicted_n": 7}})
    answer(sse_server, text("a", "stop"), usage(8), timed, DONE)

    record = ask(sse_server.url)

    assert (record.output_tokens, record.token_source) == (8, TokenSource.USAGE)


@pytest.mark.parametrize("counts", [[], "9", 3, None])
def test_client_usage_that_is_no_object_is_ignored(sse_server: SseServer, counts: object) -> None:
    answer(sse_server, text("a", "stop"), event({"choices": [], "usage": counts}), DONE)

    record = ask(sse_server.url)

    assert (record.fault, record.token_source) == (None, TokenSource.NONE)


def test_client_messages_and_extra_reach_the_server(sse_server: SseServer) -> None:
    messages = ({"role": "system", "content": "s"}, {"role": "user", "content": "u"})
    extra = {"tools": [{"type": "function"}], "chat_template_kwargs": {"enable_thinking": False}}

    ask(sse_server.url, replace(CHAT, messages=messages, extra=extra))

    body = sse_server.bodies[0]
    assert body["messages"] == list(messages)
    assert {key: body[key] for key in extra} == extra


def test_client_address_without_scheme_is_refused() -> None:
    with pytest.raises(ConfigError, match="localhost:8000"):
        SseClient("localhost:8000", timeout_s=1.0, clock=time.monotonic, origin_s=0.0)


def test_client_character_parted_over_two_chunks_is_one(sse_server: SseServer) -> None:
    parts = [b'data: {"choices": [{"text": "\\ud83d"}]}\n\n', event({"choices": []})]
    parts.append(b'data: {"choices": [{"text": "\\udc0d", "finish_reason": "stop"}]}\n\n')
    answer(sse_server, *parts, usage(1), DONE)

    assert ask(sse_server.url).text == "\U0001f40d"


def test_client_half_a_character_is_replaced(sse_server: SseServer) -> None:
    half = b'data: {"choices": [{"text": "a\\ud83d", "finish_reason": "stop"}]}\n\n'
    answer(sse_server, half, DONE)

    assert ask(sse_server.url).text.encode() == "a\ufffd".encode()


def test_client_environment_proxies_are_not_used(
    sse_server: SseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")

    assert ask(sse_server.url).fault is None


def test_client_cookies_are_not_sent_back(sse_server: SseServer) -> None:
    async def run() -> None:
        client = SseClient(sse_server.url, timeout_s=10.0, clock=time.monotonic, origin_s=0.0)
        async with client:
            for _ in range(2):
                await client.complete(CALL)

    sse_server.behaviour = lambda _number, body: replace(good(body), headers={"Set-Cookie": "a=b"})
    asyncio.run(run())

    assert all("Cookie" not in headers for headers in sse_server.headers)
