"""The findings of a study as lines of plain text, which are Markdown too."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from orchestrator.core.effects import Effect
from orchestrator.core.estimate import Contrast
from orchestrator.core.findings import CellEffects, DepthCurve, Findings, TemperatureEffect
from orchestrator.core.formulas import factor_of
from orchestrator.core.types import Cell

NONE = "-"


def findings_lines(findings: Findings) -> list[str]:
    """Return the findings as a Markdown document, a line each; short where little is known."""
    if findings.leader is None:
        return ["# Findings", "", "No boot has a score, so nothing was found."]
    return [
        "# Findings",
        "",
        f"Fastest by the mean over its boots: {findings.leader.label}. Intervals are "
        f"{100 * findings.confidence:g} %, one by one, with whole boots as observations; of many, "
        "some exclude no difference by chance. The verdict takes step times and acceptance apart "
        "and may tell arms apart that these do not.",
        *_section("What would turn it round", [item.words for item in findings.flips]),
        *_section("What the next boots would buy", [item.words for item in findings.next_boots]),
        *_section(
            "Best depth given each rule", [_best(c) for c in findings.curves if c.cell is None]
        ),
        *_section("Temperature of the client", [*map(_warmer, findings.temperatures)]),
        *_effects(findings.cells),
        *_curves(findings.curves),
    ]


def _section(title: str, sentences: Sequence[str]) -> list[str]:
    return ["", f"## {title}", "", *(f"- {text}" for text in sentences)] if sentences else []


def _best(curve: DepthCurve) -> str:
    depth, where = curve.best.num_speculative_tokens, _where(curve)
    if curve.against_next is None or curve.next_best is None:
        return f"{where}: depth {depth} is the only one measured."
    other = curve.next_best.num_speculative_tokens
    words = f"depth {depth} against {other}, the next best, {curve.against_next.in_words}"
    told = curve.against_next.excludes_zero
    if told is None:
        return f"{where}: {words}."
    verdict = f"depth {depth} is the best" if told else f"depth {depth} or {other}, cannot tell"
    return f"{where}: {verdict}; {words}."


def _where(curve: DepthCurve) -> str:
    rules = f"{curve.draft_sample_method}+{curve.rejection_sample_method}"
    return f"{rules}, {_cell(curve.cell)}"


def _cell(cell: Cell | None) -> str:
    return "over the traffic" if cell is None else cell.key


def _warmer(item: TemperatureEffect) -> str:
    cell, ratio = item.cell, item.contrast
    text = (
        f"{item.arm.label} at {_load(item)}: a token takes {_times(ratio.log_ratio)} as long at "
        f"temperature {cell.temperature:g} as at {item.from_temperature:g}"
    )
    count = ratio.num_boots[0]
    boots = "1 boot" if count == 1 else f"{count} boots"
    if ratio.low is None or ratio.high is None:
        return f"{text} (no interval: {ratio.reason}; {boots})."
    return (
        f"{text} ({100 * ratio.confidence:g} % interval {factor_of(ratio.low):.2f} to "
        f"{factor_of(ratio.high):.2f}, {boots}, each against itself)."
    )


def _load(item: TemperatureEffect) -> str:
    cell = item.cell
    if cell.is_open_loop:
        return f"{cell.request_rate:g} requests/s"
    return "1 stream" if cell.streams == 1 else f"{cell.streams} streams"


def _times(log_ratio: float | None) -> str:
    return "?" if log_ratio is None else f"{math.exp(log_ratio):.2f} times"


def _effects(cells: Sequence[CellEffects]) -> Iterator[str]:
    if not cells:
        return
    yield from ("", "## Effects and interactions", "")
    yield (
        "Times as fast, with interval; * excludes no difference. An interaction is how much faster "
        "both are together than their single effects multiply to."
    )
    for kind in ("main", "interaction"):
        names = list(
            dict.fromkeys(e.name for cell in cells for e in cell.effects if e.kind == kind)
        )
        if not names:
            continue
        columns = [_cell(cell.cell) for cell in cells]
        title = "effect" if kind == "main" else "interaction"
        rows = [
            [name, *(_shown(cell.effects, kind=kind, name=name) for cell in cells)]
            for name in names
        ]
        yield ""
        yield from _markdown([title, *columns], rows)


def _shown(own: Sequence[Effect], *, kind: str, name: str) -> str:
    found = [effect for effect in own if effect.kind == kind and effect.name == name]
    return _ratio(found[0].contrast) if found else NONE


def _ratio(contrast: Contrast) -> str:
    if contrast.speedup is None:
        return NONE
    bounds = contrast.speedup_bounds
    if bounds is None:
        return f"{contrast.speedup:.2f} (no interval)"
    mark = "*" if contrast.excludes_zero else ""
    return f"{contrast.speedup:.2f}{mark} ({bounds[0]:.2f} to {bounds[1]:.2f})"


def _curves(curves: Sequence[DepthCurve]) -> Iterator[str]:
    if not curves:
        return
    yield from ("", "## Depth curves", "", "ms per output token of one stream, with interval.", "")
    depths = sorted({p.num_speculative_tokens for curve in curves for p in curve.points})
    rows = []
    for curve in curves:
        points = {p.num_speculative_tokens: p for p in curve.points}
        shown = [
            _milliseconds(points[d].seconds, points[d].low, points[d].high) if d in points else NONE
            for d in depths
        ]
        rows.append([_where(curve), *shown])
    yield from _markdown(["rules, cell", *(f"depth {depth}" for depth in depths)], rows)


def _milliseconds(seconds: float, low: float | None, high: float | None) -> str:
    text = f"{1000 * seconds:.1f}"
    if low is None or high is None:
        return f"{text} (no interval)"
    return f"{text} ({1000 * low:.1f} to {1000 * high:.1f})"


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for line in (header, ["---"] * len(header), *rows):
        yield f"| {' | '.join(line)} |"
