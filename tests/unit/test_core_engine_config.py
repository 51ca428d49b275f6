"""The reduction of real resolved configs, as two builds of vLLM told them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.engine_config import reduced_arguments, reduced_config
from orchestrator.core.identity import canonical

CONFIGS = Path(__file__).parents[1] / "data" / "resolved_config"


def told(name: str) -> dict[str, Any]:
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    assert isinstance(config, dict)
    return config


def changed(a: Any, b: Any, path: str = "") -> set[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        names = set(a) | set(b)
        return set().union(*(changed(a.get(n), b.get(n), f"{path}.{n}") for n in names))
    return set() if canonical(a) == canonical(b) else {path}


@pytest.mark.parametrize("build", ["0.28.0", "0.32.0"])
def test_two_boots_of_one_arm_resolve_to_the_same(build: str) -> None:
    first, second = told(f"{build}-block-4-first"), told(f"{build}-block-4-second")

    assert first != second
    assert reduced_config(first) == reduced_config(second)


def test_arms_differ_in_what_makes_them_arms_alone() -> None:
    block, standard = told("0.32.0-block-4-first"), told("0.32.0-standard-7")

    assert changed(reduced_config(block), reduced_config(standard)) == {
        ".speculative_config.draft_sample_method",
        ".speculative_config.num_speculative_tokens",
        ".speculative_config.rejection_sample_method",
    }


def test_builds_differ() -> None:
    assert reduced_config(told("0.28.0-block-4-first")) != reduced_config(
        told("0.32.0-block-4-first")
    )


@pytest.mark.parametrize("build", ["0.28.0", "0.32.0"])
def test_real_config_keeps_what_matters_and_loses_places(build: str) -> None:
    reduced: Any = reduced_config(told(f"{build}-block-4-first"))

    assert reduced["model_config"]["dtype"] == "torch.float32"
    assert reduced["model_config"]["trust_remote_code"] is False
    assert reduced["scheduler_config"]["max_num_batched_tokens"] == 2048
    assert reduced["cache_config"]["gpu_memory_utilization"] == 0.92
    assert reduced["speculative_config"]["rejection_sample_method"] == "block"
    text = canonical(reduced)
    for lost in ("/models", "29501", "127.0.0.1", "0x7f", "299520", "hf_token", "instance_id"):
        assert lost not in text


def test_what_varies_by_boot_is_left_out_at_any_depth() -> None:
    base: dict[str, Any] = {"cache_config": {"block_size": 16}, "x": {"y": [{"z": 1}]}}
    noisy: dict[str, Any] = {
        "instance_id": "17",
        "cache_config": {"block_size": 16, "num_gpu_blocks": 9, "kv_cache_size_tokens": 144},
        "x": {"y": [{"z": 1, "master_port": 4711, "data_parallel_master_ip": "10.0.0.1"}]},
        "logging_config": {"log_level": "DEBUG"},
    }
    assert reduced_config(noisy) == reduced_config(base) == base


def test_config_with_the_hubs_token_tells_none() -> None:
    config: dict[str, Any] = {"model_config": {"hf_token": "hf_PlantedSecret0123", "dtype": "auto"}}
    assert reduced_config(config) == {"model_config": {"dtype": "auto"}}


def test_number_that_is_no_json_is_told_as_text() -> None:
    assert reduced_config({"a": float("inf"), "b": "\ud800"}) == {"a": "inf", "b": "\\ud800"}


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"max_num_seqs": 7}, {"max_num_seqs": "7"}),
        ({"max-num-seqs": 7}, {"max_num_seqs": 7}),
        ({"gpu_memory_utilization": 0.90}, {"gpu_memory_utilization": "0.9"}),
        ({"dtype": "auto", "quantization": None}, {"dtype": "auto"}),
        ({"enable_prefix_caching": False}, {"no-enable-prefix-caching": True}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"compilation_config": {"mode": 3}}, {"compilation_config": '{"mode":  3}'}),
        ({"x_config": {"cache_dir": "/a", "mode": 3}}, {"x_config": {"mode": 3}}),
        ({"sizes": [1, 2]}, {"sizes": ["1", "2"]}),
        ({"seed": 1}, {"seed": 2}),
        ({"download_dir": "/a"}, {"download_dir": "/b"}),
        ({"generation_config": "models/a"}, {"generation_config": "/models/b"}),
        ({"tokenizer": "/a"}, {}),
        ({"lora_modules": ["a=sha256 1f"]}, {"lora-modules": ["a=sha256 1f"]}),
    ],
)  # fmt: skip
def test_arguments_that_ask_the_same_are_equal(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert canonical(reduced_arguments(a)) == canonical(reduced_arguments(b))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"enforce_eager": True}, {"enforce_eager": False}),
        ({"enforce_eager": False}, {}),
        ({"enforce_eager": True}, {"enforce_eager": "true"}),
        ({"enforce_eager": True}, {"enforce_eager": 1}),
        ({"max_num_seqs": 7}, {"max_num_seqs": 8}),
        ({"revision": "1"}, {"revision": "1.0"}),
        ({"revision": "007"}, {"revision": 7}),
        ({"compilation_config": {"mode": 3}}, {"compilation_config": {"mode": "3"}}),
        ({"generation_config": "vllm"}, {"generation_config": "auto"}),
        ({"sizes": [1, 2]}, {"sizes": [2, 1]}),
        ({"lora_modules": ["a=/x/a"]}, {"lora_modules": ["a=/x/b"]}),
        ({"lora_modules": ["a=sha256 1f"]}, {"lora_modules": ["a=sha256 2f"]}),
        ({"lora_modules": ['{"name": "a", "path": "/x"}']},
         {"lora_modules": ['{"name": "a", "path": "/y"}']}),
        ({"hf_config_path": "/a"}, {"hf_config_path": "/b"}),
        ({"hf_config_path": "/a"}, {}),
        ({"hf_config_path": "/a"}, {"hf_config_path": "sha256 1f"}),
        ({"model_weights": "s3://a"}, {"model_weights": "s3://b"}),
        ({"quantization_param_path": "/a"}, {}),
        ({"tool_parser_plugin": "/a.py"}, {"tool_parser_plugin": "/b.py"}),
        ({"reasoning_parser_plugin": "a.py"}, {"reasoning_parser_plugin": "b.py"}),
    ],
)  # fmt: skip
def test_arguments_that_ask_for_something_else_differ(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert canonical(reduced_arguments(a)) != canonical(reduced_arguments(b))


def test_resolved_config_tells_what_weights_and_adapters_were_taken() -> None:
    for name in ("lora_modules", "model_weights"):
        assert reduced_config({"model_config": {name: "s3://a"}}) != reduced_config(
            {"model_config": {name: "s3://b"}}
        )


def test_path_of_a_content_that_could_not_be_read_is_not_told() -> None:
    assert "/x/a" not in repr(reduced_arguments({"lora_modules": ["a=/x/a"], "config": "/x/a"}))


def test_argument_that_is_broken_json_stays_text() -> None:
    assert reduced_arguments({"compilation_config": "{mode"}) == {"compilation_config": "{mode"}
