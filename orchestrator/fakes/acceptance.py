"""A model of what a target accepts of a draft, by rule, depth and temperature. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from orchestrator.core.types import Arm


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceModel:
    """Chance that the target accepts each drafted token, given that it accepted those before.

    Shaped like published tables, not fitted to one: greedy drafts lose where the target is
    random, probabilistic ones lose less, block verification gains at later positions, and what
    lies beyond the block that the draft was trained on is hardly ever accepted.
    """

    base: float = 0.78
    """Chance at the first position at temperature 0."""
    decay: float = 0.95
    """Factor from one position to the next."""
    greedy_loss_per_temperature: float = 0.30
    probabilistic_loss_per_temperature: float = 0.12
    block_gain: float = 0.03
    """Relative gain of ``block`` over ``standard`` from the second position on."""
    trained_depth: int = 7
    """Positions that the draft was trained for."""
    beyond_trained: float = 0.002
    """Chance at a position past ``trained_depth``."""
    prompt_spread: float = 0.08
    """Half the width of the prompts' own difficulty, in chance."""

    def rates(self, arm: Arm, temperature: float, *, prompt_id: str = "") -> tuple[float, ...]:
        """Return the unconditional rates by position, [num_speculative_tokens], falling.

        Args:
            arm: The arm; none for the baseline.
            temperature: Sampling temperature.
            prompt_id: Prompt whose difficulty counts; empty for the average prompt.
        """
        loss = self.greedy_loss_per_temperature
        if arm.draft_sample_method == "probabilistic":
            loss = self.probabilistic_loss_per_temperature
        first = self.base - loss * temperature
        if prompt_id:
            first += self.prompt_spread * random.Random(prompt_id).uniform(-1.0, 1.0)
        chances = []
        for position in range(arm.num_speculative_tokens):
            gain = self.block_gain if arm.rejection_sample_method == "block" and position else 0.0
            chance = first * self.decay**position * (1.0 + gain)
            if position >= self.trained_depth:
                chance = self.beyond_trained
            chances.append(min(max(chance, 0.0), 1.0))
        return tuple(accumulate(chances, mul))
