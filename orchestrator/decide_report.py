"""The answer of ``decide`` as lines of text and as a record; printing is the caller's."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence

from orchestrator.core.estimate import Contrast
from orchestrator.core.findings_text import findings_lines
from orchestrator.report import NONE, WIDTH, format_verdict, gate_lines, table, wrapped
from orchestrator.results.question import Answer, CellLine, Outcome, Place

_HEADLINES: dict[Outcome, str] = {
    "winner": "FASTER",
    "keep": "KEEP",
    "no_difference": "NO DIFFERENCE",
    "cannot_tell": "CANNOT TELL from these rows",
}


def format_answers(
    answers: Sequence[Answer],
    *,
    doubts: Sequence[str],
    num_rows: int,
    with_findings: bool = False,
) -> list[str]:
    """Return the whole answer: doubts about rows first, since they say what the rest rests on.

    Args:
        answers: One for each engine build.
        doubts: What is to be said of rows.
        num_rows: Rows that count.
        with_findings: Whether effects, depth curves and the like follow, where there are any.
    """
    lines = [f"{num_rows} rows count"]
    lines += [line for text in doubts for line in _item(text)]
    if len(answers) > 1:
        builds = ", ".join(answer.engine_build for answer in answers)
        lines += wrapped(
            f"{len(answers)} engine builds ({builds}): their numbers are neither pooled nor ranked "
            "together, whatever they show; each has an answer of its own."
        )
    for answer in answers:
        lines += ["", *_answer(answer)]
        if with_findings and answer.findings is not None:
            lines += ["", *findings_lines(answer.findings)]
    return lines


def answer_record(answer: Answer) -> dict[str, object]:
    """Return an answer as plain JSON types; docs/decide.md has its keys."""
    return {
        "engine_build": answer.engine_build,
        "outcome": answer.outcome,
        "winner": None if answer.winner is None else answer.winner.key,
        "reference": None if answer.reference is None else answer.reference.key,
        "basis": answer.basis,
        "weights": {cell.key: weight for cell, weight in answer.weights.items()},
        "sentences": list(answer.sentences),
        "limits": list(answer.limits),
        "gates": [{"name": g.name, "passed": g.passed, "reason": g.reason} for g in answer.gates],
        "ranking": [
            {
                "arm": place.arm.key,
                "seconds_per_token": place.seconds,
                "num_boots": place.num_boots,
                "num_rows": place.num_rows,
                **_contrast_record(place.contrast),
            }
            for place in answer.ranking
        ],
        "verdict": None if answer.verdict is None else answer.verdict.to_dict(),
        "findings": None if answer.findings is None else answer.findings.to_dict(),
        "cells": [
            {
                "cell": line.cell.key,
                "workload": line.cell.workload,
                "arm": line.arm.key,
                "tok_s": line.tok_s,
                "runs": list(line.runs),
                "acceptance_length": line.length,
                "given_acceptance_lengths": list(line.given_lengths),
                "against": line.base.key,
                **_contrast_record(line.contrast),
            }
            for line in answer.cells
        ],
    }


def _contrast_record(contrast: Contrast | None) -> dict[str, object]:
    bounds = None if contrast is None else contrast.speedup_bounds
    # JSON has no infinity.
    low, high = (None if b == math.inf else b for b in bounds or (None, None))
    return {
        "speedup": None if contrast is None else contrast.speedup,
        "low": low,
        "high": high,
        "reason": None if contrast is None else contrast.reason,
    }


def _answer(answer: Answer) -> Iterator[str]:
    yield f"vLLM {answer.engine_build}: {_headline(answer)}"
    if answer.verdict is not None:
        # The first line of the core's verdict speaks of a promotion, which files cannot grant.
        yield from format_verdict(answer.verdict)[1:]
    else:
        for sentence in answer.sentences:
            yield from wrapped(sentence)
        yield ""
        yield from _ranking(answer)
    yield ""
    yield from _cells(answer.cells)
    if answer.limits:
        yield ""
        yield "what these rows do not show:"
        for text in answer.limits:
            yield from _item(text)
    yield from _gates(answer)


def _headline(answer: Answer) -> str:
    words = _HEADLINES[answer.outcome]
    if answer.outcome == "keep" and answer.winner not in (None, answer.reference):
        assert answer.winner is not None
        return f"{words}: {answer.winner.label} is faster and does not pass the gates"
    return words if answer.winner is None else f"{words}: {answer.winner.label}"


def _ranking(answer: Answer) -> Iterator[str]:
    reference = answer.reference
    against = "" if reference is None else f" against {reference.label}"
    header = ["arm", "ms/token", f"times as fast{against}", "boots", "rows"]
    rows = [_place(place) for place in answer.ranking]
    yield from table(header, rows)
    if answer.weights:
        shares = ", ".join(f"{cell.key} {share:.0%}" for cell, share in answer.weights.items())
        yield from wrapped(f"ms/token: streams / (tokens / s), mean over the cells {shares}")


def _place(place: Place) -> list[str]:
    seconds = NONE if place.seconds is None else f"{1000 * place.seconds:.1f}"
    boots, rows = str(place.num_boots), str(place.num_rows)
    return [place.arm.label, seconds, _ratio(place.contrast), boots, rows]


def _cells(lines: Sequence[CellLine]) -> Iterator[str]:
    has_lengths = any(line.length or line.given_lengths for line in lines)
    header = ["cell", "arm", "tok/s", "runs", "times as fast as", "interval"]
    rows = []
    for line in lines:
        bounds = None if line.contrast is None else line.contrast.speedup_bounds
        ratio = None if line.contrast is None else line.contrast.speedup
        row = [
            line.cell.key,
            line.arm.label,
            NONE if line.tok_s is None else f"{line.tok_s:.1f}",
            _runs(line.runs),
            NONE if ratio is None else f"{ratio:.2f} {line.base.label}",
            NONE if bounds is None else f"{bounds[0]:.2f} to {bounds[1]:.2f}",
        ]
        rows.append([*row, *([_length(line)] if has_lengths else [])])
    yield from table([*header, *(["accepted"] if has_lengths else [])], rows)
    yield "tok/s: of the mean seconds per token; boots as observations; each interval by itself"


def _runs(runs: Sequence[float]) -> str:
    if len(runs) < 2:
        return ""
    shown = " ".join(f"{run:.4g}" if run < 1e4 else f"{run:.0f}" for run in runs[:4])
    return shown if len(runs) <= 4 else f"{len(runs)} rows"


def _length(line: CellLine) -> str:
    if line.length is not None:
        return f"{line.length:.2f}"
    if not line.given_lengths:
        return NONE
    low, high = min(line.given_lengths), max(line.given_lengths)
    return f"{low:.2f} given" if math.isclose(low, high) else f"{low:.2f} to {high:.2f} given"


def _ratio(contrast: Contrast | None) -> str:
    if contrast is None or contrast.speedup is None:
        return NONE
    bounds = contrast.speedup_bounds
    text = f"{contrast.speedup:.2f}"
    return text if bounds is None else f"{text} ({bounds[0]:.2f} to {bounds[1]:.2f})"


def _gates(answer: Answer) -> Iterator[str]:
    unknown = [gate for gate in answer.gates if gate.passed is None]
    if answer.verdict is None and answer.gates:
        yield ""
        for gate in answer.gates:
            yield from gate_lines(gate)
    if unknown and answer.outcome == "winner":
        names = ", ".join(gate.name for gate in unknown)
        yield ""
        yield from wrapped(
            f"A promotion also asks what files cannot answer: {names}. A study asks it."
        )


def _item(text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, break_on_hyphens=False, initial_indent="- ", subsequent_indent="  "
    )
