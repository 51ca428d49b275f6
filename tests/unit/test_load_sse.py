from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.load.sse import SseDecoder

STREAM = (
    ": keep-alive\n\n"
    'data: {"text": "na\u00efve \u2603"}\n\n'
    "event: message\r\nid: 7\r\ndata: two\r\ndata: lines\r\n\r\n"
    "\n\n"
    "data:no space\n\n"
    "data: [DONE]\n\n"
).encode()
EVENTS = ['{"text": "na\u00efve \u2603"}', "two\nlines", "no space", "[DONE]"]


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


def test_decoder_broken_utf8_raises() -> None:
    with pytest.raises(UnicodeDecodeError):
        decode([b"data: \xff\n\n"])
