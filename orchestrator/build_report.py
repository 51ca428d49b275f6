"""The answer of a study of several engine builds as text; with one build it is the verdict's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from orchestrator.core.build_verdict import BuildChange, BuildContrast, StudyVerdict
from orchestrator.core.findings import Findings
from orchestrator.core.findings_text import findings_lines
from orchestrator.core.verdict import Verdict
from orchestrator.core.wording import gate_sentences
from orchestrator.report import (
    NONE,
    format_verdict,
    interval_words,
    markdown_table,
    table,
    verdict_markdown,
    wrapped,
)

APART = "Builds are neither pooled nor ranked together: each has a verdict of its own."
MODELLED = (
    "Step times are modelled and alike for every build, so what differs here is acceptance alone; "
    "no change of build is proposed from it."
)


def format_study_verdict(found: StudyVerdict) -> list[str]:
    """Return the verdict; of several builds production's first, then the others', then both."""
    if len(found.verdicts) == 1:
        return format_verdict(found.production)
    lines: list[str] = []
    for build, verdict in found.verdicts.items():
        own = format_verdict(_without_production(verdict) if build != found.build else verdict)
        head = own[0] if build == found.build else f"verdict: {_headline(verdict)}"
        lines += [f"vLLM {_title(found, build)}", head, *own[1:], ""]
    lines += [line for text in build_sentences(found) for line in wrapped(text)]
    for header, rows in _tables(found):
        lines += ["", *table(header, rows)]
    return lines


def study_markdown(found: StudyVerdict) -> str:
    """Return the verdict as a Markdown document, for tracking."""
    if len(found.verdicts) == 1:
        return verdict_markdown(found.production)
    parts = []
    for build, verdict in found.verdicts.items():
        text = verdict_markdown(verdict)
        if build != found.build:
            text = verdict_markdown(_without_production(verdict)).partition("\n")[2]
            text = f"# Verdict: {_headline(verdict)}\n{text}"
        parts.append(f"# vLLM {_title(found, build)}\n\n#{text.rstrip()}")
    parts += ["# Builds", *build_sentences(found)]
    parts += [markdown_table(header, rows) for header, rows in _tables(found)]
    return "\n\n".join(parts) + "\n"


def build_sentences(found: StudyVerdict) -> tuple[str, ...]:
    """Return what is to be said of several builds together."""
    if len(found.verdicts) == 1:
        return ()
    modelled = (MODELLED,) if found.is_modelled else ()
    return (APART, *modelled, *map(change_sentence, found.changes))


def change_sentence(change: BuildChange) -> str:
    """Return whether another build's choice may take production's place."""
    arm, reference = change.arm, change.reference
    head = f"Against {reference.key}, {arm.key} is {change.contrast.in_words}"
    if change.passes:
        return (
            f"{head}, and no gate keeps it out. A study makes no change of build: it is registered "
            "and waits for `promote --registered-version`."
        )
    blocking = [f"{gate.name} ({gate.reason})" for gate in change.gates if gate.blocks]
    why = "; ".join(blocking) or "it is not shown to be faster"
    return f"{head}. No change of build is proposed: {why}."


def findings_markdown(found: Mapping[str, Findings]) -> str:
    """Return the findings, a document for each build where there are several."""
    if len(found) == 1:
        return "\n".join(findings_lines(next(iter(found.values()))))
    return "\n\n".join(
        "\n".join([f"# vLLM {build}", "", *(_deeper(line) for line in findings_lines(findings))])
        for build, findings in found.items()
    )


def _deeper(line: str) -> str:
    return f"#{line}" if line.startswith("#") else line


def _title(found: StudyVerdict, build: str) -> str:
    if build != found.build:
        return build
    serves = found.production.incumbent is not None
    return f"{build}, which serves now" if serves else f"{build}, the study's own"


def _headline(verdict: Verdict) -> str:
    """Return the headline of a build that production does not serve: it promotes nothing."""
    if verdict.winner is None:
        return verdict.kind.upper().replace("_", " ")
    name = f"FASTEST {verdict.winner.label}"
    if verdict.kind == "keep" and verdict.winner != verdict.reference:
        return f"{name}, and does not pass the gates"
    return name


def _without_production(verdict: Verdict) -> Verdict:
    """Return the verdict without the sentences on a promotion, which is not asked of this build."""
    of_production = set(gate_sentences(verdict.gates))
    kept = tuple(text for text in verdict.sentences if text not in of_production)
    return replace(verdict, sentences=kept)


def _tables(found: StudyVerdict) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Yield a table for each other build: the same configurations on it and on production's."""
    for build in list(found.verdicts)[1:]:
        own = [item for item in found.contrasts if item.arm.engine_build == build]
        if own:
            temperatures = sorted({t for item in own for t in item.lengths})
            header = [f"vLLM {build} against {found.build}", "times as fast", "interval", "boots"]
            header += [f"accepted T{t:g}" for t in temperatures]
            yield header, [_row(item, temperatures) for item in own]


def _row(item: BuildContrast, temperatures: Sequence[float]) -> list[str]:
    speedup = item.contrast.speedup
    ours, theirs = item.contrast.num_boots
    lengths = [item.lengths.get(t, (None, None)) for t in temperatures]
    return [
        item.arm.label,
        NONE if speedup is None else f"{speedup:.2f}",
        interval_words(item.contrast),
        f"{ours} and {theirs}",
        *(f"{_length(a)} against {_length(b)}" for a, b in lengths),
    ]


def _length(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"
