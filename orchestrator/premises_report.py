"""Premises and what stands on them, as text."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.core.dependence import MEANING
from orchestrator.core.premises import Compared
from orchestrator.premises_check import Checked
from orchestrator.promotion_report import describe

_LABELS = {
    "holds": "holds",
    "changed": "CHANGED",
    "stands": "stands",
    "stale": "STALE",
    "unknown": "unchecked",
}
_WIDTH = max(map(len, _LABELS.values()))


def format_check(alias: str, checked: Checked) -> list[str]:
    """Return every premise of a version and every conclusion, line by line.

    Args:
        alias: Of the version.
        checked: The version beside the world.
    """
    lines = [f"{alias}: {describe(checked.version)}"]
    if checked.fault is not None:
        return [*lines, f"  nothing can be said: {checked.fault}"]
    lines.append("  premises")
    lines += [f"    {_label(item.state)}  {item.sentence}" for item in checked.compared]
    lines.append("  conclusions")
    for item in checked.judged:
        lines.append(
            f"    {_label(item.state)}  {item.conclusion.value}: {MEANING[item.conclusion]}"
        )
        lines += [f"    {'':<{_WIDTH}}    {item.reason(premise)}" for premise in item.because]
    return lines


def format_short(alias: str, checked: Checked) -> list[str]:
    """Return what does not stand of a version, a line a conclusion; one line where all does."""
    if checked.state == "stands":
        return [f"premises of the {alias}: all hold"]
    if checked.fault is not None:
        return [f"premises of the {alias}: nothing can be said: {checked.fault}"]
    words = "not all hold" if checked.state == "stale" else "not all can be checked here"
    lines = [f"premises of the {alias}: {words}; `premises` says more"]
    lines += [
        f"  {item.conclusion.value} is stale: {_names(item.because)} changed"
        for item in checked.judged
        if item.state == "stale"
    ]
    unknown = [item for item in checked.compared if item.state == "unknown"]
    return [*lines, *(f"  not checked here: {item.sentence}" for item in unknown)]


def _names(compared: Sequence[Compared]) -> str:
    return ", ".join(item.words for item in compared)


def _label(state: str) -> str:
    return f"{_LABELS[state]:<{_WIDTH}}"
