"""The DFlash2 draft: the speculators model, run on batches of windows with many anchors each."""

import dataclasses

import torch
from speculators.models.dflash2 import DFlash2DraftModel, DFlash2SpeculatorConfig
from transformers import Qwen3Config, Qwen3ForCausalLM

from infra.tiny_models.recipe import CONTEXT_TOKENS, DraftRecipe


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DraftOutput:
    """What the draft says at the drafted positions 1..block_size-1 of every anchor.

    Attributes:
        hidden: [batch, anchors, depth, hidden], final norm applied.
        unary: Logits before the selector, [batch, anchors, depth, vocab].
    """

    hidden: torch.Tensor
    unary: torch.Tensor


def draft_layer_config(target: Qwen3Config, recipe: DraftRecipe) -> Qwen3Config:
    """Return the transformer configuration of the draft: the target's, with its own depth."""
    config = Qwen3Config(
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=recipe.num_layers,
        num_attention_heads=target.num_attention_heads,
        num_key_value_heads=target.num_key_value_heads,
        head_dim=target.head_dim,
        max_position_embeddings=CONTEXT_TOKENS,
        rope_parameters=target.rope_parameters,
        rms_norm_eps=target.rms_norm_eps,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )
    config._attn_implementation = "sdpa"  # noqa: SLF001 (flex attention has no CPU backward)
    return config


def build_draft(target: Qwen3ForCausalLM, recipe: DraftRecipe, mask_id: int) -> DFlash2DraftModel:
    """Return a fresh draft that shares the target's embedding and head.

    Layers start as copies of the target's, spread from the first to the last, where shapes allow.
    """
    config = DFlash2SpeculatorConfig(
        transformer_layer_config=draft_layer_config(target.config, recipe),
        draft_vocab_size=target.config.vocab_size,
        block_size=recipe.block_size,
        aux_hidden_state_layer_ids=list(recipe.aux_layer_ids),
        mask_token_id=mask_id,
        conv_kernel_size=recipe.conv_kernel_size,
        conv_group_size=recipe.conv_group_size,
        selector_rank=recipe.selector_rank,
        selector_top_k=recipe.selector_top_k,
    )
    model = DFlash2DraftModel(config).float()
    weight = target.model.embed_tokens.weight.detach().float()
    with torch.no_grad():
        model.embed_tokens.weight.copy_(weight)
        model.lm_head.weight.copy_(weight)
        model.verifier_lm_head.weight.copy_(weight)
        model.norm.weight.copy_(target.model.norm.weight)
    if recipe.intermediate_size == target.config.intermediate_size:
        _copy_layers(target, model)
    _start_features(model)
    return model


def _copy_layers(target: Qwen3ForCausalLM, draft: DFlash2DraftModel) -> None:
    """Start each draft layer from a target layer, the last from the last."""
    last = len(target.model.layers) - 1
    depth = len(draft.layers)
    for i, layer in enumerate(draft.layers):
        source = target.model.layers[round(i * last / max(1, depth - 1))]
        layer.load_state_dict(source.state_dict(), strict=False)


def _start_features(draft: DFlash2DraftModel) -> None:
    """Start the feature projection as a weighted sum of the target's residual streams.

    The streams share one basis and grow with depth, hence the falling weights.
    """
    size = draft.hidden_size
    with torch.no_grad():
        for i, block in enumerate(draft.fc.weight.split(size, dim=1)):
            block.copy_(torch.eye(size) * 0.5**i)


def _attention_mask(anchors: torch.Tensor, length: int, block_size: int) -> torch.Tensor:
    """Return the boolean mask [batch, 1, anchors * block, length + anchors * block].

    A block sees the context before its anchor and the whole of itself, nothing else.
    """
    num_anchors = anchors.shape[1]
    owner = torch.arange(num_anchors).repeat_interleave(block_size)
    before = (
        torch.arange(length)[None, None] < anchors.repeat_interleave(block_size, dim=1)[..., None]
    )
    own = (owner[:, None] == owner[None, :]).expand(anchors.shape[0], -1, -1)
    return torch.cat([before, own], dim=-1)[:, None]


def run_draft(
    model: DFlash2DraftModel, features: torch.Tensor, tokens: torch.Tensor, anchors: torch.Tensor
) -> DraftOutput:
    """Run the draft from many anchors of each window at once.

    Args:
        model: The draft.
        features: The target's features, [batch, length, num_features].
        tokens: [batch, length] int64.
        anchors: Positions of the last known token, [batch, num_anchors] int64.
    """
    batch, length = tokens.shape
    num_anchors, block = anchors.shape[1], model.block_size
    offsets = torch.arange(block)
    ids = torch.full((batch, num_anchors, block), model.mask_token_id, dtype=torch.int64)
    ids[:, :, 0] = tokens.gather(1, anchors)
    hidden = model.embed_tokens(ids.flatten(1))
    context = model.hidden_norm(model.fc(features))
    positions = torch.cat(
        [torch.arange(length).expand(batch, -1), (anchors[..., None] + offsets).flatten(1)], dim=1
    )
    rotary = model.rotary_emb(hidden, positions)
    mask = _attention_mask(anchors, length, block)
    for layer in model.layers:
        hidden = layer(
            hidden_states=hidden,
            target_hidden=context,
            attention_mask=mask,
            position_embeddings=rotary,
            use_cache=False,
        )
    drafted = model.norm(hidden).view(batch, num_anchors, block, -1)[:, :, 1:]
    return DraftOutput(hidden=drafted, unary=model.lm_head(drafted))


def selector_scores(
    model: DFlash2DraftModel, output: DraftOutput, predecessors: torch.Tensor
) -> torch.Tensor:
    """Return unary plus transition scores over the whole vocabulary, [..., vocab].

    Args:
        model: The draft.
        output: What the draft says, [batch, anchors, depth, ...].
        predecessors: The token before each drafted position, [batch, anchors, depth] int64.
    """
    selector = model.candidate_selector
    context = selector.context(output.hidden, predecessors)
    scores: torch.Tensor = output.unary + context @ selector.successor_codebook.T
    return scores


def served_scores(scores: torch.Tensor, unary: torch.Tensor, top_k: int) -> torch.Tensor:
    """Return the scores with everything outside the unary top-k at -inf, as served."""
    candidates = unary.topk(top_k, dim=-1).indices
    kept = torch.full_like(scores, float("-inf"))
    return kept.scatter(-1, candidates, scores.gather(-1, candidates))


def block_tokens(tokens: torch.Tensor, anchors: torch.Tensor, block_size: int) -> torch.Tensor:
    """Return the tokens of each block, anchor first, [batch, anchors, block_size]."""
    index = (anchors[..., None] + torch.arange(block_size)).flatten(1)
    return tokens.gather(1, index).view(*anchors.shape, block_size)
