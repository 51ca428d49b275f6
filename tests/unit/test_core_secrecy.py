from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.secrecy import hide_key, is_secret_name, scrub

PLANTED = "PlantedSecret0123456789"


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "hf_token", "OPENAI_API_KEY", "apiKey", "aws_secret_access_key", "password"),
        *("DB_PASSWD", "credentials", "Authorization", "auth", "access-key", "bearer", "pwd"),
        *("api_tokens", "APIKEYS", "proxyAuthHeader", "ssl_keyfile_password", "client.secret"),
    ],
)
def test_name_of_a_secret_is_known(name: str) -> None:
    assert is_secret_name(name)
    assert scrub({name: PLANTED, "dtype": "auto"}) == {"dtype": "auto"}


@pytest.mark.parametrize("name", ["hf_token", "api_key"])
def test_whether_there_is_a_secret_is_not_told(name: str) -> None:
    assert scrub({name: None}) == scrub({name: PLANTED}) == {}


@pytest.mark.parametrize(
    "data",
    [
        {"max_num_batched_tokens": 512, "max_num_tokens": "2048", "num_speculative_tokens": 7},
        {"mask_token_id": 1023, "eos_token_id": [0, 2], "skip_special_tokens": True},
        {"tokenizer": "auto", "tokenizer_mode": "slow", "tokenizer_revision": "main"},
        {"keyword": "x", "prompt_lookup_min": 2, "backend": "TRITON_ATTN", "encoder_tokens": []},
        {"note": "the key is where it was; a token a step, max_tokens=512", "nested": [[1, None]]},
        {"image": "registry.example/vllm@sha256:0123456789abcdef", "url": "http://h:80/v1"},
    ],
)
def test_what_is_no_secret_stays_as_it_is(data: dict[str, object]) -> None:
    assert scrub(data) == data


@pytest.mark.parametrize(
    "text",
    [
        f"http://user:{PLANTED}@host:80/path",
        f"postgres://:{PLANTED}@db/x",
        f"https://us@er:{PLANTED}@host/x",
        f"https://{PLANTED}@host",
        f"see https://host/x?sig={PLANTED}&a=1 there",
        f"https://host/x#{PLANTED}",
        f"--api-key {PLANTED} --port 3",
        f"--hf-token={PLANTED}",
        f"password: {PLANTED}",
        f"Authorization: Bearer {PLANTED}",
        f"hf_{PLANTED}",
        f"x sk-{PLANTED} y",
        f"eyJ{PLANTED}.{PLANTED}.{PLANTED}",
        f'{{"api_key": "{PLANTED}", "a": [{{"password": "{PLANTED}"}}]}}',
        f'[{{"token": "{PLANTED}"}}]',
        f'{{"broken", "token": {PLANTED}',
    ],
)
def test_secret_within_a_text_is_taken_out(text: str) -> None:
    for place in (text, [text], {"a": text}, {"a": {"b": [text]}}, {text: 1}):
        assert PLANTED not in json.dumps(scrub(place))


def test_text_around_a_secret_stays() -> None:
    assert scrub(f"http://u:{PLANTED}@h:80/v1") == "http://h:80/v1"
    assert scrub(f"--api-key {PLANTED} --port 3") == "--api-key (secret) --port 3"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=6,
    )
)
def test_scrubbing_twice_changes_nothing_more(data: object) -> None:
    once = scrub(data)
    assert scrub(once) == once


@pytest.mark.parametrize(
    ("text", "key", "told"),
    [
        (
            f"bad key Bearer{PLANTED}, again {PLANTED}",
            PLANTED,
            "bad key Bearer(secret), again (secret)",
        ),
        ("no such EMPTYness; EMPTY", "EMPTY", "no such EMPTYness; (secret)"),
        ("x is no text", "x", "(secret) is no text"),
        ("all is well", PLANTED, "all is well"),
        ("all is well", None, "all is well"),
        ("all is well", "", "all is well"),
    ],
)
def test_key_that_was_sent_is_taken_out_of_an_answer(text: str, key: str | None, told: str) -> None:
    assert hide_key(text, key) == told
