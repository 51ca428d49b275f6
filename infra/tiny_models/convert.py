"""The draft on disk: the plain DFlash2 format, which vLLM 0.28.0 reads as well as 0.32.0."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from speculators.models.dflash2 import DFlash2DraftModel
from transformers import Qwen3ForCausalLM

from infra.tiny_models import draft as drafting
from infra.tiny_models.recipe import DraftRecipe

# The target's own tensors: vLLM shares them when the draft brings none.
SHARED = ("embed_tokens.", "lm_head.", "verifier_lm_head.", "verifier_norm.")
COPIED_KEYS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "max_position_embeddings",
    "attention_bias",
    "initializer_range",
)


def plain_config(model: DFlash2DraftModel) -> dict[str, Any]:
    """Return the configuration in the plain format.

    `target_layer_ids` are the auxiliary ids minus one, and rope_theta is written out because vLLM
    takes 1e6 for a draft that does not say it.
    """
    config = model.config
    layer = config.transformer_layer_config
    rope_theta = float(layer.rope_parameters["rope_theta"])
    return {
        "architectures": ["DFlash2DraftModel"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "block_size": config.block_size,
        "dflash_config": {
            "mask_token_id": config.mask_token_id,
            "target_layer_ids": [i - 1 for i in config.aux_hidden_state_layer_ids],
            "conv_kernel_size": config.conv_kernel_size,
            "conv_group_size": config.conv_group_size,
            "selector_rank": config.selector_rank,
            "selector_top_k": config.selector_top_k,
            "causal": False,
        },
        **{key: getattr(layer, key) for key in COPIED_KEYS},
        "layer_types": ["full_attention"] * layer.num_hidden_layers,
        "rope_theta": rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": rope_theta},
        "tie_word_embeddings": False,
        "use_cache": True,
        "draft_vocab_size": config.draft_vocab_size,
        "num_target_layers": max(config.aux_hidden_state_layer_ids),
    }


def save_draft(model: DFlash2DraftModel, folder: Path) -> None:
    """Write the draft's own tensors as bfloat16 and its plain configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if not name.startswith(SHARED)
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # written for its owner only
    text = json.dumps(plain_config(model), indent=2) + "\n"
    (folder / "config.json").write_text(text, encoding="ascii")


def recipe_of(config: dict[str, Any]) -> DraftRecipe:
    """Return the shape that a plain configuration describes; training fields are defaults."""
    dflash = config["dflash_config"]
    return DraftRecipe(
        aux_layer_ids=tuple(i + 1 for i in dflash["target_layer_ids"]),
        num_layers=config["num_hidden_layers"],
        intermediate_size=config["intermediate_size"],
        block_size=config["block_size"],
        conv_kernel_size=dflash["conv_kernel_size"],
        conv_group_size=dflash["conv_group_size"],
        selector_rank=dflash["selector_rank"],
        selector_top_k=dflash["selector_top_k"],
    )


def load_draft(folder: Path, target: Qwen3ForCausalLM) -> DFlash2DraftModel:
    """Return the draft read back from the plain format, float32, in evaluation mode.

    Raises:
        ValueError: When tensors are missing or not known.
    """
    config = json.loads((folder / "config.json").read_text(encoding="ascii"))
    mask_id = config["dflash_config"]["mask_token_id"]
    model = drafting.build_draft(target, recipe_of(config), mask_id)
    tensors = {k: v.float() for k, v in load_file(folder / "model.safetensors").items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    missing = [name for name in missing if not name.startswith(SHARED)]
    if missing or unexpected:
        raise ValueError(f"{folder}: missing tensors {missing}, unexpected {unexpected}")
    return model.eval()


def load_target(folder: Path) -> Qwen3ForCausalLM:
    """Return the target read from its folder, float32, in evaluation mode."""
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()
