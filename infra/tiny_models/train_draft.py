"""Train the draft on the target's own samples, with the target's whole distribution as label."""

import dataclasses
import logging
import time

import torch
from speculators.losses import dflash_loss_decay
from speculators.losses.eager import kl_div_loss, tv_loss
from speculators.models.dflash2 import DFlash2DraftModel
from transformers import Qwen3ForCausalLM

from infra.tiny_models import draft as drafting
from infra.tiny_models.optim import Optimiser
from infra.tiny_models.recipe import SEED, DraftRecipe, DraftRound
from infra.tiny_models.sampling import aux_features, sample_windows

logger = logging.getLogger(__name__)

UNARY_WEIGHT = 0.5  # the unary logits choose the candidates, so they are trained as well
TV_WEIGHT = 1.0
POSITION_DECAY = 4.0  # in positions: a late token counts only where the early ones were accepted


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TargetView:
    """Sampled windows with everything the draft's training needs of the target.

    The target is frozen, so its part is computed once, in bfloat16, instead of at every step.

    Attributes:
        tokens: [count, window] int64.
        temperatures: Temperature each window was sampled at, [count].
        features: [count, window, num_features].
        logits: [count, window, vocab].
    """

    tokens: torch.Tensor
    temperatures: torch.Tensor
    features: torch.Tensor
    logits: torch.Tensor


@torch.no_grad()
def view_target(
    target: Qwen3ForCausalLM,
    tokens: torch.Tensor,
    temperatures: torch.Tensor,
    recipe: DraftRecipe,
) -> TargetView:
    """Run the target once over all windows [count, window]."""
    features, logits = [], []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for part in tokens.split(16):
            seen, said = aux_features(target, part, recipe.aux_layer_ids)
            features.append(seen.to(torch.bfloat16))
            logits.append(said.to(torch.bfloat16))
    return TargetView(
        tokens=tokens,
        temperatures=temperatures,
        features=torch.cat(features),
        logits=torch.cat(logits),
    )


def distillation_set(
    target: Qwen3ForCausalLM, stream: torch.Tensor, recipe: DraftRecipe
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return windows sampled from the target and the temperature of each.

    Returns:
        Tokens [count, window] int64 and temperatures [count] float32, shuffled.
    """
    generator = torch.Generator().manual_seed(SEED + 1)
    windows, temperatures = [], []
    started = time.monotonic()
    for temperature in recipe.sample_temperatures:
        count = recipe.sample_windows // len(recipe.sample_temperatures)
        windows.append(
            sample_windows(
                target,
                stream,
                count=count,
                length=recipe.window,
                prompt_tokens=recipe.prompt_tokens,
                temperature=temperature,
                generator=generator,
            )
        )
        temperatures.append(torch.full((count,), temperature))
        logger.info("sampled %d windows, %.0f s", count, time.monotonic() - started)
    tokens, scale = torch.cat(windows), torch.cat(temperatures)
    order = torch.randperm(len(tokens), generator=generator)
    return tokens[order], scale[order]


def draft_loss(
    model: DFlash2DraftModel,
    output: drafting.DraftOutput,
    blocks: torch.Tensor,
    target_logits: torch.Tensor,
    temperature: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the training loss and the expected accepted tokens of each block.

    Args:
        model: The draft.
        output: What the draft says, [batch, anchors, depth, ...].
        blocks: Tokens of each block, anchor first, [batch, anchors, depth + 1].
        target_logits: The target's logits at the drafted positions, [batch, anchors, depth, vocab].
        temperature: Sampling temperature of each window, [batch].

    Returns:
        Loss (scalar) and overlap sum(min(p, q)) as served, [batch, anchors, depth].
    """
    scale = temperature[:, None, None, None]
    labels = target_logits.float() / scale
    scores = drafting.selector_scores(model, output, blocks[..., :-1]).float() / scale
    unary = output.unary.float() / scale
    served = drafting.served_scores(scores, unary, model.candidate_selector.top_k)
    distance = tv_loss(served, labels)
    loss = kl_div_loss(scores, labels) + UNARY_WEIGHT * kl_div_loss(unary, labels)
    loss = loss + TV_WEIGHT * distance
    weight = dflash_loss_decay(torch.arange(1, loss.shape[-1] + 1).float(), POSITION_DECAY)
    return (loss * weight).sum(-1).mean() / weight.sum(), 1.0 - distance.detach()


def _random_anchors(recipe: DraftRecipe, batch: int, generator: torch.Generator) -> torch.Tensor:
    """Return sorted distinct anchors of each window, [batch, anchors_per_window] int64."""
    low, high = recipe.prompt_tokens // 2, recipe.window - recipe.block_size
    noise = torch.rand(batch, high - low, generator=generator)
    chosen = noise.topk(recipe.anchors_per_window, dim=1).indices + low
    return chosen.sort(dim=1).values


def train_draft(
    target: Qwen3ForCausalLM, stream: torch.Tensor, recipe: DraftRecipe, mask_id: int
) -> DFlash2DraftModel:
    """Train a draft for the target.

    Args:
        target: The trained target, float32.
        stream: Training tokens that prompts are cut from, [num_tokens] int64.
        recipe: Shape and schedule.
        mask_id: Token id of the mask.

    Returns:
        The trained draft, float32, in evaluation mode.
    """
    tokens, temperatures = distillation_set(target, stream, recipe)
    view = view_target(target, tokens, temperatures, recipe)
    torch.manual_seed(SEED)
    model = drafting.build_draft(target, recipe, mask_id).train()
    for number, part in enumerate(recipe.rounds):
        generator = torch.Generator().manual_seed(SEED + 2 + number)
        fit_draft(model, view, recipe, part, generator)
    return model.eval()


def fit_draft(
    model: DFlash2DraftModel,
    view: TargetView,
    recipe: DraftRecipe,
    part: DraftRound,
    generator: torch.Generator,
) -> None:
    """Train the draft for one round on what is known of the target."""
    trainable = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    logger.info("draft: %d parameters", sum(p.numel() for _, p in trainable))
    optimiser = Optimiser(
        trainable,
        steps=part.schedule_steps,
        warmup_steps=recipe.warmup_steps,
        muon_lr=part.peak * recipe.muon_lr,
        adam_lr=part.peak * recipe.adam_lr,
        decay_share=part.decay_share,
    )
    started = time.monotonic()
    for step in range(part.steps):
        pick = torch.randint(len(view.tokens), (recipe.batch_size,), generator=generator)
        anchors = _random_anchors(recipe, recipe.batch_size, generator)
        loss, overlap = _batch_loss(model, view, pick, anchors)
        loss.backward()
        optimiser.step(step)
        if step % 25 == 0:
            length = 1.0 + overlap.cumprod(-1).sum(-1).mean().item()
            elapsed = time.monotonic() - started
            logger.info(
                "draft step %d loss %.3f length %.2f, %.0f s", step, loss.item(), length, elapsed
            )


def _batch_loss(
    model: DFlash2DraftModel, view: TargetView, pick: torch.Tensor, anchors: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return loss and overlap of the picked windows [batch], anchors [batch, num_anchors]."""
    tokens, logits = view.tokens[pick], view.logits[pick]
    depth = torch.arange(model.block_size - 1)
    index = (anchors[..., None] + depth).flatten(1)
    labels = logits.gather(1, index[..., None].expand(-1, -1, logits.shape[-1]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = drafting.run_draft(model, view.features[pick], tokens, anchors)
        return draft_loss(
            model,
            output,
            drafting.block_tokens(tokens, anchors, model.block_size),
            labels.view(*anchors.shape, len(depth), -1),
            view.temperatures[pick],
        )
