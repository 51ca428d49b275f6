"""The SSE client against servers that misbehave, one way a test."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
from sse_server import DONE, Act, Script, SseServer, chat, event, free_port, text, usage

from orchestrator.core.types import RequestRecord, TokenSource
from orchestrator.load.client import Call, Sampling, SseClient

SAMPLING = Sampling(temperature=0.7, top_p=0.9, top_k=20, seed=11, max_tokens=8, ignore_eos=True)


def ask(
    url: str,
    *,
    endpoint: Any = "completions",
    timeout_s: float = 10.0,
    clock: Callable[[], float] = time.monotonic,
) -> RequestRecord:
    call = Call(
        request_id="r",
        prompt_id="p",
        prompt="def f():",
        endpoint=endpoint,
        model="m",
        sampling=SAMPLING,
    )

    async def run() -> RequestRecord:
        client = SseClient(url, timeout_s=timeout_s, clock=clock, origin_s=0.0)
        async with client:
            return await client.complete(call)

    return asyncio.run(run())


def answer(server: SseServer, *parts: bytes | Act, status: int = 200) -> None:
    script = Script(status=status, parts=parts)
    server.behaviour = lambda _number, _body: script


def test_client_states_all_sampling_in_every_request(sse_server: SseServer) -> None:
    ask(sse_server.url)

    body = sse_server.bodies[0]
    expected = {
        "model": "m",
        "prompt": "def f():",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "seed": 11,
        "max_tokens": 8,
        "ignore_eos": True,
    }
    assert body.items() >= expected.items()
    assert sse_server.paths == ["/v1/completions"]


def test_client_chat_endpoint_sends_one_user_message(sse_server: SseServer) -> None:
    answer(sse_server, chat({"role": "assistant"}), chat({"content": "hi"}, "stop"), usage(2), DONE)

    record = ask(sse_server.url + "/v1/", endpoint="chat")

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


@pytest.mark.parametrize("tokens", [-1, "12", None, True, 3.5])
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
    ping = b": keep-alive\n\n"
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
    answer(sse_server, *(bytes([byte]) for byte in whole), usage(4), DONE)

    assert ask(sse_server.url).text == "\u2603 caf\u00e9 \U0001f40d"


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_client_reasoning_counts_as_content_for_ttft(sse_server: SseServer, key: str) -> None:
    parts = [chat({"role": "assistant", "content": ""}), chat({key: "hmm "}), chat({}, "length")]
    answer(sse_server, *parts, usage(64), DONE)

    record = ask(sse_server.url, endpoint="chat")

    assert record.error is None
    assert record.ttft_s is not None
    assert record.text == "hmm "
    assert record.output_tokens == 64


def test_client_tool_call_counts_as_content_for_ttft(sse_server: SseServer) -> None:
    call = {"index": 0, "function": {"name": "look", "arguments": "{}"}}
    answer(sse_server, chat({"tool_calls": [call]}), chat({}, "tool_calls"), usage(3), DONE)

    record = ask(sse_server.url, endpoint="chat")

    assert record.ttft_s is not None
    assert record.finish_reason == "tool_calls"


def test_client_early_stop_keeps_actual_tokens_and_reason(sse_server: SseServer) -> None:
    answer(sse_server, text("short", "stop"), usage(3), DONE)

    record = ask(sse_server.url)

    assert (record.output_tokens, record.finish_reason) == (3, "stop")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "max_tokens too large", "code": 400}}', "max_tokens too large"),
        (b'{"object": "error", "message": "no such model"}', "no such model"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"error": "busy"}', "busy"),
        (b"<html>Bad Gateway</html>", "Bad Gateway"),
        (b"", "no body"),
        (b"\xff\xfe", "HTTP 503"),
        (b"[1]", "[1]"),
    ],
)
def test_client_http_error_carries_the_message_of_its_body(
    sse_server: SseServer, body: bytes, message: str
) -> None:
    answer(sse_server, body, status=503)

    record = ask(sse_server.url)

    assert record.error is not None
    assert record.error.startswith("HTTP 503: ")
    assert message in record.error
    assert record.e2e_s is None


def test_client_long_error_is_shortened(sse_server: SseServer) -> None:
    answer(sse_server, b"x" * 50_000, status=500)

    error = ask(sse_server.url).error

    assert error is not None
    assert len(error) <= 500


def test_client_error_event_inside_a_stream_is_an_error(sse_server: SseServer) -> None:
    answer(sse_server, text("a"), event({"error": {"message": "EngineDeadError"}}), DONE)

    record = ask(sse_server.url)

    assert record.error == "EngineDeadError"
    assert record.ttft_s is not None


def test_client_reset_before_the_answer_is_recorded(sse_server: SseServer) -> None:
    answer(sse_server, Act.RESET)

    record = ask(sse_server.url)

    assert record.error is not None
    assert record.ttft_s is None


def test_client_reset_in_the_answer_keeps_what_arrived(sse_server: SseServer) -> None:
    answer(sse_server, text("a"), usage(1), Act.RESET)

    record = ask(sse_server.url)

    assert record.error is not None
    assert record.e2e_s is None


def test_client_nobody_listens_is_recorded() -> None:
    record = ask(f"http://127.0.0.1:{free_port()}")

    assert record.error is not None
    assert "Connect" in record.error


@pytest.mark.parametrize("parts", [(Act.HANG,), (text("a"), Act.HANG)])
def test_client_hanging_answer_ends_at_the_timeout(
    sse_server: SseServer, parts: tuple[bytes | Act, ...]
) -> None:
    answer(sse_server, *parts)

    record = ask(sse_server.url, timeout_s=0.3)

    assert record.error == "no complete answer within 0.3 s"


@pytest.mark.parametrize(
    "part",
    [
        b"data: {oops\n\n",
        b"data: [1, 2]\n\n",
        b'data: {"choices": ["x"]}\n\n',
        b'data: {"choices": 3}\n\n',
        b"data: \xff\n\n",
    ],
)
def test_client_broken_event_is_recorded(sse_server: SseServer, part: bytes) -> None:
    answer(sse_server, text("a"), part, DONE)

    record = ask(sse_server.url)

    assert record.error is not None
    assert record.error.startswith("broken event stream")


def test_client_answer_of_nothing_is_an_error(sse_server: SseServer) -> None:
    answer(sse_server, DONE)

    assert ask(sse_server.url).error == "the answer has neither text nor usage"


def test_client_empty_text_with_usage_is_a_success(sse_server: SseServer) -> None:
    answer(sse_server, chat({}, "stop"), usage(12), DONE)

    record = ask(sse_server.url, endpoint="chat")

    assert (record.error, record.output_tokens, record.ttft_s) == (None, 12, None)


def test_client_times_count_from_the_start_of_the_request(sse_server: SseServer) -> None:
    ticks = itertools.count(100.0, 0.5)
    record = ask(sse_server.url, clock=lambda: next(ticks))

    assert record.started_s == 100.0
    assert record.ttft_s is not None
    assert record.e2e_s is not None
    assert 0 < record.ttft_s <= record.e2e_s
    assert record.chunk_times_s == tuple(sorted(record.chunk_times_s))
    assert record.tpot_s == pytest.approx((record.e2e_s - record.ttft_s) / 7)
