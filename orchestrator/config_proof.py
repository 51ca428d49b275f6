"""What a study's configuration asks of the proof boots of its choice and of its control."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config_places import require, require_count
from orchestrator.core.proof import Demand

MAX_PROOF_TOKENS = 10**12
"""Of a proof: years of any engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofConfig:
    """What must be shown of an arm's output before it may serve.

    When the race has chosen, the control (the same build without speculation) and the choice get
    one boot each beyond ``search.max_boots``, in which nothing is timed.
    """

    lossless: Demand = "required"
    """That the output follows the target's distribution. ``required``: what is not shown keeps the
    arm out. ``reported``: only what is shown to be wrong does. ``skipped``: not looked at."""
    canaries: Demand = "required"
    """That answers are what was asked for, as the control's are; likewise."""
    displacement: float = 0.01
    """Largest share of displaced tokens that a pass may leave unseen, above 0 and below 1. Half as
    much takes four times as many tokens: raise ``max_tokens`` with it."""
    error: float = 0.001
    """Chance that text or audit rejects a lossless arm, above 0 and below 1; half for each. The
    greedy rule and each task have chances of their own."""
    max_tokens: int = 200_000
    """Output tokens of the arm after which the text test answers, whatever it is."""
    control_tokens: int = 20_000
    """Output tokens of the control, by which numerics are known."""
    greedy_tokens: int = 20_000
    """Output tokens of either at temperature 0; asked only where the load has this temperature."""
    workload: str = "code"
    """Prompts of the text test: plain ones, by name or path as in ``load.workload``."""
    answer_tokens: int = 256
    """Of one answer of the text test."""
    tasks: tuple[str, ...] = ()
    """Scored tasks, by the name of a shipped one or the path of a YAML file; the extra ``eval`` is
    needed."""
    task_points: float = 10.0
    """Loss of a task, in points of 100, that must be excluded, above 0 and below 100."""

    def __post_init__(self) -> None:
        """Check ranges.

        Raises:
            ConfigError: A value is out of range, or tasks are asked for and not looked at.
        """
        for name, usual in (("displacement", 0.01), ("error", 0.001)):
            value = getattr(self, name)
            require(0 < value < 1, f"proof.{name}", f"{value} is not in (0, 1)", f"use {usual}")
        require(self.error >= 1e-9, "proof.error", f"{self.error} is below 1e-9", "use 0.001")
        for name in ("max_tokens", "control_tokens", "greedy_tokens", "answer_tokens"):
            require_count(f"proof.{name}", getattr(self, name), MAX_PROOF_TOKENS)
        require(
            0 < self.task_points < 100,
            "proof.task_points",
            f"{self.task_points:g} is not in (0, 100)",
            "use 10",
        )
        require(
            not self.tasks or self.canaries != "skipped",
            "proof.tasks",
            "are named although proof.canaries is skipped",
            "set proof.canaries=reported or empty proof.tasks",
        )
