from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.load.sse import MAX_EVENT_BYTES, SseDecoder

STREAM = (
    "\ufeff: keep-alive\n\n"
    'data: {"text": "na\u00efve \u2603"}\n\n'
    "event: message\r\nid: 7\r\ndata: two\r\ndata: lines\r\n\r\n"
    "\n\n"
    "data:no space\n\n"
    "data: cr\rdata: only\r\r: ping\r\r"
    "data: mixed\r\ndata\ndata: ends\r\r\n"
    "data:  two spaces\n\n"
    "data: [DONE]\n\n"
).encode()
EVENTS = [
    '{"text": "na\u00efve \u2603"}',
    "two\nlines",
    "no space",
    "cr\nonly",
    "mixed\n\nends",
    " two spaces",
    "[DONE]",
]


def decode(reads: list[bytes]) -> list[str]:
    decoder = SseDecoder()
    events = [event for read in reads for event in decoder.feed(read)]
    return events + decoder.finish()


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=40))
def test_decoder_any_split_of_the_reads_gives_the_same_events(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    reads = [STREAM[a:b] for a, b in itertools.pairwise(edges)]

    assert decode(reads) == EVENTS


def test_decoder_byte_by_byte_keeps_split_characters_whole() -> None:
    assert decode([bytes([byte]) for byte in STREAM]) == EVENTS


def test_decoder_event_without_last_blank_line_counts() -> None:
    assert decode([b"data: last"]) == ["last"]


def test_decoder_comments_only_give_no_event() -> None:
    assert decode([b": ping\n\n: ping\n\n"]) == []


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_decoder_any_line_end_split_anywhere_is_one_end(end: bytes) -> None:
    stream = b"data: a" + end + b"data: b" + end + end + b"data: c" + end + end

    for cut in range(len(stream) + 1):
        assert decode([stream[:cut], stream[cut:]]) == ["a\nb", "c"]


def test_decoder_fields_that_only_look_like_data_are_dropped() -> None:
    assert decode([b"database: 1\n\ndat: 2\n\nretry: 3\nid: 4\n\n"]) == []


def test_decoder_line_separators_of_unicode_end_no_line() -> None:
    assert decode(["data: a\u2028b\u0085c\x0bd\n\n".encode()]) == ["a\u2028b\u0085c\x0bd"]


def test_decoder_line_without_end_is_refused_before_it_fills_the_memory() -> None:
    decoder = SseDecoder()
    read = b"x" * (1 << 20)

    def feed() -> None:
        for _ in range(2 * MAX_EVENT_BYTES // len(read)):
            decoder.feed(read)

    with pytest.raises(ValueError, match="a line of more than"):
        feed()


def test_decoder_event_without_end_is_refused_before_it_fills_the_memory() -> None:
    decoder = SseDecoder()
    read = b"data: " + b"x" * (1 << 20) + b"\n"

    def feed() -> None:
        for _ in range(2 * MAX_EVENT_BYTES // len(read)):
            decoder.feed(read)

    with pytest.raises(ValueError, match="an event of more than"):
        feed()


def test_decoder_event_of_empty_data_lines_without_end_is_refused() -> None:
    decoder = SseDecoder()
    read = b"data\n" * (1 << 18)

    def feed() -> None:
        for _ in range(2 * MAX_EVENT_BYTES // len(read)):
            decoder.feed(read)

    with pytest.raises(ValueError, match="an event of more than"):
        feed()


ENDLESS_LINE = b"x" * (MAX_EVENT_BYTES + 1) + b"\n"
ENDLESS_EVENT = (b"data: " + b"x" * (MAX_EVENT_BYTES // 2) + b"\n") * 2 + b"\n"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (b"data: \xff\n\n", "invalid start byte"),
        (ENDLESS_LINE, "a line of more than"),
        (ENDLESS_EVENT, "an event of more than"),
        (b": \xff\n" + ENDLESS_LINE, "invalid start byte"),
        (ENDLESS_EVENT + b": \xff\n", "an event of more than"),
    ],
    ids=("utf-8", "line", "event", "utf-8 first", "event first"),
)
@pytest.mark.parametrize("size", [1 << 16, 1 << 30], ids=("reads", "one read"))
def test_decoder_fault_comes_behind_the_events_in_front_of_it_whatever_the_reads(
    size: int, fault: bytes, words: str
) -> None:
    stream = b"data: a\n\ndata: [DONE]\n\n" + fault + b"data: b\n\n"
    decoder = SseDecoder()
    events: list[str] = []

    def feed() -> None:
        for at in range(0, len(stream), size):
            events.extend(decoder.feed(stream[at : at + size]))
            decoder.check()

    with pytest.raises(ValueError, match=words):
        feed()
    assert events == ["a", "[DONE]"]
    for later in (lambda: decoder.feed(b"data: c\n\n"), decoder.finish, decoder.check):
        with pytest.raises(ValueError, match=words):
            later()


def test_decoder_many_events_in_one_read_all_count() -> None:
    assert len(decode([b"data: x\n\n" * 100_000])) == 100_000


def test_decoder_broken_utf8_raises() -> None:
    with pytest.raises(UnicodeDecodeError):
        decode([b"data: \xff\n\n"])
