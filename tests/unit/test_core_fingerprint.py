from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.fingerprint import (
    Fingerprint,
    ModelDigests,
    StudyInputs,
    differences,
    trial_fingerprint,
)
from orchestrator.core.node_state import NodeState
from orchestrator.core.types import EngineFacts
from orchestrator.errors import ConfigError

SECRET = "PlantedSecret0123456789"
CONFIG: dict[str, object] = {
    "model_config": {"dtype": "torch.bfloat16", "trust_remote_code": False, "model": "/models/t"},
    "cache_config": {"block_size": 16, "num_gpu_blocks": 4711},
}
BUILD: dict[str, object] = {
    "launcher": "vllm.entrypoints.cli.main",
    "image_digest": "sha256:aa",
    "python": "3.12.3",
    "wheel": {"name": "vllm", "version": "0.32.0", "digest": "bb", "changed": []},
    "packages": {"torch": "2.13.0+cu130", "triton": "3.9.0", "tokenizers": "0.23.3"},
    "cuda": "13.0",
    "hip": None,
    "torch_commit": "cc",
    "driver": "580.95.05",
    "gpus": ["NVIDIA GB10"],
    "kernel": "6.14.0",
    "machine": "aarch64",
    "environment": {"VLLM_ATTENTION_BACKEND": "FLASHINFER"},
}
FACTS = EngineFacts(
    boot_id="b1",
    pid=1,
    base_url="http://127.0.0.1:1",
    engine_version="0.32.0",
    model_runner="v2",
    num_speculative_tokens=7,
    draft_sample_method="probabilistic",
    rejection_sample_method="block",
    draft_architecture="DFlash2DraftModel",
    kv_cache_tokens=1000,
    kv_max_concurrency=2.0,
    max_model_len=4096,
    boot_time_s=400.0,
    weights_bytes=1,
    log_path="/var/log/b1.log",
    resolved_config=CONFIG,
    build=BUILD,
)
NODE = NodeState(
    node_id="n1",
    kind="gb10",
    hostname="spark-1",
    mem_available_bytes=1,
    mem_total_bytes=2,
    load_average_1m=0.1,
)
INPUTS = StudyInputs(
    engine_args={"max_num_seqs": 16, "enforce_eager": False},
    models=ModelDigests(target="t1", draft="d1", tokenizer="k1", chat_template="c1"),
    workload_digest="w1",
    sampling={"temperatures": [0.7], "top_p": 1.0, "top_k": 0},
    specpilot_version="0.2.0",
)


def of(
    facts: EngineFacts = FACTS, node: NodeState = NODE, inputs: StudyInputs = INPUTS
) -> Fingerprint:
    return trial_fingerprint(facts, node, inputs)


def test_another_boot_of_the_same_has_the_same_digest() -> None:
    config = {**CONFIG, "instance_id": "9", "cache_config": {"block_size": 16, "num_gpu_blocks": 1}}
    other = replace(
        FACTS, boot_id="b2", pid=2, base_url="http://127.0.0.1:2", kv_cache_tokens=999,
        boot_time_s=500.0, log_path="/elsewhere", resolved_config=config,
    )  # fmt: skip
    hot = replace(NODE, temperature_c=80.0, load_average_1m=3.0)

    assert of(other, hot).digest == of().digest
    assert differences(of(), of(other, hot)) == ()


def test_another_node_of_the_kind_differs_in_its_own_section_only() -> None:
    other = of(node=replace(NODE, node_id="n2", hostname="spark-2"))

    assert other.digest != of().digest
    assert {name for name in other.sections if other.sections[name] != of().sections[name]} == {
        "node"
    }
    assert differences(of(), other) == (
        "node.hostname was spark-1 and is spark-2",
        "node.node_id was n1 and is n2",
    )


def with_build(**changes: object) -> EngineFacts:
    return replace(FACTS, build={**BUILD, **changes})


@pytest.mark.parametrize(
    ("other", "says"),
    [
        # Case A02: two versions of the engine are two premises.
        (of(replace(FACTS, engine_version="0.28.0")), "engine.version was 0.32.0 and is 0.28.0"),
        (
            of(with_build(packages={"torch": "2.13.0+cu130", "triton": "3.8.0"})),
            "engine.packages.triton was 3.9.0 and is 3.8.0",
        ),
        (of(with_build(image_digest=None)), "engine.image_digest was sha256:aa and is none"),
        (of(with_build(driver="590.1")), "platform.driver was 580.95.05 and is 590.1"),
        (of(with_build(kernel="6.17.0")), "platform.kernel was 6.14.0 and is 6.17.0"),
        (of(node=replace(NODE, kind="h200")), "platform.kind was gb10 and is h200"),
        (
            of(with_build(environment={"VLLM_ATTENTION_BACKEND": "FLASHINFER", "CUDA_X": "1"})),
            "environment.CUDA_X was not there and is 1",
        ),
        (
            of(replace(FACTS, rejection_sample_method="standard")),
            "speculation.rejection_sample_method was block and is standard",
        ),
        (
            of(replace(FACTS, resolved_config={"model_config": {"dtype": "auto"}})),
            "resolved_config.model_config.dtype was torch.bfloat16 and is auto",
        ),
        (
            of(inputs=replace(INPUTS, engine_args={"max_num_seqs": 16})),
            "arguments.enforce_eager was false and is not there",
        ),
        (
            of(inputs=replace(INPUTS, models=replace(INPUTS.models, chat_template=None))),
            "models.chat_template was c1 and is none",
        ),
        (of(inputs=replace(INPUTS, workload_digest="w2")), "load.workload was w1 and is w2"),
        (
            # Case H09: what the server's defaults turned out to be is part of it.
            of(inputs=replace(INPUTS, sampling={**INPUTS.sampling, "top_k": 20})),
            "load.sampling.top_k was 0 and is 20",
        ),
        (
            of(inputs=replace(INPUTS, sampling={**INPUTS.sampling, "top_k": "0"})),
            "load.sampling.top_k was 0 and is 0",
        ),
    ],
)  # fmt: skip
def test_premise_that_changed_is_named_and_changes_its_section(
    other: Fingerprint, says: str
) -> None:
    assert says in differences(of(), other)
    assert other.digest != of().digest
    section = says.partition(".")[0]
    assert other.sections[section] != of().sections[section]


def test_code_from_the_model_folder_is_a_premise() -> None:
    config: dict[str, object] = {"model_config": {"trust_remote_code": True}}
    trusting = of(replace(FACTS, resolved_config=config))
    asked = of(
        replace(FACTS, resolved_config={}),
        inputs=replace(INPUTS, engine_args={"trust-remote-code": True}),
    )

    assert of().models["trust_remote_code"] is False
    assert trusting.models["trust_remote_code"] is True
    assert asked.models["trust_remote_code"] is True


def test_facts_without_a_build_are_unknown_and_not_empty() -> None:
    bare = of(replace(FACTS, build={}, resolved_config={}))

    assert bare.platform["driver"] is None
    assert bare.digest != of().digest


def test_long_values_are_shortened_in_words() -> None:
    long = of(with_build(environment={"VLLM_X": "y" * 200}))
    told = [line for line in differences(of(), long) if "VLLM_X" in line]

    assert len(told[0]) < 150
    assert told[0].endswith("...")


def test_planted_secrets_never_enter() -> None:
    url = f"https://user:{SECRET}@registry.example/x?sig={SECRET}"
    facts = replace(
        FACTS,
        resolved_config={"model_config": {"hf_token": SECRET, "model": url, "note": url}},
        build={**BUILD, "image_digest": url, "environment": {"VLLM_API_KEY": SECRET, "A": url}},
    )
    inputs = replace(
        INPUTS,
        engine_args={
            "hf_token": SECRET,
            "api-key": [SECRET],
            "tokenizer": f"/home/{SECRET}/model",
            "generation_config": f"/home/{SECRET}/model",
            "kv_transfer_config": {"url": url, "password": SECRET, "extra": [{"token": SECRET}]},
            "middleware": f"--password {SECRET}",
            "compilation_config": f'{{"api_key": "{SECRET}", "x": "{url}"}}',
        },
        sampling={"extra_headers": {"Authorization": f"Bearer {SECRET}"}},
    )
    written = json.dumps(of(facts, inputs=inputs).to_dict())

    assert SECRET not in written
    assert "registry.example" in written


def test_round_trip_through_json_keeps_the_digest() -> None:
    copy = Fingerprint.from_dict(json.loads(json.dumps(of().to_dict())))

    assert copy.digest == of().digest
    assert differences(copy, of()) == ()


@pytest.mark.parametrize("change", [{"odd": {}}, {"node": 3}])
def test_record_of_another_version_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="fingerprint"):
        Fingerprint.from_dict({**of().to_dict(), **change})
    with pytest.raises(ConfigError, match="missing or unknown: node"):
        Fingerprint.from_dict({k: v for k, v in of().to_dict().items() if k != "node"})


@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text()))
def test_differences_are_empty_exactly_where_digests_agree(environment: dict[str, object]) -> None:
    other = of(with_build(environment=environment))
    assert (differences(of(), other) == ()) == (other.digest == of().digest)
