"""Sampling from the target, and the target's view of a text: features and logits."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, Qwen3ForCausalLM


def aux_features(
    target: Qwen3ForCausalLM, tokens: torch.Tensor, layer_ids: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the draft sees of the target, and the target's next-token logits.

    Args:
        target: The target model.
        tokens: [batch, length] int64.
        layer_ids: Residual streams to take: 0 is the embedding, n the output of layer n, before
            the final norm.

    Returns:
        Features [batch, length, len(layer_ids) * hidden] and logits [batch, length, vocab].
    """
    streams: dict[int, torch.Tensor] = {}

    def keep(layer_id: int) -> Callable[[nn.Module, object, Any], None]:
        def hook(_module: nn.Module, _inputs: object, output: Any) -> None:
            streams[layer_id] = output[0] if isinstance(output, tuple) else output

        return hook

    modules = [target.model.embed_tokens, *target.model.layers]
    handles = [modules[i].register_forward_hook(keep(i)) for i in layer_ids]
    try:
        logits = target(input_ids=tokens, use_cache=False).logits
    finally:
        for handle in handles:
            handle.remove()
    return torch.cat([streams[i] for i in layer_ids], dim=-1), logits


@torch.no_grad()
def sample_rows(
    target: Qwen3ForCausalLM,
    prompts: list[torch.Tensor],
    *,
    length: int,
    temperature: float,
    generator: torch.Generator,
) -> torch.Tensor:
    """Continue prompts of any length with the target, without a padding token.

    Prompt tokens are forced where a row still has them, so rows of different length share a batch.

    Args:
        target: The target model.
        prompts: Token ids, each [prompt_length] int64, shorter than length.
        length: Length of every row returned, prompt included.
        temperature: Sampling temperature, above 0.
        generator: Source of randomness.

    Returns:
        Tokens [len(prompts), length] int64.
    """
    rows = torch.full((len(prompts), length), -1, dtype=torch.int64)
    for row, prompt in zip(rows, prompts, strict=True):
        row[: len(prompt)] = prompt
    start = min(len(prompt) for prompt in prompts)
    cache = DynamicCache()
    inputs = rows[:, :start]
    for position in range(start, length):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = target(
                input_ids=inputs, past_key_values=cache, use_cache=True, logits_to_keep=1
            )
        weights = torch.softmax(output.logits[:, -1].float() / temperature, dim=-1)
        drawn = torch.multinomial(weights, 1, generator=generator).squeeze(1)
        forced = rows[:, position]
        rows[:, position] = torch.where(forced < 0, drawn, forced)
        inputs = rows[:, position : position + 1]
    return rows


def sample_windows(
    target: Qwen3ForCausalLM,
    stream: torch.Tensor,
    *,
    count: int,
    length: int,
    prompt_tokens: int,
    temperature: float,
    generator: torch.Generator,
    batch_size: int = 256,
) -> torch.Tensor:
    """Return windows that start with training text and go on with the target's own samples.

    Returns:
        Tokens [count, length] int64; the first prompt_tokens of each row are training text.
    """
    parts = []
    for begin in range(0, count, batch_size):
        size = min(batch_size, count - begin)
        starts = torch.randint(len(stream) - prompt_tokens, (size,), generator=generator)
        prompts = [stream[s : s + prompt_tokens] for s in starts.tolist()]
        parts.append(
            sample_rows(
                target, prompts, length=length, temperature=temperature, generator=generator
            )
        )
    return torch.cat(parts)
