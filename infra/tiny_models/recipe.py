"""The choices behind the two models, in one place."""

import dataclasses

SEED = 20261129
END_OF_TEXT = "<|endoftext|>"  # separates files in training and stops generation
MASK = "<|mask|>"  # the draft's placeholder for a token that is not known yet
CONTEXT_TOKENS = 1024  # max_position_embeddings of both models
SIZE_LIMIT_BYTES = 8_000_000  # both folders together, every file


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TargetRecipe:
    """Shape and training of the target.

    A vocabulary of 512 keeps the embedding small and each token short, and short tokens are more
    predictable. All lengths are in tokens.
    """

    vocab_size: int = 512
    hidden_size: int = 192
    intermediate_size: int = 512
    num_layers: int = 4
    num_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 32
    rope_theta: float = 10_000.0
    window: int = 256
    long_window: int = 1024
    long_share: float = 0.1
    batch_tokens: int = 6144
    steps: int = 800
    muon_lr: float = 0.02
    adam_lr: float = 4e-3
    warmup_steps: int = 40
    weight_decay: float = 0.05


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DraftRound:
    """One run of a learning-rate schedule; a later round goes on where the earlier one ended.

    Attributes:
        steps: Steps taken.
        schedule_steps: Length of the schedule, of which the steps are the first ones.
        peak: Share of the recipe's learning rates.
        decay_share: Share of the schedule, at its end, over which the rates fall.
    """

    steps: int
    schedule_steps: int
    peak: float
    decay_share: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DraftRecipe:
    """Shape and training of the draft.

    `aux_layer_ids` count the target's hidden states: 0 is the embedding, n the output of layer n.
    vLLM's `target_layer_ids` are these minus one. The first round was cut short, its rates still
    high, and the second took it up again at half of them and let them fall to the end.
    """

    aux_layer_ids: tuple[int, ...] = (1, 2, 3, 4)
    num_layers: int = 3
    intermediate_size: int = 512
    block_size: int = 8
    conv_kernel_size: int = 2
    conv_group_size: int = 16
    selector_rank: int = 64
    selector_top_k: int = 16
    window: int = 256
    batch_size: int = 6
    anchors_per_window: int = 40
    rounds: tuple[DraftRound, ...] = (
        DraftRound(steps=600, schedule_steps=680, peak=1.0, decay_share=0.5),
        DraftRound(steps=600, schedule_steps=600, peak=0.5, decay_share=1.0),
    )
    muon_lr: float = 0.02
    adam_lr: float = 3e-3
    warmup_steps: int = 40
    sample_windows: int = 1536
    sample_temperatures: tuple[float, ...] = (0.7, 0.7, 1.0)
    prompt_tokens: int = 64


def shortened(
    target: TargetRecipe, draft: DraftRecipe, num_steps: int
) -> tuple[TargetRecipe, DraftRecipe]:
    """Return recipes that take a few steps only, to try out the whole build; not for use.

    Args:
        target: Recipe to shorten.
        draft: Recipe to shorten.
        num_steps: Steps of the target and of every round of the draft, at most.
    """
    windows = 4 * len(draft.sample_temperatures)
    rounds = tuple(dataclasses.replace(r, steps=min(num_steps, r.steps)) for r in draft.rounds)
    return (
        dataclasses.replace(target, steps=min(num_steps, target.steps)),
        dataclasses.replace(
            draft, rounds=rounds, sample_windows=min(windows, draft.sample_windows)
        ),
    )
