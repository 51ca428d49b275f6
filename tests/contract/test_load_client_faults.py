"""The SSE client against servers that misbehave, one way a test."""

from __future__ import annotations

import asyncio
import gzip
import time
from dataclasses import replace

import pytest
from client_calls import CALL, CHAT, SAMPLING, answer, ask, ask_all

from orchestrator.core.requests import RequestFault, RequestRecord
from orchestrator.core.sampling import Shaping
from orchestrator.errors import ConfigError
from orchestrator.fakes.openai import (
    DONE,
    Act,
    EngineSettings,
    Part,
    Script,
    SseServer,
    engine_server,
    event,
    one_fault,
    refused,
    serving,
    text,
    usage,
)
from orchestrator.load.client import SseClient
from serve_apps.engine.sockets import free_port


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

    assert record.fault is RequestFault.REFUSED
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

    assert record.fault is RequestFault.BROKEN
    assert record.error == "EngineDeadError"
    assert record.ttft_s is not None


def test_client_reset_before_the_answer_is_recorded(sse_server: SseServer) -> None:
    answer(sse_server, Act.RESET)

    record = ask(sse_server.url)

    assert record.fault is RequestFault.CONNECTION
    assert record.ttft_s is None


def test_client_reset_in_the_answer_keeps_what_arrived(sse_server: SseServer) -> None:
    answer(sse_server, text("a"), usage(1), Act.RESET)

    record = ask(sse_server.url)

    assert record.fault is RequestFault.CONNECTION
    assert record.text == "a"
    assert record.output_tokens == 1
    assert record.e2e_s is None


def test_client_nobody_listens_is_recorded() -> None:
    record = ask(f"http://127.0.0.1:{free_port()}")

    assert record.fault is RequestFault.CONNECTION
    assert record.error is not None
    assert "Connect" in record.error


@pytest.mark.parametrize("parts", [(Act.HANG,), (text("a"), Act.HANG)])
def test_client_hanging_answer_ends_at_the_timeout(
    sse_server: SseServer, parts: tuple[Part, ...]
) -> None:
    answer(sse_server, *parts)

    record = ask(sse_server.url, timeout_s=0.3)

    assert record.fault is RequestFault.STALLED
    assert record.error == "no complete answer within 0.3 s"


@pytest.mark.parametrize(
    "part",
    [
        b"data: {oops\n\n",
        b"data: [1, 2]\n\n",
        b'data: {"choices": ["x"]}\n\n',
        b'data: {"choices": 3}\n\n',
        b"data: \xff\n\n",
        b"data: " + b'{"a":' * 100_000 + b"\n\n",
        b'data: {"choices": [{"text": ' + b"[" * 100_000 + b"\n\n",
        b'data: {"usage": {"completion_tokens": ' + b"9" * 5000 + b"}}\n\n",
    ],
)
def test_client_broken_event_is_recorded(sse_server: SseServer, part: bytes) -> None:
    answer(sse_server, text("a"), part, DONE)

    record = ask(sse_server.url)

    assert record.fault is RequestFault.BROKEN
    assert record.error is not None
    assert record.error.startswith("broken event stream")
    assert record.e2e_s is None


def test_client_answer_of_nothing_is_an_error(sse_server: SseServer) -> None:
    answer(sse_server, DONE)

    assert ask(sse_server.url).error == "the answer has neither text nor usage"


@pytest.mark.parametrize("parts", [(), (text("a"),), (text("a"), text("b"), text("c"))])
def test_client_stream_that_stops_sending_is_stalled(
    sse_server: SseServer, parts: tuple[bytes, ...]
) -> None:
    answer(sse_server, *parts, Act.HANG)

    record = ask(sse_server.url, stall_timeout_s=0.3)

    assert record.fault is RequestFault.STALLED
    assert record.error == f"no byte for 0.3 s after {len(parts)} chunks"
    assert record.e2e_s is None


def test_client_failed_request_keeps_the_tokens_that_had_arrived(sse_server: SseServer) -> None:
    chunks = [
        event({"choices": [{"text": "x"}], "usage": {"completion_tokens": count}})
        for count in (4, 9)
    ]
    answer(sse_server, *chunks, Act.HANG)

    record = ask(sse_server.url, stall_timeout_s=0.3)

    assert record.chunk_tokens == (4, 9)
    assert record.output_tokens == 9
    assert record.max_tokens == 8


def test_client_body_that_is_closed_midway_is_broken(sse_server: SseServer) -> None:
    answer(sse_server, text("a"), Act.CLOSE)

    record = ask(sse_server.url)

    assert record.fault is RequestFault.BROKEN
    assert record.error is not None
    assert record.error.startswith("the stream ended before the answer did")


def test_client_close_after_done_does_not_matter(sse_server: SseServer) -> None:
    answer(sse_server, text("a", "stop"), usage(1), DONE, Act.RESET)

    assert ask(sse_server.url).fault is None


def test_client_body_that_stays_open_after_done_is_not_waited_for(sse_server: SseServer) -> None:
    answer(sse_server, text("a", "stop"), usage(1), DONE, Act.HANG)

    assert ask(sse_server.url, timeout_s=5.0, stall_timeout_s=5.0).fault is None


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_client_answer_that_the_engine_gave_up_is_broken(
    sse_server: SseServer, reason: str
) -> None:
    answer(sse_server, text("a", reason), usage(1), DONE)

    record = ask(sse_server.url)

    assert record.fault is RequestFault.BROKEN
    assert record.finish_reason == reason


def test_client_one_reset_among_sixteen_hurts_one(sse_server: SseServer) -> None:
    sse_server.behaviour = one_fault(7, Script(parts=(text("a"), Act.RESET)))

    records = ask_all(sse_server.url, [CALL] * 16)

    assert sorted(str(record.fault) for record in records) == ["None"] * 15 + ["connection"]


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        ("1.5", 1.5),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("soon", None),
        ("-3", None),
        ("inf", None),
        ("nan", None),
    ],
)
def test_client_refusal_carries_what_the_server_asks_to_wait(
    sse_server: SseServer, status: int, header: str | None, seconds: float | None
) -> None:
    sse_server.behaviour = lambda _number, _body: refused(status, retry_after=header)

    record = ask(sse_server.url)

    assert record.fault is RequestFault.REFUSED
    assert record.retry_after_s == seconds


def test_client_retry_after_date_counts_from_the_date_of_the_server(sse_server: SseServer) -> None:
    headers = {
        "Date": "Sun, 06 Nov 1994 08:49:37 GMT",
        "Retry-After": "Sun, 06 Nov 1994 08:51:07 GMT",
    }
    sse_server.behaviour = lambda _number, _body: Script(status=503, headers=headers)

    assert ask(sse_server.url).retry_after_s == 90.0


def test_client_redirect_is_not_followed(sse_server: SseServer) -> None:
    elsewhere = {"Location": sse_server.url + "/v1/chat/completions"}
    sse_server.behaviour = lambda _number, _body: Script(status=307, headers=elsewhere)

    record = ask(sse_server.url)

    assert record.fault is RequestFault.HTTP
    assert len(sse_server.bodies) == 1


def test_client_strict_server_names_the_parameter_that_it_does_not_know() -> None:
    with serving(engine_server(EngineSettings(is_strict=True))) as server:
        record = ask(server.url)

        assert record.fault is RequestFault.HTTP
        assert record.error == "HTTP 400: Unrecognized request argument supplied: ignore_eos"


def test_client_openai_dialect_satisfies_a_strict_server() -> None:
    sampling = replace(SAMPLING, shaping=Shaping(top_p=0.9), ignore_eos=False)
    with serving(engine_server(EngineSettings(is_strict=True))) as server:
        calls = [replace(call, dialect="openai", sampling=sampling) for call in (CALL, CHAT)]
        records = ask_all(server.url, calls)

        assert [record.output_tokens for record in records] == [8, 8]
        assert [record.chunk_tokens for record in records] == [None, None]
        assert server.bodies[0]["stream_options"] == {"include_usage": True}


def test_client_endless_line_is_broken_and_does_not_fill_the_memory(sse_server: SseServer) -> None:
    answer(sse_server, *[b"data: " + b"x" * (1 << 20)] * 12, Act.HANG)

    record = ask(sse_server.url)

    assert record.fault is RequestFault.BROKEN
    assert record.error is not None
    assert "a line of more than" in record.error


def test_client_endless_error_body_is_cut(sse_server: SseServer) -> None:
    answer(sse_server, *[b"x" * (1 << 20)] * 4, Act.HANG, status=500)

    assert ask(sse_server.url).fault is RequestFault.HTTP


def test_client_compressed_answer_is_read(sse_server: SseServer) -> None:
    data = gzip.compress(text("a", "stop") + usage(3) + DONE)
    script = Script(parts=(data,), headers={"Content-Encoding": "gzip"})
    sse_server.behaviour = lambda _number, _body: script

    assert ask(sse_server.url).output_tokens == 3
    assert sse_server.headers[0]["Accept-Encoding"] == "identity"


def test_client_answer_that_only_claims_to_be_compressed_is_broken(sse_server: SseServer) -> None:
    script = Script(parts=(text("a", "stop"), DONE), headers={"Content-Encoding": "gzip"})
    sse_server.behaviour = lambda _number, _body: script

    assert ask(sse_server.url).fault is RequestFault.BROKEN


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"choices": [{"text": "a"}]}', ': {"choices": [{"text": "a"}]}'),
        (b'{"error": {"message": "model is loading"}}', ": model is loading"),
        (b'{\n "message": "no\\nsuch \\u001b[31mmodel"\n}\n', r": no such \x1b[31mmodel"),
        (b"<html>\n\n  Log in first</html>", ": <html> Log in first</html>"),
        (b": keep-alive\n\n: keep-alive\n\n", ""),
        (b"\n\n", ""),
        (b"", ""),
    ],
)
def test_client_answer_without_any_event_is_broken_and_says_what_came(
    sse_server: SseServer, body: bytes, told: str
) -> None:
    """Servers answer HTTP 200 with the reason as plain JSON."""
    script = Script(parts=(body,), content_type="application/json")
    sse_server.behaviour = lambda _number, _body: script

    record = ask(sse_server.url)

    assert record.fault is RequestFault.BROKEN
    assert record.error == f"no event in an answer of application/json{told}"


def test_client_long_body_without_any_event_is_cut(sse_server: SseServer) -> None:
    script = Script(parts=(b"x" * 300_000,), content_type="text/html")
    sse_server.behaviour = lambda _number, _body: script

    error = ask(sse_server.url).error or ""

    assert error.startswith("no event in an answer of text/html: xxx")
    assert len(error) == 500


KEY = "sk-planted-0123456789"


@pytest.mark.parametrize(
    "script",
    [
        Script(status=401, parts=(f'{{"error": "bad key {KEY}"}}'.encode(),)),
        Script(status=401, parts=(f"{'x' * 485}{KEY}".encode(),)),
        Script(status=429, parts=(KEY.encode(),)),
        Script(parts=(f'{{"error": "bad key {KEY}"}}'.encode(),), content_type="text/plain"),
        Script(parts=(event({"error": {"message": f"no {KEY}"}}),)),
        Script(parts=(event(f"{KEY}"),)),
        Script(parts=(text(f"you sent {KEY}"), text("!", f"stop {KEY}"), usage(3), DONE)),
    ],
)
def test_client_key_that_the_server_repeats_is_in_no_record(
    sse_server: SseServer, script: Script
) -> None:
    sse_server.behaviour = lambda _number, _body: script

    async def run() -> RequestRecord:
        client = SseClient(
            sse_server.url, timeout_s=9.0, clock=time.monotonic, origin_s=0.0, api_key=KEY
        )
        async with client:
            return await client.complete(CALL)

    record = asyncio.run(run())

    assert sse_server.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert "sk-planted" not in repr(record)


@pytest.mark.parametrize("key", ["sk-planted\n", "sk planted", "sk-plant\u00e9d", "sk-planted\0"])
def test_client_key_that_no_header_can_hold_is_refused_unseen(key: str) -> None:
    with pytest.raises(ConfigError, match="line break") as caught:
        SseClient("http://x", timeout_s=9.0, clock=time.monotonic, origin_s=0.0, api_key=key)

    assert "plant" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_client_that_gives_up_ends_what_is_open_and_what_comes(sse_server: SseServer) -> None:
    answer(sse_server, Act.HANG)

    async def run() -> tuple[float, float, list[RequestRecord]]:
        client = SseClient(sse_server.url, timeout_s=60.0, clock=time.monotonic, origin_s=0.0)
        async with client:
            idle_s = client.silent_s()
            asking = asyncio.create_task(client.complete(CALL))
            while not sse_server.in_flight:
                await asyncio.sleep(0.001)
            silent_s = client.silent_s()
            client.give_up()
            return idle_s, silent_s, [await asking, await client.complete(CALL)]

    idle_s, silent_s, records = asyncio.run(run())

    assert idle_s == 0.0
    assert 0 < silent_s < 30.0, "silence counts from the first request on"
    assert [record.fault for record in records] == [RequestFault.STALLED] * 2
    assert all((record.error or "").startswith("given up: ") for record in records)
