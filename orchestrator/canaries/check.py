"""An arm's server beside its control's: canaries and scored tasks of both, compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.canaries.run import CanarySettings, run_canaries
from orchestrator.canaries.scored import ScoreSettings, score_tasks
from orchestrator.canaries.served import ask_served
from orchestrator.canaries.wire import Server
from orchestrator.core.promotion import Gate
from orchestrator.core.quality import (
    CanaryComparison,
    TaskComparison,
    TaskSettings,
    canaries_gate,
    compare_canary,
    compare_task,
    context_result,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QualitySettings:
    """What is asked, and how answers are compared."""

    canaries: CanarySettings = field(default_factory=CanarySettings)
    tasks: tuple[Path, ...] = ()
    """YAML files, as ``find_task`` returns them; empty runs none."""
    scoring: ScoreSettings = field(default_factory=ScoreSettings)
    comparison: TaskSettings = field(default_factory=TaskSettings)
    normal: Mapping[str, float] = field(default_factory=dict)
    """Score of the control in earlier evaluations by task, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityReport:
    """What was found, and what the gate says of it."""

    canaries: tuple[CanaryComparison, ...]
    tasks: tuple[TaskComparison, ...]
    gate: Gate


def check_quality(
    arm: Server,
    control: Server,
    settings: QualitySettings,
    *,
    tell: Callable[[str], None] = lambda _line: None,
) -> QualityReport:
    """Ask both servers the same, the control first, and compare.

    Args:
        arm: The server that is judged.
        control: The same target without the arm's speculation.
        settings: What is asked.
        tell: Hears of each result.

    Raises:
        ConfigError: Tasks were asked for and the harness is not installed.
    """
    served, served_control = ask_served(arm), ask_served(control)
    limits = [s.max_model_len for s in (served, served_control) if s.max_model_len is not None]
    asked = replace(settings.canaries, max_model_len=min(limits, default=None))
    scoring = replace(settings.scoring, max_model_len=min(limits, default=None))

    def tell_control(line: str) -> None:
        tell(f"control {line}")

    def tell_arm(line: str) -> None:
        tell(f"arm     {line}")

    theirs = run_canaries(control, asked, served=served_control, tell=tell_control)
    ours = run_canaries(arm, asked, served=served, tell=tell_arm)
    wanted = served_control.max_model_len
    pairs = [
        (context_result(served.max_model_len, wanted), context_result(wanted, wanted)),
        *zip(ours, theirs, strict=True),
    ]
    canaries = tuple(compare_canary(own, other) for own, other in pairs)
    tasks: tuple[TaskComparison, ...] = ()
    if settings.tasks:
        scores = score_tasks(control, settings.tasks, scoring, tell=tell_control)
        tasks = tuple(
            compare_task(own, other, settings.comparison, normal=settings.normal.get(own.task))
            for own, other in zip(
                score_tasks(arm, settings.tasks, scoring, tell=tell_arm), scores, strict=True
            )
        )
    return QualityReport(canaries=canaries, tasks=tasks, gate=canaries_gate(canaries, tasks))
