from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.secrecy import (
    hide_key,
    is_secret_name,
    redact,
    redact_text,
    require_no_secret,
    scrub,
)
from orchestrator.errors import ConfigError

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
        f"{{'api_key': ['{PLANTED}', '{PLANTED}2'], 'hf_token': '{PLANTED}'}}",
        f"['vllm', '--api-key', '{PLANTED}']",
        f"api_key='{PLANTED} and {PLANTED}'",
        f'log: {{\\"api_key\\": \\"{PLANTED}\\"}}',
        f"SecretStr token=Secret('{PLANTED}')",
        f"-----BEGIN RSA PRIVATE KEY-----\n{PLANTED}\n-----END RSA PRIVATE KEY-----",
        f'{{"api_key": "{PLANTED}", "api_key": null}}',
        f'{{"env": [{{"name": "HF_TOKEN", "value": "{PLANTED}"}}]}}',
    ],
)
def test_secret_within_a_text_is_taken_out(text: str) -> None:
    for place in (text, [text], {"a": text}, {"a": {"b": [text]}}, {text: 1}):
        assert PLANTED not in json.dumps(scrub(place))
        assert PLANTED not in json.dumps(redact(place))
    assert PLANTED not in redact_text(text)


def test_words_of_a_command_line_after_a_secret_option_are_taken_out() -> None:
    line = ["vllm", "serve", "--api-key", PLANTED, f"{PLANTED}2", "--port", "80", "--hf-token"]
    told = ["vllm", "serve", "--api-key", "(secret)", "(secret)", "--port", "80", "--hf-token"]
    assert scrub(line) == redact(line) == told
    counts = ["--max-num-batched-tokens", "512", f"--api-key={PLANTED}", "x"]
    assert redact(counts) == ["--max-num-batched-tokens", "512", "--api-key=(secret)", "x"]


def test_redacted_data_keeps_names_nulls_and_forms() -> None:
    data = {"api_key": PLANTED, "hf_token": None, "cached_tokens": None, "engine_token": "GB10"}
    shown = {"api_key": "(secret)", "hf_token": None, "cached_tokens": None, "engine_token": "GB10"}
    assert redact(data) == shown
    plain = {"text": '{"a":  1}', "by_tokens": {"16": 3}, "keys": ["c1_t0.7"], "nan": [1.5, None]}
    assert redact(plain) == plain


@pytest.mark.parametrize(
    "text",
    [
        "tokens: within the window the engine generated 369 tokens and the client received 358",
        "tokens: the client counted no output tokens in the window",
        *('{"a":  1, "prompt_tokens": null}', "12.5 ms a token, 3 tokens", "[1,  NaN]"),
        *("num_tokens: [1, 2], bos_token_id=1, use_token=True", "node.engine_token: no board"),
        "http://mlflow:5000/#/experiments/1/runs/00112233445566778899aabbccddeeff",
        "sqlite:////data/ml.db#00112233445566778899aabbccddeeff",
    ],
)
def test_text_without_a_secret_is_not_touched(text: str) -> None:
    assert redact_text(text) == text
    assert redact({"a": [text]}) == {"a": [text]}


def test_setting_with_a_secret_is_refused_by_its_key_and_without_its_value() -> None:
    require_no_secret("engine.args", {"max_num_batched_tokens": "512", "nested": {"a": [1]}})
    with pytest.raises(ConfigError, match=r"engine\.args\.kv\.api_key") as error:
        require_no_secret("engine.args", {"kv": {"port": 1, "api_key": PLANTED}})
    assert PLANTED not in str(error.value)
    with pytest.raises(ConfigError, match=r"engine\.env\.PROXY"):
        require_no_secret("engine.env", {"PROXY": f"http://u:{PLANTED}@h"})


def test_count_of_tokens_that_is_null_is_told() -> None:
    assert scrub({"max_tokens": None}) == {"max_tokens": None}
    assert scrub({"VLLM_MOE_TOKEN_THRESHOLD": "512"}) == {"VLLM_MOE_TOKEN_THRESHOLD": "512"}


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
