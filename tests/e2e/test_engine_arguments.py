"""The study's engine arguments, through the parser and the validation of real engine builds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.compose import engine_spec
from orchestrator.config import PROJECT_DIR, load_config
from orchestrator.prepare import prepare
from serve_apps.engine.spec import CPU_LAUNCHER, command, environment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

STUDY = PROJECT_DIR / "conf" / "study" / "qwen38_gb10.yaml"
TOKENIZER = PROJECT_DIR / "infra" / "tiny_models" / "target"
PYTHONS = {
    "0.32.0": Path(sys.executable),
    "0.28.0": PROJECT_DIR / ".engines" / "0.28.0" / "bin" / "python",
}

QWEN = {
    "hidden_size": 5120,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 262144,
    "vocab_size": 248320,
    "attention_bias": False,
    "rope_theta": 1e7,
    "dtype": "bfloat16",
}
TARGET = {
    **QWEN,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "intermediate_size": 17408,
    "num_hidden_layers": 64,
    "tie_word_embeddings": False,
}
DRAFT = {
    **QWEN,
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    "intermediate_size": 9728,
    "num_hidden_layers": 5,
    "layer_types": ["full_attention"] * 5,
    "block_size": 8,
    "dflash_config": {
        "mask_token_id": 248070,
        "target_layer_ids": [1, 16, 31, 46, 61],
        "conv_kernel_size": 4,
        "conv_group_size": 16,
        "selector_rank": 256,
        "selector_top_k": 16,
        "causal": False,
    },
    "draft_vocab_size": 248320,
    "num_target_layers": 64,
}


def make_models(folder: Path) -> tuple[Path, Path]:
    """Return folders that look like the study's models; there are no weights in them."""
    target, draft = folder / "target", folder / "draft"
    for path, config in ((target, TARGET), (draft, DRAFT)):
        path.mkdir()
        (path / "config.json").write_text(json.dumps(config), encoding="ascii")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / name, target / name)
    return target, draft


def resolve(version: str, cases: Mapping[str, list[str]], folder: Path) -> dict[str, Any]:
    """Return what an engine build makes of command lines."""
    python = PYTHONS[version]
    if not python.exists():
        pytest.fail(
            f"engine {version} is not installed: run `make engine VERSION={version}`", pytrace=False
        )
    asked, answered = folder / "cases.json", folder / "answers.json"
    asked.write_text(json.dumps(cases), encoding="utf-8")
    spec = replace(
        engine_spec(load_config(STUDY), prepare_arms()[0], "probe"),
        launcher=CPU_LAUNCHER,
        python=str(python),
    )
    env = environment(spec, "probe", os.environ) | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CONFIGURE_LOGGING": "0",
    }
    done = subprocess.run(
        [str(python), "-m", "tests.e2e.engine_probe", str(asked), str(answered)],
        cwd=PROJECT_DIR, env=env, capture_output=True, text=True, timeout=230, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    result: dict[str, Any] = json.loads(answered.read_text(encoding="utf-8"))
    assert result["version"].partition("+")[0] == version
    answers: dict[str, Any] = result["answers"]
    return answers


def prepare_arms() -> Any:
    return prepare(load_config(STUDY), models_must_exist=False).arms


@pytest.mark.parametrize("version", PYTHONS)
def test_engine_arguments_of_every_arm_are_accepted_by_the_build(
    version: str, tmp_path: Path
) -> None:
    target, draft = make_models(tmp_path)
    config = load_config(STUDY, [f"target.path={target}", f"draft.path={draft}"])
    arms = prepare_arms()
    cases = {arm.label: command(engine_spec(config, arm, "arm"), 8000, "b1")[4:] for arm in arms}
    longest = max(arm.num_speculative_tokens for arm in arms)
    some = next(arm for arm in arms if arm.num_speculative_tokens == longest)
    good = cases[some.label]
    cases["unknown argument"] = [*good, "--no-such-argument", "1"]
    cases["unknown rule"] = [
        text.replace(f'"{some.draft_sample_method}"', '"no_such_rule"') for text in good
    ]

    answers = resolve(version, cases, tmp_path)

    assert "--no-such-argument" in answers.pop("unknown argument")["error"]
    assert "no_such_rule" in answers.pop("unknown rule")["error"]
    refused = {name: answer["error"] for name, answer in answers.items() if "error" in answer}
    assert refused == {}
    assert {arm.label: answers[arm.label] for arm in arms} == {
        arm.label: {
            "model": str(target),
            "served_model_name": ["qwen3.8-27b", "specpilot-boot-b1"],
            "max_model_len": 262144,
            "max_num_seqs": 16,
            "speculative": None
            if arm.is_baseline
            else {
                "method": "dflash",
                "num_speculative_tokens": arm.num_speculative_tokens,
                "draft_sample_method": arm.draft_sample_method,
                "rejection_sample_method": arm.rejection_sample_method,
                "architectures": ["DFlash2DraftModel"],
            },
        }
        for arm in arms
    }
