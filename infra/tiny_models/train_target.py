"""Train the target, a small Qwen3 language model, on normalised source code."""

import logging
import math
import time
from pathlib import Path

import torch
from torch.nn import functional
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from infra.tiny_models.optim import Optimiser
from infra.tiny_models.recipe import CONTEXT_TOKENS, END_OF_TEXT, SEED, TargetRecipe
from infra.tiny_models.tokenizer import save_tokenizer, token_id

logger = logging.getLogger(__name__)


def target_config(recipe: TargetRecipe, end_id: int) -> Qwen3Config:
    """Return the Hugging Face configuration of the target."""
    return Qwen3Config(
        vocab_size=recipe.vocab_size,
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=recipe.num_layers,
        num_attention_heads=recipe.num_heads,
        num_key_value_heads=recipe.num_kv_heads,
        head_dim=recipe.head_dim,
        max_position_embeddings=CONTEXT_TOKENS,
        rope_parameters={"rope_type": "default", "rope_theta": recipe.rope_theta},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end_id,
        pad_token_id=end_id,
        dtype="bfloat16",
    )


def next_token_loss(model: Qwen3ForCausalLM, windows: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy in nats per token over windows [batch, window + 1]."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(input_ids=windows[:, :-1], use_cache=False).logits
    return functional.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten())


def window_batches(
    stream: torch.Tensor, *, window: int, batch_size: int, generator: torch.Generator
) -> torch.Tensor:
    """Return one batch of windows at random places, [batch_size, window + 1] int64."""
    starts = torch.randint(len(stream) - window - 1, (batch_size,), generator=generator)
    return stream[starts[:, None] + torch.arange(window + 1)]


def train_target(stream: torch.Tensor, recipe: TargetRecipe, end_id: int) -> Qwen3ForCausalLM:
    """Train the target from scratch.

    Args:
        stream: Training tokens, [num_tokens] int64.
        recipe: Shape and schedule.
        end_id: Token id of end-of-text.

    Returns:
        The trained model, float32, in evaluation mode.
    """
    torch.manual_seed(SEED)
    model = Qwen3ForCausalLM(target_config(recipe, end_id)).float().train()
    logger.info("target: %d parameters", model.num_parameters())
    optimiser = Optimiser(
        list(model.named_parameters()),
        steps=recipe.steps,
        warmup_steps=recipe.warmup_steps,
        muon_lr=recipe.muon_lr,
        adam_lr=recipe.adam_lr,
        weight_decay=recipe.weight_decay,
    )
    generator = torch.Generator().manual_seed(SEED)
    started = time.monotonic()
    for step in range(recipe.steps):
        # Attention dominates at the full context, so only the last steps see it.
        late = step >= recipe.steps * (1.0 - recipe.long_share)
        window = recipe.long_window if late else recipe.window
        windows = window_batches(
            stream, window=window, batch_size=recipe.batch_tokens // window, generator=generator
        )
        loss = next_token_loss(model, windows)
        loss.backward()
        optimiser.step(step)
        if step % 25 == 0:
            elapsed = time.monotonic() - started
            logger.info("target step %d loss %.3f nats, %.0f s", step, loss.item(), elapsed)
    return model.eval()


@torch.no_grad()
def perplexity(model: Qwen3ForCausalLM, stream: torch.Tensor, *, window: int = 512) -> float:
    """Return exp(mean nats per token) over consecutive windows of a held-out stream."""
    count = (len(stream) - 1) // window
    windows = torch.stack([stream[i * window : i * window + window + 1] for i in range(count)])
    losses = [next_token_loss(model, part) * len(part) for part in windows.split(16)]
    return math.exp(torch.stack(losses).sum().item() / count)


def save_target(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the target as bfloat16 weights with tokenizer and generation defaults."""
    end_id = token_id(tokenizer, END_OF_TEXT)
    model.generation_config = GenerationConfig(eos_token_id=end_id, pad_token_id=end_id)
    model.to(torch.bfloat16).save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    (folder / "model.safetensors").chmod(0o644)  # written for its owner only
    model.float()
