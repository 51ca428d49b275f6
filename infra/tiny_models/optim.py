"""The optimiser that both trainings share: Muon for matrices, AdamW for the rest."""

import math

import torch
from torch import nn

# Lookup tables, and kernels that start at zero, are not meant for orthogonal updates.
NOT_MUON = ("embed", "lm_head", "codebook", "kernel")


class Optimiser:
    """Muon on hidden matrices and AdamW on everything else, one cosine schedule for both.

    Muon roughly halves the steps that a model of this size needs, and its cost does not grow with
    the batch.
    """

    def __init__(
        self,
        named: list[tuple[str, nn.Parameter]],
        *,
        steps: int,
        warmup_steps: int,
        muon_lr: float,
        adam_lr: float,
        weight_decay: float = 0.0,
        decay_share: float = 1.0,
    ) -> None:
        """Split the parameters between the two optimisers.

        Args:
            named: Trainable parameters with their names.
            steps: Length of the schedule, in steps.
            warmup_steps: Steps of linear warm-up.
            muon_lr: Peak learning rate of the matrices.
            adam_lr: Peak learning rate of the rest.
            weight_decay: Decoupled weight decay of the matrices.
            decay_share: Share of the steps, at the end, over which the rates fall.
        """
        matrices = [p for n, p in named if _is_hidden_matrix(n, p)]
        rest = [p for n, p in named if not _is_hidden_matrix(n, p)]
        self._steps = steps
        self._warmup = warmup_steps
        self._decay_share = decay_share
        self._peaks = (muon_lr, adam_lr)
        self._parameters = matrices + rest
        self._optimisers: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.Muon(
                matrices, lr=muon_lr, weight_decay=weight_decay, adjust_lr_fn="original"
            ),
            torch.optim.AdamW(rest, lr=adam_lr, betas=(0.9, 0.95), weight_decay=0.0),
        )

    def step(self, step: int) -> None:
        """Apply the gradients of one step and clear them."""
        factor = self._factor(step)
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        for optimiser, peak in zip(self._optimisers, self._peaks, strict=True):
            for group in optimiser.param_groups:
                group["lr"] = peak * factor
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    def _factor(self, step: int) -> float:
        """Return the learning-rate factor, in (0, 1]: up, level, then cosine down to 0.02."""
        if step < self._warmup:
            return (step + 1) / self._warmup
        start = max(self._warmup, self._steps * (1.0 - self._decay_share))
        done = (step - start) / max(1.0, self._steps - start)
        return 0.02 + 0.98 * 0.5 * (1.0 + math.cos(math.pi * min(1.0, max(0.0, done))))


def _is_hidden_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Return whether Muon is meant for this parameter."""
    return parameter.ndim == 2 and not any(s in name for s in NOT_MUON)
