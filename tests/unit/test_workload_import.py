"""Foreign files become prompts, and what is left out is counted."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ConfigError
from orchestrator.load.prompts import Prompt, to_item
from orchestrator.load.workload_import import (
    Candidate,
    Imported,
    Limits,
    collect,
    from_openai_log,
    from_sharegpt,
    from_text_file,
    report,
)

TOOL = {"type": "function", "function": {"name": "f"}}


def user(text: object) -> dict[str, object]:
    return {"role": "user", "content": text}


def logged(*items: object, limits: Limits | None = None, category: str = "") -> Imported:
    lines = [item if isinstance(item, bytes) else json.dumps(item).encode() for item in items]
    return collect(from_openai_log(lines, category=category), limits or Limits())


def shared(*items: object, as_lines: bool = False) -> Imported:
    text = "\n".join(map(json.dumps, items)) if as_lines else json.dumps(items)
    return collect(from_sharegpt(text), Limits())


def talk(*turns: tuple[str, str]) -> dict[str, object]:
    return {"id": "x", "conversations": [{"from": a, "value": b} for a, b in turns]}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda body: body,
        lambda body: {"body": body},
        lambda body: {"request": body, "response": {"choices": []}},
        lambda body: {"request": {"body": body}},
        lambda body: {"custom_id": "r1", "method": "POST", "url": "/v1", "body": body},
    ],
)
@pytest.mark.parametrize("body", [{"prompt": "hi"}, {"messages": [user("hi")], "model": "m"}])
def test_openai_log_finds_the_body_in_every_known_form(wrap: object, body: object) -> None:
    assert callable(wrap)

    imported = logged(wrap(body))

    assert [prompt.text for prompt in imported.prompts] == ["hi"]


def test_openai_log_keeps_the_messages_of_a_conversation() -> None:
    messages = [user("one"), {"role": "assistant", "content": "two"}, user("three")]

    (prompt,) = logged({"messages": messages}).prompts

    assert list(prompt.messages) == messages
    assert prompt.category == "multi_turn"


def test_openai_log_keeps_what_changes_the_question_and_drops_the_rest() -> None:
    body = {
        "model": "m",
        "stream": True,
        "user": "u-7",
        "temperature": 0.2,
        "messages": [{**user("hi"), "annotations": [1]}],
        "tools": [TOOL],
        "tool_choice": "auto",
        "response_format": None,
        "extra_body": {"chat_template_kwargs": {"enable_thinking": False}, "top_k": 20},
    }

    imported = logged(body)

    (prompt,) = imported.prompts
    assert prompt.messages == (user("hi"),)
    assert prompt.extra == {
        "tools": [TOOL],
        "tool_choice": "auto",
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert prompt.category == "tools"
    assert imported.sampling == {"temperature": {"0.2": 1}, "top_k": {"20": 1}}


def test_openai_log_takes_no_secret_from_a_line() -> None:
    secret = "Bearer sk-secret"
    line = {
        "headers": {"Authorization": secret},
        "request": {
            "headers": {"authorization": secret},
            "body": {"messages": [user("hi")], "api_key": secret, "extra_headers": {"x": secret}},
        },
        "response": {"headers": {"set-cookie": secret}},
    }

    imported = logged(line)

    text = json.dumps([to_item(p) for p in imported.prompts]) + "\n".join(report(imported))
    assert len(imported.prompts) == 1
    assert "secret" not in text


def test_openai_log_reports_the_sampling_that_was_seen() -> None:
    bodies = [{"prompt": f"p{i}", "temperature": t} for i, t in enumerate((0.7, 0.7, 1))]

    imported = logged(*bodies, {"prompt": "q", "max_tokens": 64})

    assert imported.sampling == {"temperature": {"0.7": 2, "1": 1}, "max_tokens": {"64": 1}}
    assert "  dropped temperature: 0.7 x 2, 1 x 1" in report(imported)


def test_openai_log_names_six_values_of_a_key_at_most() -> None:
    imported = logged(*({"prompt": f"p{i}", "seed": i} for i in range(9)))

    (line,) = (line for line in report(imported) if "seed" in line)
    assert line.endswith("3 more values")


def test_openai_log_counts_media_and_leaves_their_requests_out() -> None:
    parts = [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {}}]

    imported = logged({"messages": [user(parts)]}, {"messages": [user(parts[:1])]})

    assert imported.num_media == 1
    assert imported.dropped == {"asks about media": 1}
    assert len(imported.prompts) == 1
    assert any("no text (images, audio, files): 1" in line for line in report(imported))


def test_openai_log_drops_duplicates_whatever_else_differs() -> None:
    imported = logged(
        {"messages": [user("hi")], "temperature": 0}, {"model": "m", "messages": [user("hi")]}
    )

    assert len(imported.prompts) == 1
    assert imported.dropped == {"there already": 1}


def test_openai_log_splits_a_list_of_prompts_and_skips_token_ids() -> None:
    imported = logged({"prompt": ["a", "b"], "n": 2}, {"prompt": [1, 2]}, {"prompt": [[1]]})

    assert [prompt.text for prompt in imported.prompts] == ["a", "b"]
    assert len({prompt.prompt_id for prompt in imported.prompts}) == 2
    assert imported.dropped == {"prompt given as token ids": 2}
    assert imported.sampling == {"n": {"2": 1}}, "one request"


def test_openai_log_broken_lines_are_counted_and_the_first_three_named() -> None:
    imported = logged(
        b"{oops",
        b'{"prompt": "\xff"}',
        {"prompt": "good"},
        {"embedding": 1},
        {"messages": [{"role": "robot", "content": "x"}]},
        [1],
    )

    assert len(imported.prompts) == 1
    assert imported.dropped == {"broken": 5}
    assert [text.partition(":")[0] for text in imported.broken] == ["line 1", "line 2", "line 4"]


@pytest.mark.parametrize(
    "line",
    [
        b"null",
        b"7",
        b'{"body": null}',
        b'{"messages": []}',
        b'{"messages": [7]}',
        b'{"messages": null}',
        b'{"prompt": " "}',
        b'{"prompt": "\\ud800"}',
        b'{"messages": [{"role": "user", "content": null}]}',
        b'{"messages": [{"role": "user", "content": "x"}], "tools": 7}',
        b'{"messages": [{"role":"user","content":"x"}], "response_format": {"type":"a","b":NaN}}',
        b"[" * 100_000,
    ],
)
def test_openai_log_line_without_a_usable_request_gives_none(line: bytes) -> None:
    assert logged(line).prompts == ()


def test_openai_log_category_can_be_given() -> None:
    assert logged({"prompt": "x"}, category="mine").prompts[0].category == "mine"


@pytest.mark.parametrize("as_lines", [False, True])
def test_sharegpt_prompt_ends_with_the_last_human_turn(as_lines: bool) -> None:
    imported = shared(
        talk(
            ("system", "be kind"),
            ("human", "one"),
            ("gpt", "two"),
            ("human", "three"),
            ("gpt", "4"),
        ),
        talk(("user", "alone"), ("assistant", "yes")),
        as_lines=as_lines,
    )

    first, second = imported.prompts
    assert [m["content"] for m in first.messages] == ["be kind", "one", "two", "three"]
    assert [m["role"] for m in first.messages] == ["system", "user", "assistant", "user"]
    assert (second.text, second.messages) == ("alone", ())


def test_sharegpt_what_the_assistant_says_first_is_left_out() -> None:
    (prompt,) = shared(
        talk(("gpt", "hello"), ("human", "one"), ("gpt", "two"), ("human", "three"))
    ).prompts

    assert [m["content"] for m in prompt.messages] == ["one", "two", "three"]


def test_sharegpt_unusable_conversations_are_counted_by_reason() -> None:
    imported = shared(
        talk(("gpt", "hello")),
        talk(),
        talk(("human", " ")),
        talk(("robot", "x")),
        {"id": "y"},
        7,
        {"conversations": [7]},
        talk(("human", "fine")),
    )

    assert len(imported.prompts) == 1
    assert imported.dropped == {"without a human turn": 2, "with an empty turn": 1, "broken": 4}


def test_sharegpt_broken_array_is_a_config_error_and_a_broken_line_is_not() -> None:
    with pytest.raises(ConfigError, match="no JSON array"):
        list(from_sharegpt("[{"))

    imported = collect(
        from_sharegpt(json.dumps(talk(("human", "a"))) + "\n{oops\n" + '{"a":' * 100_000), Limits()
    )
    assert len(imported.prompts) == 1
    assert [text[:16] for text in imported.broken] == ["line 2: not JSON", "line 3: not JSON"]


@pytest.mark.parametrize(
    ("name", "content", "text", "category"),
    [
        ("a/b.py", b"one\ntwo\n", "one\ntwo", "py"),
        ("README", b"\xef\xbb\xbfhello", "hello", "text"),
        (".profile", b"x", "x", "profile"),
        ("a.tar.md", b"12345678\n90", "12345678", "md"),
        ("a.md", b"1234567890\n", "1234567890", "md"),
    ],
)
def test_text_file_gives_its_beginning_up_to_a_line_end(
    name: str, content: bytes, text: str, category: str
) -> None:
    prompt = from_text_file(name, content, max_chars=10).prompt

    assert prompt == Prompt(prompt_id=name, category=category, text=text)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff\xfe", "not UTF-8"),
        (b"a\0b", "binary"),
        (b"", "no text within the limit"),
        (b" \n\n", "no text within the limit"),
        (b"a line that is longer than ten", "no text within the limit"),
    ],
)
def test_text_file_without_usable_text_is_skipped_by_reason(content: bytes, reason: str) -> None:
    candidate = from_text_file("f", content, max_chars=10)

    assert (candidate.prompt, candidate.skipped) == (None, reason)


@given(text=st.text(st.characters(codec="utf-8")), limit=st.integers(1, 50))
def test_text_file_prompt_is_never_longer_and_always_a_beginning(text: str, limit: int) -> None:
    prompt = from_text_file("f", text.encode(), max_chars=limit).prompt

    if prompt is not None:
        assert len(prompt.text) <= limit
        assert text.removeprefix("\ufeff").startswith(prompt.text)
        assert prompt.text.strip()


CANDIDATES = st.lists(
    st.one_of(
        st.builds(
            lambda text: Candidate(
                where="w", prompt=Prompt(prompt_id="i", category="c", text=text)
            ),
            st.text("ab", min_size=1, max_size=4),
        ),
        st.builds(Candidate, where=st.just("w"), skipped=st.sampled_from(["x", "y"])),
        st.builds(Candidate, where=st.just("w"), broken=st.just("oops")),
    ),
    max_size=30,
)


@given(
    candidates=CANDIDATES,
    low=st.integers(1, 3),
    high=st.none() | st.integers(1, 4),
    limit=st.none() | st.integers(1, 5),
    seed=st.integers(0, 5),
)
def test_collect_accounts_for_everything_it_read(
    candidates: list[Candidate], low: int, high: int | None, limit: int | None, seed: int
) -> None:
    limits = Limits(min_chars=low, max_chars=high, num_prompts=limit, seed=seed)

    imported = collect(candidates, limits)

    texts = [prompt.text for prompt in imported.prompts]
    assert imported.num_read == len(candidates)
    assert len(texts) + sum(imported.dropped.values()) == len(candidates)
    assert len(texts) == len(set(texts)) <= (limit or 99)
    assert all(low <= len(text) <= (high or 99) for text in texts)
    assert len(imported.broken) <= 3
    assert collect(candidates, limits) == imported, "the sample is seeded"


def test_collect_sample_keeps_the_order_and_follows_the_seed() -> None:
    lines = [json.dumps({"prompt": f"p{i:03d}"}).encode() for i in range(100)]

    samples = [
        [p.text for p in collect(from_openai_log(lines), Limits(num_prompts=9, seed=s)).prompts]
        for s in (1, 2)
    ]

    assert samples[0] != samples[1]
    assert all(sample == sorted(sample) for sample in samples)
