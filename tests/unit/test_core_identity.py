from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.identity import digest, slug, study_id
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


@pytest.mark.parametrize("value", [object(), float("nan"), {1, 2}])
def test_digest_of_other_than_json_is_refused(value: object) -> None:
    with pytest.raises(ConfigError):
        digest({"a": value})


def test_study_id_is_plain_and_holds_the_digest() -> None:
    study = study_id("Qwen3.8 on GB10!", {"a": 1})
    assert study == f"qwen3-8-on-gb10-{digest({'a': 1})[:8]}"
    assert slug("--A  b--") == "a-b"


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
    with pytest.raises(ConfigError, match="missing or unknown"):
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
