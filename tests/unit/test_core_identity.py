from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.identity import canonical, digest, sha256_of, slug, study_id
from orchestrator.core.premises import Premises, differences
from orchestrator.errors import ConfigError

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON, max_size=5), st.randoms())
def test_digest_is_independent_of_key_order(data: dict[str, Any], rng: random.Random) -> None:
    items = list(data.items())
    rng.shuffle(items)
    assert digest(dict(items)) == digest(data)
    assert len(digest(data)) == 16


def test_digest_is_stable_and_tells_data_apart() -> None:
    assert digest({}) == "44136fa355b3678a"
    assert digest({"a": 1}) != digest({"a": 2})


def shuffled(value: Any, rng: random.Random) -> Any:
    """Return equal data with its keys in another order and its lists as tuples, at any depth."""
    if isinstance(value, dict):
        items = [(key, shuffled(item, rng)) for key, item in value.items()]
        rng.shuffle(items)
        return dict(items)
    return tuple(shuffled(item, rng) for item in value) if isinstance(value, list) else value


def shape(value: Any) -> Any:
    """Return what data is by the documented rules, to be compared with ==."""
    if isinstance(value, bool | None):
        return (type(value).__name__, value)
    if isinstance(value, int | float):
        return ("number", value)
    if isinstance(value, dict):
        return ("object", {key: shape(item) for key, item in value.items()})
    return ("list", [shape(item) for item in value]) if isinstance(value, list) else ("text", value)


@given(JSON, st.randoms())
def test_canonical_form_is_independent_of_key_order_at_any_depth(
    data: Any, rng: random.Random
) -> None:
    assert canonical(shuffled(data, rng)) == canonical(data)


@given(JSON)
def test_canonical_form_is_ascii_json_and_its_own_canonical_form(data: Any) -> None:
    text = canonical(data)
    assert text.isascii()
    assert canonical(json.loads(text)) == text
    assert shape(json.loads(text)) == shape(data)


CLOSE = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 7, 0.0, -0.0, 1.0, 7.0, 0.9, "", "0", "1", "7"])
    | st.sampled_from(["7.0", "true", "null", "\u00e9", "e\u0301", 2**53, 2**53 + 1, float(2**53)]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(CLOSE, CLOSE)
def test_canonical_forms_are_equal_exactly_where_data_is(a: Any, b: Any) -> None:
    assert (canonical(a) == canonical(b)) == (shape(a) == shape(b))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"a": True}, {"a": False}),
        ({"a": False}, {}),
        ({"a": None}, {}),
        ({"a": None}, {"a": False}),
        ({"a": True}, {"a": 1}),
        ({"a": 1}, {"a": "1"}),
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ({"a": []}, {"a": {}}),
        ({"a": "\u00e9"}, {"a": "e\u0301"}),
        ({"a": 0.1 + 0.2}, {"a": 0.3}),
    ],
)
def test_digest_tells_unlike_data_apart(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert digest(a) != digest(b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"a": 7}, {"a": 7.0}),
        ({"a": 0.0}, {"a": -0.0}),
        ({"a": 0.90}, {"a": 0.9}),
        ({"a": 10**22}, {"a": 1e22}),
        ({"a": (1, 2)}, {"a": [1, 2]}),
        ({"a": {7: "x"}}, {"a": {"7": "x"}}),
    ],
)
def test_digest_is_the_same_for_equal_data(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert digest(a) == digest(b)


def test_digest_is_the_head_of_the_whole_hash() -> None:
    assert sha256_of({"a": 1}).startswith(digest({"a": 1}))
    assert len(sha256_of(None)) == 64


@pytest.mark.parametrize(
    "value",
    [
        object(), float("nan"), float("inf"), {1, 2}, b"a", "\ud800", {1.5: 1}, {True: 1},
        {None: 1}, {7: 1, "7": 1}, {"\udc00": 1},
    ],
)  # fmt: skip
def test_digest_of_other_than_json_is_refused(value: object) -> None:
    with pytest.raises(ConfigError):
        digest({"a": value})


def test_study_id_is_plain_and_holds_the_digest() -> None:
    study = study_id("Qwen3.8 on GB10!", {"a": 1})
    assert study == f"qwen3-8-on-gb10-{digest({'a': 1})[:8]}"
    assert slug("--A  b--") == "a-b"


@given(st.text(max_size=400))
def test_study_id_can_be_typed_and_names_a_folder_whatever_the_name(name: str) -> None:
    study = study_id(name, {"a": 1})

    assert re.fullmatch(r"[a-z0-9][a-z0-9-]{0,48}", study)
    assert study.endswith(f"-{digest({'a': 1})[:8]}")


@pytest.mark.parametrize(
    ("name", "plain"),
    [("\N{GREEK SMALL LETTER ALPHA}", "study"), ("r\xe9sum\xe9", "resume"), ("x" * 300, "x" * 40)],
)
def test_study_id_of_a_name_that_is_long_or_not_ascii(name: str, plain: str) -> None:
    assert study_id(name, {}).rpartition("-")[0] == plain


PREMISES = Premises(
    engine_build="0.32.0",
    engine_args_digest="aa",
    target_digest="bb",
    draft_digest="cc",
    node_kind="cpu",
    workload_digest="dd",
    sampling={"top_p": 1.0, "top_k": 0},
    step_time="modelled",
    board_model="gb10_model",
    specpilot_version="0.1.0",
)


def test_premises_round_trip_through_plain_types() -> None:
    assert Premises.from_dict(PREMISES.to_dict()) == PREMISES


@pytest.mark.parametrize("change", [{"odd": 1}, {"driver": "580"}])
def test_premises_of_another_version_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="unknown field"):
        Premises.from_dict({**PREMISES.to_dict(), **change})
    with pytest.raises(ConfigError, match="node_kind"):
        Premises.from_dict({k: v for k, v in PREMISES.to_dict().items() if k != "node_kind"})


def test_differences_name_each_premise_that_changed() -> None:
    assert differences(PREMISES, PREMISES) == ()
    other = replace(
        PREMISES, engine_build="0.33.0", draft_digest=None, sampling={}, step_time="measured"
    )
    assert differences(PREMISES, other) == (
        "the engine build was 0.32.0 and is 0.33.0",
        "the draft model's digest was cc and is none",
        "the sampling was top_k=0, top_p=1.0 and is empty",
        "the source of step times was modelled and is measured",
    )
