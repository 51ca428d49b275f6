from __future__ import annotations

import json
from typing import Any

import pytest
from core_samples import BASELINE, BOARD, make_arm, make_block, make_boot
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.core.codec import from_plain, to_plain
from orchestrator.core.node_state import Fitness, NodeState, NodeVerdict
from orchestrator.core.requests import RequestRecord, TokenSource
from orchestrator.core.types import (
    Arm,
    Block,
    BoardModel,
    Boot,
    BootStatus,
    Cell,
    CounterSnapshot,
    EngineFacts,
    Invalid,
    Invalidity,
    Quantiles,
    TokenAudit,
)

texts = st.text(max_size=8)
floats = st.floats(allow_nan=False, allow_infinity=False)
maybe_float = st.none() | floats
maybe_int = st.none() | st.integers()
maybe_text = st.none() | texts
float_tuples = st.lists(floats, max_size=3).map(tuple)

arms = st.builds(
    Arm,
    engine_build=texts,
    num_speculative_tokens=st.integers(0, 16),
    draft_sample_method=maybe_text,
    rejection_sample_method=maybe_text,
)
cells = st.builds(Cell, streams=st.integers(1, 64), temperature=floats, workload=texts)
counters = st.builds(
    CounterSnapshot,
    generation_tokens=maybe_float,
    prompt_tokens=maybe_float,
    num_drafts=maybe_float,
    num_draft_tokens=maybe_float,
    num_accepted_tokens=maybe_float,
    num_accepted_tokens_per_pos=st.none() | float_tuples,
    num_requests_running=maybe_float,
)
blocks = st.builds(
    Block,
    block_id=texts,
    boot_id=texts,
    index=st.integers(),
    cell=cells,
    duration_s=floats,
    counters=counters,
    audit=st.builds(
        TokenAudit,
        client_total=st.integers(),
        engine_total=maybe_float,
        unknown_total=st.integers(),
        client_window=st.integers(),
        engine_window=maybe_float,
        edge_tokens=st.integers(),
    ),
    num_requests=st.integers(),
    num_failed=st.integers(),
    ttft_s=float_tuples,
    tpot_s=float_tuples,
    finish_reasons=st.dictionaries(texts, st.integers(), max_size=2),
    chunk_gap_s=st.none()
    | st.builds(Quantiles, p50=floats, p95=floats, p99=floats, num_values=st.integers()),
    node=st.none() | st.builds(NodeVerdict, fitness=st.sampled_from(Fitness), reason=texts),
    invalid=st.lists(
        st.builds(Invalidity, kind=st.sampled_from(Invalid), detail=texts), max_size=2
    ).map(tuple),
)
facts = st.builds(
    EngineFacts,
    boot_id=texts,
    pid=st.integers(),
    base_url=texts,
    engine_version=maybe_text,
    model_runner=maybe_text,
    num_speculative_tokens=maybe_int,
    draft_sample_method=maybe_text,
    rejection_sample_method=maybe_text,
    draft_architecture=maybe_text,
    kv_cache_tokens=maybe_int,
    kv_max_concurrency=maybe_float,
    max_model_len=maybe_int,
    boot_time_s=floats,
    weights_bytes=maybe_int,
    log_path=texts,
    resolved_config=st.dictionaries(texts, st.none() | texts | st.lists(texts, max_size=2)),
)
boots = st.builds(
    Boot,
    trial_id=texts,
    arm=arms,
    replicate=st.integers(0),
    node_id=texts,
    status=st.sampled_from(BootStatus),
    reason=texts,
    facts=st.none() | facts,
    blocks=st.lists(blocks, max_size=2).map(tuple),
    run_id=maybe_text,
)


def through_json(record: Any) -> Any:
    return from_plain(type(record), json.loads(json.dumps(to_plain(record))))


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(boots)
def test_boot_survives_the_way_through_json(boot: Boot) -> None:
    assert through_json(boot) == boot


@pytest.mark.parametrize(
    "record",
    [
        BASELINE,
        make_arm(),
        BOARD,
        make_boot(make_arm(), [make_block(make_arm())], status=BootStatus.FAILED, reason="lost"),
        make_boot(BASELINE, [], without_facts=True),
        NodeState(
            node_id="n",
            kind="k",
            hostname="h",
            mem_available_bytes=None,
            mem_total_bytes=1,
            load_average_1m=0.5,
        ),
        RequestRecord(
            request_id="r",
            prompt_id="p",
            prompt_tokens=None,
            output_tokens=3,
            token_source=TokenSource.NONE,
            finish_reason=None,
            started_s=0.0,
            ttft_s=None,
            e2e_s=None,
            chunk_times_s=(0.1, 0.2),
        ),
    ],
    ids=lambda record: type(record).__name__,
)
def test_record_keeps_its_types(record: Any) -> None:
    assert through_json(record) == record


def test_plain_is_what_json_knows() -> None:
    plain = to_plain(make_boot(make_arm(), [make_block(make_arm())]))

    assert plain["status"] == "ok"
    assert type(plain["status"]) is str
    assert isinstance(plain["blocks"], list)
    assert isinstance(plain["blocks"][0]["ttft_s"], list)


def test_whole_number_where_a_float_belongs_becomes_one() -> None:
    """JavaScript and YAML write 1 for 1.0."""
    board = from_plain(BoardModel, to_plain(BOARD) | {"base_s": 1, "streams": [1, 2]})

    assert type(board.base_s) is float
    assert board.streams == (1, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"speed": 1}, "unknown field 'speed'"),
        ({"engine_build": ...}, "engine_build"),
    ],
)
def test_unknown_or_missing_field_is_an_error(change: dict[str, Any], message: str) -> None:
    plain = {
        key: value for key, value in (to_plain(make_arm()) | change).items() if value is not ...
    }

    with pytest.raises(ValueError, match=message):
        from_plain(Arm, plain)


def test_unknown_status_is_an_error() -> None:
    plain = to_plain(make_boot(make_arm(), [])) | {"status": "asleep"}

    with pytest.raises(ValueError, match="asleep"):
        from_plain(Boot, plain)


def test_number_that_no_float_holds_is_no_record() -> None:
    with pytest.raises(ValueError, match="401 digits is no float"):
        from_plain(Cell, {"streams": 1, "temperature": 10**400})


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200)
@given(st.data(), anything)
def test_record_with_something_else_in_one_place_is_a_value_error_or_a_whole_record(
    data: st.DataObject, odd: Any
) -> None:
    """What another process wrote may be anything; readers look for one kind of error."""
    plain = to_plain(make_boot(make_arm(), [make_block(make_arm())]))
    holder: Any = plain
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(holder[key], dict | list) or not holder[key] or data.draw(st.booleans()):
            break
        holder = holder[key]
    holder[key] = odd

    try:
        boot = from_plain(Boot, plain)
    except ValueError:
        return
    assert through_json(boot) == boot or "nan" in repr(boot)


@pytest.mark.parametrize("data", [None, 3, "x", [], [["engine_build", "x"]]], ids=repr)
def test_what_is_no_mapping_is_no_record(data: Any) -> None:
    with pytest.raises(ValueError, match=r"Arm: .* is no record"):
        from_plain(Arm, data)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"replicate": "x"}, "Boot.replicate: 'x' is not a whole number"),
        ({"replicate": True}, "Boot.replicate: True is not a whole number"),
        ({"replicate": None}, "Boot.replicate: None is not a whole number"),
        ({"node_id": 4}, "Boot.node_id: 4 is not a text"),
        ({"blocks": {}}, "Boot.blocks: {} is not a list"),
        ({"arm": []}, r"Boot.arm: Arm: \[\] is no record"),
    ],
)
def test_field_of_another_type_is_named(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}"):
        from_plain(Boot, to_plain(make_boot(make_arm(), [])) | change)
