"""Whatever JSON a server sends, an answer is a record or broken, and nothing else."""

from __future__ import annotations

import itertools
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.sampling import Shaping
from orchestrator.load.answer import Answer, error_message
from orchestrator.load.call import Call, Sampling
from orchestrator.load.sse import SseDecoder

CALL = Call(
    request_id="r",
    prompt_id="p",
    prompt="def f():",
    endpoint="chat",
    model="m",
    sampling=Sampling(
        temperature=0.7,
        shaping=Shaping(top_p=0.9, top_k=20),
        seed=11,
        max_tokens=8,
        ignore_eos=True,
    ),
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(), max_size=5),
    st.sampled_from(["\ud83d", "\udc0d", "stop", "abort"]),
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


def thing(*keys: str, inner: st.SearchStrategy[Any] = ANYTHING) -> st.SearchStrategy[Any]:
    """Return objects with some of the keys, or anything else in their place."""
    objects = st.fixed_dictionaries({}, optional=dict.fromkeys(keys, inner))
    return objects | ANYTHING


DELTAS = thing("content", "reasoning", "reasoning_content", "tool_calls", "refusal")
CHOICES = st.fixed_dictionaries(
    {},
    optional={
        "text": ANYTHING,
        "delta": DELTAS,
        "finish_reason": ANYTHING,
        "token_ids": ANYTHING,
    },
)
EVENTS = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(CHOICES | ANYTHING, max_size=2) | ANYTHING,
        "usage": thing("completion_tokens", "prompt_tokens", "prompt_tokens_details"),
        "timings": thing("predicted_n", "prompt_n", "cache_n"),
        "error": st.none() | ANYTHING,
        "object": ANYTHING,
    },
)


@given(events=st.lists(EVENTS, max_size=6))
def test_answer_of_any_json_is_a_record_or_broken(events: list[dict[str, Any]]) -> None:
    answer = Answer(started_s=1.0)
    decoder = SseDecoder()
    for now_s, event in enumerate(events, start=2):
        try:
            answer.take(decoder.feed(b"data: " + json.dumps(event).encode() + b"\n\n"), now_s)
        except ValueError:
            break
    answer.close("text/event-stream")

    record = answer.record(CALL, origin_s=0.0, ended_s=1.0)

    assert (record.fault is None) == (record.error is None)
    assert (record.e2e_s is None) == (record.fault is not None)
    assert record.ttft_s == (record.chunk_times_s[0] if record.chunk_times_s else None)
    if record.chunk_tokens is not None:
        assert len(record.chunk_tokens) == len(record.chunk_times_s)
        assert all(a <= b for a, b in itertools.pairwise(record.chunk_tokens))
        assert record.chunk_tokens[0] >= 1
    for text in (record.text, record.error or "", record.finish_reason or ""):
        assert len(text.encode()) >= len(text)


@given(reads=st.lists(st.binary(max_size=20), max_size=10))
def test_decoder_of_any_bytes_gives_events_or_a_value_error(reads: list[bytes]) -> None:
    decoder = SseDecoder()
    try:
        events = [event for read in reads for event in decoder.feed(read)]
    except ValueError:
        return
    assert all(isinstance(event, str) for event in events)


@given(body=ANYTHING)
def test_error_message_of_any_json_is_text(body: object) -> None:
    assert error_message(json.dumps(body))
