"""Event streams: random bytes in random reads, and answers whose numbers are known."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import cast
from unittest import mock

import aiohttp

from infra.fuzz.target import Target
from orchestrator.canaries.reply import parse_reply
from orchestrator.canaries.wire import Response
from orchestrator.core.requests import RequestRecord, TokenSource
from orchestrator.core.sampling import Shaping
from orchestrator.load import sse
from orchestrator.load.answer import Answer
from orchestrator.load.call import Call, Sampling
from orchestrator.load.client import SseClient
from orchestrator.load.sse import SseDecoder

LIMIT = 700
"""Stands for ``MAX_EVENT_BYTES``, so that inputs of some hundred bytes reach it."""

_ENDS = (b"\n", b"\r\n", b"\r")
_PIECES = (
    b"data: ", b"data:", b"data", b"data\n", b"data: [DONE]\n\n", b"data:[DONE]\r\r", b"\n", b"\r",
    b"\r\n", b"\n\n", b"\r\n\r\n", b": ping\n\n", b":\n", b"event: error\n", b"id: 7\r\n",
    b"retry: 9\n", b"dat: 1\n", b"\xef\xbb\xbf", b"\xef\xbb", b"\xff", b"\xe2\x98", b"\xc3\xa9",
    b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\x00", b"\xc2\x85", b"\xe2\x80\xa8", b" ", b"[", b"{",
    b'{"choices":[{"text":"a"}]}', b'{"choices":[{"delta":{"content":"b"},"finish_reason":null}]}',
    b'{"choices":[{"text":"\\ud83d","finish_reason":"stop"}],"usage":{"completion_tokens":3}}',
    b'{"usage":{"completion_tokens":-1,"prompt_tokens":1e2}}', b'{"usage":{"completion_tokens":7}}',
    b'{"choices":[{"text":"c","token_ids":[1,2]}]}', b'{"timings":{"predicted_n":5}}',
    b'{"usage":{"completion_tokens":true}}', b'{"usage":{"completion_tokens":NaN}}',
    b'{"error":{"message":"no"}}', b'{"choices":"x"}', b'{"choices":[3]}', b'{"choices":[]}',
    b'{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}}]}', b"nul",
    b'{"choices":[{"delta":{"tool_calls":[{"index":[]}]}}]}', b"x" * 300, b'{"usage":[1]}',
)  # fmt: skip
_DEEP = (1, 30, 400, 900, 970, 985, 995, 1_000, 5_000)
"""Depths of nested JSON, around what Python's own reader takes."""
CALL = Call(
    request_id="r",
    prompt_id="p",
    prompt="",
    endpoint="completions",
    model="m",
    sampling=Sampling(temperature=0.0, shaping=Shaping(), seed=0, max_tokens=9, ignore_eos=False),
)


def bytes_target() -> Target:
    """Return random bytes in random reads beside one read and beside a plain reading."""
    return Target(name="sse bytes", make=_make_bytes, check=_check_bytes)


def answers_target() -> Target:
    """Return answers whose texts and numbers are known, written in any legal way."""
    return Target(name="sse answers", make=_make_answer, check=_check_answer)


def plain_events(stream: bytes) -> tuple[list[str], bool]:
    """Return the events of a whole stream, and whether something in it is wrong.

    The standard's steps one by one, without any regard for speed or reads.
    """
    text = stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n") + b"\n\n"
    events: list[str] = []
    data: list[str] = []
    size = 0
    for number, raw in enumerate(text.split(b"\n")[:-1]):
        if len(raw) > LIMIT:
            return events, True
        try:
            line = raw.removeprefix(b"\xef\xbb\xbf" if number == 0 else b"").decode("utf-8")
        except UnicodeDecodeError:
            return events, True
        name, _, value = line.partition(":")
        if name == "data":
            data.append(value.removeprefix(" "))
            size += len(line) + 1
            if size > LIMIT:
                return events, True
        if not line:
            if data:
                events.append("\n".join(data))
            data, size = [], 0
    return events, False


@dataclass(frozen=True, slots=True)
class _Stream:
    whole: bytes
    cuts: tuple[int, ...]

    @property
    def reads(self) -> list[bytes]:
        edges = (0, *self.cuts, len(self.whole))
        return [self.whole[a:b] for a, b in itertools.pairwise(edges)]


def _make_bytes(source: random.Random) -> _Stream:
    kind = source.random()
    if kind < 0.01:
        stream = _deep(source)
    else:
        stream = b"".join(source.choices(_PIECES, k=source.randint(1, 16)))
    if kind > 0.8:
        stream = _damaged(source, stream)
    return _Stream(stream, _cuts(source, len(stream)))


def _deep(source: random.Random) -> bytes:
    depth = source.choice(_DEEP)
    opening, closing = source.choice(((b"[", b"]"), (b'{"a":', b"}")))
    nested = opening * depth + b"1" + closing * source.choice((depth, 0))
    around = source.choice(
        (
            (b"", b""),
            (b" ", b""),
            (b'{"error":', b"}"),
            (b'{"error":{"message":', b"}}"),
            (b'{"choices":[{"delta":{"tool_calls":', b"}}]}"),
            (b'{"choices":[{"finish_reason":', b"}]}"),
            (b'{"choices":', b"}"),
        )
    )
    return b"data: " + around[0] + nested + around[1] + b"\n\n"


def _damaged(source: random.Random, stream: bytes) -> bytes:
    damaged = bytearray(stream)
    for _ in range(source.randint(1, 3)):
        at = source.randrange(len(damaged) + 1)
        action = source.randrange(3)
        if action == 0:
            del damaged[at : at + source.randint(1, 8)]
        elif action == 1:
            damaged.insert(at, source.randrange(256))
        else:
            damaged[at : at + 1] = bytes([source.randrange(256)])
    return bytes(damaged)


def _cuts(source: random.Random, length: int) -> tuple[int, ...]:
    if source.random() < 0.1:
        return tuple(range(1, length))
    return tuple(sorted(source.randint(0, length) for _ in range(source.randint(1, 6))))


def _check_bytes(stream: _Stream) -> str | None:
    limit = LIMIT if len(stream.whole) < 4_000 else sse.MAX_EVENT_BYTES
    with mock.patch.object(sse, "MAX_EVENT_BYTES", limit):
        split, whole = _events(stream.reads), _events([stream.whole])
        if split != whole:
            return f"in reads {split!r:.120}, in one {whole!r:.120}"
        if limit == LIMIT and whole != (plain := plain_events(stream.whole)):
            return f"read {whole!r:.120}, by the standard {plain!r:.120}"
        in_reads, in_one = _record(stream.reads), _record([stream.whole])
        if in_reads != in_one:
            return f"in reads {in_reads!r:.240}, in one {in_one!r:.240}"
        parse_reply(_response(stream.whole))
    return _impossible(in_one)


def _response(body: bytes) -> Response:
    return Response(status=200, content_type="text/event-stream", body=body)


def _impossible(record: RequestRecord) -> str | None:
    if record.output_tokens is not None and record.output_tokens < 0:
        return f"{record.output_tokens} tokens"
    if (record.output_tokens is None) != (record.token_source is TokenSource.NONE):
        return f"{record.output_tokens} tokens of {record.token_source}"
    record.text.encode()
    (record.error or "").encode()
    return None


def _events(reads: Iterable[bytes]) -> tuple[list[str], bool]:
    events: list[str] = []
    decoder = SseDecoder()
    try:
        for read in reads:
            events += decoder.feed(read)
        events += decoder.finish()
    except ValueError:
        return events, True
    return events, False


def _record(reads: Iterable[bytes]) -> RequestRecord:
    """Return what the client makes of these reads, on a clock that stands still."""
    client = SseClient("http://engine", timeout_s=1.0, clock=lambda: 1.0, origin_s=0.0)
    answer = Answer(started_s=1.0)
    reading = client._read(cast("aiohttp.ClientResponse", _Body(reads)), answer)  # noqa: SLF001  the loop that real answers go through
    _loop().run_until_complete(reading)
    return answer.record(CALL, origin_s=0.0, ended_s=1.0)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return one loop for all inputs: a new one each would take longer than they do."""
    return asyncio.new_event_loop()


class _Body:
    """An answer of HTTP whose reads are all there at once."""

    content_type = "text/event-stream"
    connection = None

    def __init__(self, reads: Iterable[bytes]) -> None:
        # An empty read is the end of a body, and no socket gives one before.
        self._reads = [read for read in reads if read]
        self.content = self

    def at_eof(self) -> bool:
        return True

    async def readany(self) -> bytes:
        return self._reads.pop(0) if self._reads else b""


@dataclass(frozen=True, slots=True)
class _Known:
    """An answer as it was meant."""

    stream: _Stream
    text: str
    tokens: int | None
    prompt_tokens: int | None
    finish_reason: str


def _make_answer(source: random.Random) -> _Known:
    """Draw an answer and write it with any line ends, comments, fields and borders of reads."""
    pieces = [_text(source) for _ in range(source.randint(1, 5))]
    reason = source.choice(("stop", "length"))
    counts = source.choice((None, "usage", "continuous", "ids"))
    tokens, prompt = None, None
    items: list[dict[str, object]] = []
    for number, piece in enumerate(pieces, start=1):
        choice: dict[str, object] = {"index": 0, "finish_reason": None}
        choice.update(_spoken(source, piece))
        item: dict[str, object] = {"choices": [choice]}
        if counts == "continuous":
            tokens = number * source.randint(1, 3) + (tokens or 0)
            item["usage"] = {"completion_tokens": tokens}
        elif counts == "ids":
            ids = list(range(source.randint(1, 4)))
            tokens = len(ids) + (tokens or 0)
            choice["token_ids"] = ids
        if number == len(pieces):
            choice["finish_reason"] = reason
        items.append(item)
    if counts == "usage":
        tokens, prompt = source.choice((0, 1, 7, 2**40)), source.randint(0, 9)
        items.append({"choices": [], "usage": _usage(source, tokens, prompt)})
    stream = b"".join(_written(source, item) for item in items)
    if source.random() < 0.8:
        stream += _event(source, [b"data: [DONE]"])
        # What follows the end of an answer is no part of it, whatever it is.
        stream += b"".join(source.choices(_PIECES, k=source.randint(0, 2)))
    bom = b"\xef\xbb\xbf" if source.random() < 0.1 else b""
    whole = bom + stream
    return _Known(
        _Stream(whole, _cuts(source, len(whole))), "".join(pieces), tokens, prompt, reason
    )


def _text(source: random.Random) -> str:
    characters = ("a", " ", "\n", "\u00e9", "\u2028", "\u0085", '"', "\\", "\U0001f600", "data: ")
    return "".join(source.choices(characters, k=source.randint(1, 6)))


def _spoken(source: random.Random, piece: str) -> dict[str, object]:
    key = source.choice(("text", "content", "reasoning", "reasoning_content"))
    return {"text": piece} if key == "text" else {"delta": {key: piece}}


def _usage(source: random.Random, tokens: int, prompt: int) -> dict[str, object]:
    usage: dict[str, object] = {"completion_tokens": tokens, "prompt_tokens": prompt}
    if source.random() < 0.5:
        usage["prompt_tokens_details"] = source.choice((None, {}, {"cached_tokens": None}))
    return usage


def _written(source: random.Random, item: dict[str, object]) -> bytes:
    text = json.dumps(item, ensure_ascii=source.random() < 0.5)
    parts = [text]
    if source.random() < 0.1:
        # Between two values a line break is white space in JSON.
        parts = text.split(', "choices"' if "usage" in text else ', "index"', 1)
        parts = [parts[0] + ",", text.removeprefix(parts[0] + ", ")] if len(parts) > 1 else [text]
    lines = [source.choice((b"data: ", b"data:")) + part.encode() for part in parts]
    if source.random() < 0.3:
        lines.insert(0, source.choice((b": ping", b"event: m", b"id", b"retry: 1")))
    return _event(source, lines)


def _event(source: random.Random, lines: Iterable[bytes]) -> bytes:
    # One end for all: a CR and the LF of an empty line would make one end of the two.
    end = source.choice(_ENDS)
    return b"".join(line + end for line in (*lines, b""))


def _check_answer(known: _Known) -> str | None:
    record = _record(known.stream.reads)
    found = (record.fault, record.text, record.output_tokens, record.prompt_tokens)
    meant = (None, known.text, known.tokens, known.prompt_tokens)
    if found != meant or record.finish_reason != known.finish_reason:
        return f"meant {meant!r:.200}, read {found!r:.200} ({record.error})"
    return _impossible(record)
