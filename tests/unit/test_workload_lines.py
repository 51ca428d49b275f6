"""What a line of a workload may say, and what enters the digest."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ConfigError
from orchestrator.load.prompts import (
    UNSUPPORTED_SAMPLING,
    Prompt,
    digest_of,
    parse_item,
    parse_line,
    to_item,
)

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 2}}}

TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(str.strip)
CONTENT = TEXT | st.lists(
    st.fixed_dictionaries({"type": st.just("text"), "text": TEXT}), min_size=1, max_size=3
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": CONTENT}),
    min_size=1,
    max_size=4,
)
EXTRA = st.fixed_dictionaries(
    {},
    optional={
        "tools": st.just([TOOL]),
        "tool_choice": st.just("none"),
        "response_format": st.just({"type": "json_object"}),
        "chat_template_kwargs": st.fixed_dictionaries({"enable_thinking": st.booleans()}),
    },
)
ITEMS = st.one_of(
    st.fixed_dictionaries({"id": TEXT, "category": TEXT, "prompt": TEXT}),
    st.builds(
        lambda base, extra: {**base, **extra},
        st.fixed_dictionaries({"id": TEXT, "category": TEXT, "messages": MESSAGES}),
        EXTRA,
    ),
)


def parsed(item: object) -> Prompt:
    return parse_item(item, where="f.jsonl, line 1", default_id="1")


def chat(**fields: object) -> dict[str, object]:
    return {"messages": [USER], **fields}


@given(item=ITEMS)
def test_prompt_written_as_a_line_reads_back_the_same(item: dict[str, object]) -> None:
    prompt = parsed(item)

    line = json.dumps(to_item(prompt))

    assert parse_line(line, where="line 1", default_id="1") == prompt


@given(item=ITEMS, seed=st.integers(0, 100), ascii_only=st.booleans())
def test_digest_is_the_same_for_any_formatting(
    item: dict[str, object], seed: int, ascii_only: bool
) -> None:
    def shuffled(mapping: dict[str, object]) -> dict[str, object]:
        keys = list(mapping)
        random.Random(seed).shuffle(keys)
        return {key: mapping[key] for key in keys}

    other = shuffled(item)
    if isinstance(messages := other.get("messages"), list):
        other["messages"] = [shuffled(message) for message in messages]
    line = json.dumps(other, ensure_ascii=ascii_only, separators=(" , ", " : "))

    assert digest_of([parse_line(line, where="", default_id="1")]) == digest_of([parsed(item)])


@given(first=ITEMS, second=ITEMS)
def test_digest_differs_whenever_a_prompt_differs(
    first: dict[str, object], second: dict[str, object]
) -> None:
    one, other = parsed(first), parsed(second)

    # The order of keys below a message counts for a digest, and equality does not see it.
    is_written_alike = json.dumps(to_item(one)) == json.dumps(to_item(other))
    if digest_of([one]) == digest_of([other]):
        assert one == other
    else:
        assert not is_written_alike


@pytest.mark.parametrize(
    "changed",
    [
        chat(messages=[{"role": "system", "content": "hi"}]),
        chat(messages=[USER, USER]),
        chat(tools=[TOOL]),
        chat(response_format={"type": "json_object"}),
        chat(chat_template_kwargs={"enable_thinking": False}),
        chat(chat_template_kwargs={"enable_thinking": True}),
    ],
)
def test_digest_covers_everything_that_is_sent(changed: dict[str, object]) -> None:
    assert digest_of([parsed(changed)]) != digest_of([parsed(chat())])


def test_digest_counts_the_order_of_keys_that_a_template_writes_out() -> None:
    turned = {"type": "function", "function": {"name": "f", "parameters": {"a": 2, "b": 1}}}

    assert digest_of([parsed(chat(tools=[TOOL]))]) != digest_of([parsed(chat(tools=[turned]))])


def test_digest_of_plain_prompts_is_that_of_earlier_releases() -> None:
    prompts = [parsed({"id": "a", "category": "c", "prompt": "x"})]

    assert digest_of(prompts) == "dd69a88907a47e6656082b689daee0394738ee53007915a90bfa1d4ffd67fa5f"


def test_full_text_holds_parts_calls_reasoning_and_tools() -> None:
    prompt = parsed(
        chat(
            messages=[
                {"role": "user", "content": [{"type": "text", "text": "one"}]},
                {"role": "assistant", "reasoning": "why", "tool_calls": [{"id": "c1"}]},
                {"role": "tool", "tool_call_id": "c1", "content": "two"},
            ],
            tools=[TOOL],
        )
    )

    for text in ("one", "why", '"c1"', "two", '"parameters"'):
        assert text in prompt.full_text


@pytest.mark.parametrize("key", sorted(UNSUPPORTED_SAMPLING))
def test_line_with_unsupported_sampling_says_that_speculation_ignores_it(key: str) -> None:
    with pytest.raises(ConfigError, match=f"line 1 has {key}.*no effect while it speculates"):
        parsed(chat(**{key: 0.1}))


@pytest.mark.parametrize("key", ["temperature", "top_p", "top_k", "seed", "max_tokens", "stop"])
def test_line_with_sampling_says_where_sampling_is_set(key: str) -> None:
    with pytest.raises(ConfigError, match=f"line 1 has {key}.*set under load"):
        parsed({"prompt": "x", key: 1})


@pytest.mark.parametrize("value", ["true", "false", 1, 0, None])
def test_line_with_enable_thinking_that_is_no_boolean_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="true or false without quotes"):
        parsed(chat(chat_template_kwargs={"enable_thinking": value}))


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        ({"prompt": "x", "messages": [USER]}, "a prompt and messages"),
        ({"prompt": "x", "tools": [TOOL]}, "tools beside a plain prompt"),
        ({"prompt": "x", "promt": "y"}, "unknown key 'promt'"),
        ({"messages": []}, "no list of objects"),
        ({"messages": "hi"}, "no list of objects"),
        ({"messages": ["hi"]}, "no list of objects"),
        ({"messages": [{"role": "user"}]}, "message 1 has no content"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "the role 'robot'"),
        ({"messages": [{**USER, "api_key": "x"}]}, "unknown key 'api_key'"),
        ({"messages": [{"role": "user", "content": " "}]}, "without any text"),
        ({"messages": [{"role": "user", "content": 7}]}, "neither text"),
        ({"messages": [{"role": "user", "content": []}]}, "neither text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "neither text nor a list of text parts",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{}]}, USER]},
            "begins with a message without content",
        ),
        (chat(tools=[]), "no list of functions"),
        (chat(tools=[{"type": "function"}]), "no list of functions"),
        (chat(tool_choice="auto"), "tool_choice without tools"),
        (chat(tools=[TOOL], tool_choice="maybe"), "the tool_choice 'maybe'"),
        (chat(tools=[TOOL], tool_choice=7), "the tool_choice 7"),
        (chat(response_format="json"), "response_format without a type"),
        (chat(response_format={}), "response_format without a type"),
        (chat(chat_template_kwargs=True), "are no object"),
    ],
)
def test_line_that_says_something_wrong_is_refused_by_name(item: object, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        parsed(item)

    assert caught.value.where == "load.workload"


@pytest.mark.parametrize("line", ['{"prompt": NaN}', '{"prompt": "\\ud800"}', "[" * 100_000])
def test_line_that_cannot_be_sent_is_no_json(line: str) -> None:
    with pytest.raises(ConfigError, match="line 1 is not JSON"):
        parse_line(line, where="line 1", default_id="1")


def test_heldout_prompts_of_the_demo_are_a_workload() -> None:
    path = Path(__file__).resolve().parents[2] / "infra/tiny_models/heldout_prompts.jsonl"

    prompts = [parse_line(line, where="", default_id="") for line in path.read_text().splitlines()]

    assert len(prompts) == 128
    assert not any(prompt.messages for prompt in prompts)
