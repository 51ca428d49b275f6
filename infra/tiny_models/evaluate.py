"""The acceptance length that vLLM would measure, simulated in PyTorch.

Lossless speculation emits tokens that follow the target, so the emitted text can be drawn first,
from the target alone. Given that text, the chance that at least i drafted tokens of a block are
accepted is known in closed form from p and q along the text: the product of min(1, q/p) for
standard rejection, and p_i / prod(p/q) with p_i = min(1, p_{i-1} p/q) for block verification. A
walk over the text with these chances visits blocks exactly as the engine does.
"""

import dataclasses

import torch
from speculators.models.dflash2 import DFlash2DraftModel
from transformers import Qwen3ForCausalLM

from infra.tiny_models import draft as drafting
from infra.tiny_models.sampling import aux_features, sample_rows

RULES = (("greedy", "standard"), ("probabilistic", "standard"), ("probabilistic", "block"))
CHUNK = 4  # windows at a time: all anchors of a window are run at once
WALKS = 8  # walks over each sampled text


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Simulated acceptance of one rule at one temperature.

    Attributes:
        length: 1 + accepted / drafts, in tokens per step, bonus token counted.
        per_position: Share of drafts whose position i was accepted, [depth].
        steps: Number of verification steps simulated.
    """

    length: float
    per_position: tuple[float, ...]
    steps: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScoredText:
    """Sampled text with the log-probabilities of its tokens under target and draft.

    Attributes:
        target: log p of the tokens of each block, [windows, anchors, depth].
        draft: log q of the same under the draft, -inf outside its candidates.
        is_argmax: Whether the token is the draft's first choice, same shape.
    """

    target: torch.Tensor
    draft: torch.Tensor
    is_argmax: torch.Tensor


@torch.no_grad()
def score_windows(
    target: Qwen3ForCausalLM,
    draft: DFlash2DraftModel,
    tokens: torch.Tensor,
    anchors: torch.Tensor,
    *,
    temperature: float,
) -> ScoredText:
    """Score the blocks at the anchors [windows, anchors] of the windows [windows, length]."""
    parts = [
        _score_chunk(target, draft, some_tokens, some_anchors, temperature=temperature)
        for some_tokens, some_anchors in zip(
            torch.split(tokens, CHUNK), torch.split(anchors, CHUNK), strict=True
        )
    ]
    log_p, log_q, hits = (torch.cat(list(column)) for column in zip(*parts, strict=True))
    return ScoredText(target=log_p, draft=log_q, is_argmax=hits)


def _score_chunk(
    target: Qwen3ForCausalLM,
    draft: DFlash2DraftModel,
    tokens: torch.Tensor,
    anchors: torch.Tensor,
    *,
    temperature: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return log p, log q and argmax hits of a few windows, each [windows, anchors, depth]."""
    features, logits = aux_features(target, tokens, tuple(draft.target_layer_ids))
    output = drafting.run_draft(draft, features, tokens, anchors)
    blocks = drafting.block_tokens(tokens, anchors, draft.block_size)
    scores = drafting.served_scores(
        drafting.selector_scores(draft, output, blocks[..., :-1]),
        output.unary,
        draft.candidate_selector.top_k,
    )
    labels = blocks[..., 1:, None]
    log_q = torch.log_softmax(scores / temperature, -1).gather(-1, labels).squeeze(-1)
    next_log_p = torch.log_softmax(logits / temperature, -1)[:, :-1]
    next_log_p = next_log_p.gather(-1, tokens[:, 1:, None]).squeeze(-1)
    log_p = drafting.block_tokens(next_log_p, anchors, draft.block_size - 1)
    return log_p, log_q, scores.argmax(-1) == labels.squeeze(-1)


def survival(text: ScoredText, draft_rule: str, rejection_rule: str) -> torch.Tensor:
    """Return P(at least i drafted tokens accepted | text), [windows, anchors, depth]."""
    if draft_rule == "greedy":  # a point mass: accepted exactly where the text agrees
        return text.is_argmax.float().cumprod(-1)
    log_ratio = text.target - text.draft
    if rejection_rule == "standard":
        return torch.exp(-log_ratio.clamp_min(0.0)).cumprod(-1)
    prefix = torch.zeros_like(log_ratio[..., 0])
    chances = []
    for i in range(log_ratio.shape[-1]):
        prefix = torch.clamp_max(prefix + log_ratio[..., i], 0.0)
        chances.append(torch.exp(prefix - log_ratio[..., : i + 1].sum(-1)))
    return torch.stack(chances, dim=-1).nan_to_num(0.0).cummin(-1).values


def walk(chances: torch.Tensor, *, repeats: int, seed: int) -> Acceptance:
    """Walk each window block by block and count accepted tokens.

    Args:
        chances: P(at least i accepted) at every anchor, [windows, anchors, depth].
        repeats: Walks of each window.
        seed: Seed of the walks.
    """
    generator = torch.Generator().manual_seed(seed)
    windows, anchors, depth = chances.shape
    histogram = torch.zeros(depth + 1)
    for _ in range(repeats):
        draws = torch.rand(windows, anchors, 1, generator=generator)
        for taken in (draws < chances).sum(-1).tolist():
            anchor = 0
            while anchor < anchors:
                histogram[taken[anchor]] += 1
                anchor += taken[anchor] + 1
    steps = histogram.sum()
    reached = histogram.flip(0).cumsum(0).flip(0)[1:] / steps
    return Acceptance(
        length=1.0 + reached.sum().item(),
        per_position=tuple(reached.tolist()),
        steps=int(steps.item()),
    )


def evaluate_pair(
    target: Qwen3ForCausalLM,
    draft: DFlash2DraftModel,
    prompts: list[torch.Tensor],
    *,
    temperatures: tuple[float, ...] = (0.7, 1.0),
    new_tokens: int = 160,
    seed: int = 0,
) -> dict[tuple[str, str, float], Acceptance]:
    """Return the simulated acceptance of each rule at each temperature.

    Args:
        target: The target, float32.
        draft: The draft, float32.
        prompts: Held-out prompts, each [prompt_length] int64.
        temperatures: Sampling temperatures.
        new_tokens: Tokens sampled after each prompt.
        seed: Seed of texts and walks.
    """
    results = {}
    first = torch.tensor([len(p) for p in prompts])
    anchors = first[:, None] + torch.arange(new_tokens - draft.block_size + 1)
    for temperature in temperatures:
        tokens = sample_rows(
            target,
            prompts,
            length=int(first.max()) + new_tokens,
            temperature=temperature,
            generator=torch.Generator().manual_seed(seed),
        )
        text = score_windows(target, draft, tokens, anchors, temperature=temperature)
        for draft_rule, rejection_rule in RULES:
            chances = survival(text, draft_rule, rejection_rule)
            found = walk(chances, repeats=WALKS, seed=seed)
            results[draft_rule, rejection_rule, temperature] = found
    return results


@torch.no_grad()
def expected_on(
    target: Qwen3ForCausalLM,
    draft: DFlash2DraftModel,
    texts: list[tuple[torch.Tensor, torch.Tensor]],
    *,
    temperature: float,
    rule: tuple[str, str],
) -> Acceptance:
    """Return the acceptance to expect where an engine emitted these very tokens.

    Args:
        target: The target, float32.
        draft: The draft, float32.
        texts: Prompt and emitted tokens of each request; all emitted equally many.
        temperature: Sampling temperature that the text was drawn at.
        rule: Draft rule and rejection rule.
    """
    rows = torch.zeros(len(texts), max(len(p) + len(e) for p, e in texts), dtype=torch.int64)
    for row, (prompt, emitted) in zip(rows, texts, strict=True):
        row[: len(prompt) + len(emitted)] = torch.cat([prompt, emitted])
    first = torch.tensor([len(prompt) for prompt, _ in texts])
    anchors = first[:, None] + torch.arange(len(texts[0][1]) - draft.block_size + 1)
    scored = score_windows(target, draft, rows, anchors, temperature=temperature)
    return walk(survival(scored, *rule), repeats=4 * WALKS, seed=0)


def line(found: Acceptance) -> str:
    """Return one result in a line."""
    positions = " ".join(f"{x:.3f}" for x in found.per_position)
    return f"{found.length:.3f} over {found.steps} steps, per position {positions}"


def report(results: dict[tuple[str, str, float], Acceptance]) -> str:
    """Return the results as a Markdown table."""
    lines = [
        "| draft | rejection | T | acceptance length | per position | steps |",
        "|---|---|---|---|---|---|",
    ]
    for (draft_rule, rejection_rule, temperature), found in results.items():
        positions = " ".join(f"{x:.2f}" for x in found.per_position)
        lines.append(
            f"| {draft_rule} | {rejection_rule} | {temperature} | {found.length:.2f} "
            f"| {positions} | {found.steps} |"
        )
    return "\n".join(lines)
