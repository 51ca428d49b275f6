"""Results as lines of plain ASCII text; printing is the caller's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.core.race import RaceSettings
from orchestrator.core.summary import ArmSummary
from orchestrator.core.types import Arm, BoardModel, Cell
from orchestrator.core.verdict import Verdict


def format_results_table(
    summaries: Sequence[ArmSummary], *, board: BoardModel | None
) -> list[str]:
    """Return the table of a running or finished study, one line an arm.

    Args:
        summaries: One an arm, as ``core.summary.summarise`` gives them.
        board: Source of modelled step times; its name stands below the table.
    """
    raise NotImplementedError


def format_plan(
    arms: Sequence[Arm],
    *,
    weights: Mapping[Cell, float],
    board: BoardModel | None,
    incumbent: Arm | None,
    settings: RaceSettings,
    seconds_per_boot: float | None = None,
) -> list[str]:
    """Return what a study will do: arms, cells, boots, and hours where a boot's time is known.

    Args:
        arms: The space.
        weights: The traffic's share by cell; its keys are the cells.
        board: Source of modelled step times.
        incumbent: What serves now.
        settings: The race's budget.
        seconds_per_boot: Boot and blocks of one trial; None when unknown.
    """
    raise NotImplementedError


def format_verdict(verdict: Verdict) -> list[str]:
    """Return the verdict: kind, sentences, ranking, gates."""
    raise NotImplementedError


def verdict_markdown(verdict: Verdict) -> str:
    """Return the verdict as a Markdown document, for tracking."""
    raise NotImplementedError
