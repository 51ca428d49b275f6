"""The router's benchmark: its reading of HTTP's framing, and its figures."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.bench.router.figures import Round, added, cell_lines, is_clean, passage, sequence
from infra.bench.router.wire import (
    Answer,
    Connection,
    Framed,
    WireError,
    request_bytes,
    unframed,
)
from orchestrator.fakes.openai import EngineSettings, engine_server, serving

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(chunks: list[bytes]) -> bytes:
    framed = (b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return HEAD + b"".join(framed) + b"0\r\n\r\n"


def event(text: str, reason: str | None = None) -> bytes:
    return (
        f'data: {{"id": "{id(text)}", "choices": [{{"text": "{text}", "finish_reason": '
        f"{'null' if reason is None else repr(reason).replace(chr(39), chr(34))}}}]}}\n\n"
    ).encode()


DONE = b"data: [DONE]\n\n"


def answer(*chunks: bytes, ttft_s: float = 0.01) -> Answer:
    framed = Framed(status=200, chunks=chunks, read_of=tuple(range(len(chunks))))
    return Answer(framed=framed, ttft_s=ttft_s)


@given(
    st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=8),
    st.lists(st.integers(1, 30), min_size=1),
)
def test_chunks_are_found_however_tcp_cuts_them(chunks: list[bytes], sizes: list[int]) -> None:
    whole, reads = chunked(chunks), []
    while whole:
        size = sizes[len(reads) % len(sizes)]
        reads.append(whole[:size])
        whole = whole[size:]
    found = unframed(reads)
    assert list(found.chunks) == chunks
    assert list(found.read_of) == sorted(found.read_of)
    assert len(unframed([b"".join(reads)]).read_of) == len(chunks)
    assert set(unframed([b"".join(reads)]).read_of) == {0}


@pytest.mark.parametrize(
    "whole", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", chunked([b"abc"])[:-9]]
)
def test_answer_that_is_not_whole_is_an_error(whole: bytes) -> None:
    with pytest.raises(WireError):
        unframed([whole])


def test_merged_split_and_changed_chunks_are_told_apart() -> None:
    own = (event("a"), event("b"), event("c", "stop"), DONE)
    known = [sequence(own)]

    assert passage([answer(*own)], known).differing == 0
    merged = passage([answer(own[0], own[1] + own[2], own[3])], known)
    assert (merged.merged, merged.split, merged.differing) == (1, 0, 1)
    split = passage([answer(own[0][:9], own[0][9:], *own[1:])], known)
    assert (split.merged, split.split, split.differing) == (0, 2, 1)
    lost = passage([answer(own[0], *own[2:])], known)
    assert (lost.merged, lost.split, lost.differing) == (0, 0, 1)
    swapped = passage([answer(own[1], own[0], *own[2:])], known)
    assert swapped.differing == 1


def test_other_ids_are_no_difference() -> None:
    first, second = event("a"), event("a").replace(b'"id": "', b'"id": "0')
    assert sequence([first, DONE]) == sequence([second, DONE])


def test_run_with_a_merged_chunk_is_not_clean() -> None:
    own = (event("a"), DONE)
    good = Round(direct=(answer(*own),), routed=(answer(*own),))
    bad = Round(direct=(answer(*own),), routed=(answer(own[0] + own[1]),))
    assert is_clean([good])
    assert not is_clean([good, bad])


def test_direct_way_has_no_answers_that_differ_for_it_is_what_is_compared_with() -> None:
    own = (event("a"), DONE)
    bad = Round(direct=(answer(*own),), routed=(answer(own[0] + own[1]),))
    rows = [
        line.split(" | ") for line in cell_lines("a cell", {"way": [bad]}) if line.startswith("|")
    ]
    column = rows[0].index("answers that differ")
    assert [row[column] for row in rows[2:]] == ["-", "1"]


@settings(max_examples=30)
@given(st.lists(st.floats(0.001, 0.1), min_size=2, max_size=6), st.floats(0, 0.01))
def test_added_time_is_that_which_was_added(times: list[float], more: float) -> None:
    rounds = [
        Round(direct=(answer(ttft_s=time_s),), routed=(answer(ttft_s=time_s + more),))
        for time_s in times
    ]
    value, low, high = added(rounds, 0.5, num_resamples=20)
    assert value == pytest.approx(more, abs=1e-9)
    assert low == pytest.approx(more, abs=1e-9)
    assert high == pytest.approx(more, abs=1e-9)


def test_connection_reads_a_real_server_twice() -> None:
    body = {"prompt": "x", "max_tokens": 12, "stream": True}

    async def run(port: int) -> list[Answer]:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, "127.0.0.1", port)
        head = request_bytes("/v1/completions", body, {})
        answers = [await connection.ask(head) for _ in range(2)]
        connection.close()
        await asyncio.sleep(0)
        return answers

    with serving(engine_server(EngineSettings(ttft_s=0.0, gap_s=0.0))) as server:
        first, second = asyncio.run(run(int(server.url.rpartition(":")[2])))
    assert sequence(first.framed.chunks) == sequence(second.framed.chunks)
    assert first.framed.chunks[-1].endswith(DONE)
    assert first.ttft_s > 0
