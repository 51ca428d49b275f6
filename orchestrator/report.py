"""Results as lines of plain ASCII text; printing is the caller's."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence

from orchestrator.core.build_race import build_races, expected_boots_of
from orchestrator.core.builds import arm_names, by_build
from orchestrator.core.estimate import Contrast
from orchestrator.core.forecast import Forecast
from orchestrator.core.promotion import Gate
from orchestrator.core.proof_gates import ProofDemands
from orchestrator.core.race import GIVEN_UP, MAX_FRESH
from orchestrator.core.race_state import RaceQuestion, RaceSettings
from orchestrator.core.space import reference_arm
from orchestrator.core.summary import ArmSummary
from orchestrator.core.types import Arm, BoardModel, Cell
from orchestrator.core.verdict import Ranked, Verdict

WIDTH = 110
"""Columns of a report: two terminals of this width fit on a usual screen."""
NONE = "-"
"""Stands for a value that is not known."""
_CELLS_PER_TABLE = 8


def format_results_table(summaries: Sequence[ArmSummary], *, board: BoardModel | None) -> list[str]:
    """Return the tables of a finished study: the arms, and what was measured here by cell.

    Args:
        summaries: One an arm, as ``core.summary.summarise`` gives them.
        board: Source of modelled step times; its name stands below the table.
    """
    return format_live_table(summaries, board=board) + _throughput_tables(summaries, board)


def format_live_table(summaries: Sequence[ArmSummary], *, board: BoardModel | None) -> list[str]:
    """Return the table of a running study, one line an arm.

    Args:
        summaries: One an arm, as ``core.summary.summarise`` gives them.
        board: Source of modelled step times; its name stands below the table.
    """
    temperatures = sorted({t for item in summaries for t in item.acceptance_length})
    source = "measured" if board is None else "modelled"
    header = ["arm", "status", "boots", f"{source} ms/token"]
    header += [f"accepted T{temperature:g}" for temperature in temperatures]
    header += ["KV tokens", "boot s"]
    name = arm_names(item.arm for item in summaries)
    rows = [
        [
            name(item.arm),
            item.status,
            _boots(item),
            _number(item.objective_s, "{:.1f}", scale=1000),
            *(_number(item.acceptance_length.get(t), "{:.2f}") for t in temperatures),
            _number(item.kv_cache_tokens, "{:,}"),
            _number(item.boot_time_s, "{:.0f}"),
        ]
        for item in summaries
    ]
    lines = table(header, rows)
    lines.append("accepted: tokens a step, the bonus token counted; boots: scored/ended")
    if board is not None:
        lines.append(f"ms/token: acceptance measured here, step time MODELLED by {board.name}")
    return lines


def format_plan(
    arms: Sequence[Arm],
    *,
    weights: Mapping[Cell, float],
    board: BoardModel | None,
    incumbent: Arm | None,
    settings: RaceSettings,
    seconds_per_boot: float | None = None,
    num_nodes: int = 1,
    proof: ProofDemands,
) -> list[str]:
    """Return what a study will do: arms, cells, boots, and hours where a boot's time is known.

    Args:
        arms: The space.
        weights: The traffic's share by cell; its keys are the cells.
        board: Source of modelled step times.
        incumbent: What serves now.
        settings: The race's budget.
        seconds_per_boot: Boot and blocks of one trial; None when unknown.
        num_nodes: Boots that run at the same time.
        proof: What is asked of the proof boots.
    """
    reference = reference_arm(arms, incumbent)
    what = "the incumbent" if incumbent is not None else "the reference"
    against = "" if reference is None else f", which is compared with {what} {reference.label}"
    if len(by_build(arms)) > 1:
        against = (
            "; builds are raced apart, each by its share of the boots, and compared at the end"
        )
    cells = ", ".join(f"{cell.key} {share:.0%}" for cell, share in weights.items())
    source = "measured" if board is None else f"MODELLED by {board.name}"
    limit = GIVEN_UP * settings.tolerance
    hours = "" if settings.max_hours is None else f" and {settings.max_hours:g} h"
    paragraphs = [
        *_arms_by_build(arms),
        f"{len(weights)} cells with their share of the traffic: {cells}",
        f"step times: {source}",
        f"at most {settings.max_boots} boots{hours}: every arm once, then the leader and its "
        f"strongest rival until another arm would gain less than {limit:.2%} on average, "
        f"then {settings.fresh_boots} to {MAX_FRESH} fresh boots of the winner{against}",
        _proof_words(proof),
    ]
    if seconds_per_boot is not None:
        question = RaceQuestion(arms=tuple(arms), incumbent=incumbent, weights=weights, board=board)
        num_boots = expected_boots_of(build_races(question, settings))
        nodes = "one node" if num_nodes == 1 else f"{num_nodes} nodes"
        time = _duration(math.ceil(num_boots / num_nodes) * seconds_per_boot)
        paragraphs.append(
            f"usually about {num_boots} boots, {time} on {nodes} "
            f"({_duration(seconds_per_boot)} a boot with its blocks)"
            + ("; the boots of the proof, one after the other, come on top" if proof.any else "")
        )
    return [line for paragraph in paragraphs for line in wrapped(paragraph)]


def _proof_words(proof: ProofDemands) -> str:
    asked = {
        "that the output follows the target's distribution": proof.lossless,
        "that answers are as the control's": proof.canaries,
    }
    if not proof.any:
        return "nothing is asked of the output: proof.lossless and proof.canaries are skipped"
    words = " and ".join(f"{what} ({how})" for what, how in asked.items() if how != "skipped")
    return (
        f"then a boot of no speculation and one of the winner, for each engine build and beyond "
        f"these, to show {words}; a "
        "winner that fails is set aside and the race goes on"
    )


def _arms_by_build(arms: Sequence[Arm]) -> list[str]:
    first = [arm.label for arm in arms if arm.engine_build == arms[0].engine_build]
    lines: list[str] = []
    for build, own in by_build(arms).items():
        labels = [arm.label for arm in own]
        shown = "the same" if lines and labels == first else ", ".join(labels)
        lines.append(f"{len(own)} arms on vLLM {build}: {shown}")
    return lines


def format_forecast(expected: Forecast | None) -> list[str]:
    """Return what simulated studies came to: boots and time by boards, and how often right."""
    if expected is None:
        return wrapped(
            "the study is too large to be simulated within a minute: nothing is known "
            "of its boots and hours but search.max_boots and search.max_hours"
        )
    rows = [
        [
            str(row.num_nodes),
            f"{row.boots:.1f}",
            _duration(3600 * row.hours),
            _duration(3600 * row.hours_9_of_10),
        ]
        for row in expected.rows
    ]
    text = (
        f"of {expected.num_studies} simulated studies {expected.near:.0%} choose the best arm or "
        f"one within {expected.tolerance:.1%} of it, {expected.best:.0%} the best itself"
    )
    if expected.loss is not None:
        text += f"; what they choose is {expected.loss:.1%} slower than the best on average"
    if expected.cut_at_boots is not None:
        text += (
            f"; simulated studies end after {expected.cut_at_boots} boots, so that one may take "
            "longer than is said here"
        )
    return [
        *table(["boards", "boots", "time", "9 of 10 within"], rows),
        *wrapped(text),
        *wrapped(f"ASSUMED: {expected.assumption}"),
    ]


def format_verdict(verdict: Verdict) -> list[str]:
    """Return the verdict: kind, sentences, ranking, gates."""
    lines = [f"verdict: {_headline(verdict)}"]
    for sentence in verdict.sentences:
        lines += wrapped(sentence)
    lines += ["", *table(_RANKING_HEADER, [_place(item) for item in verdict.ranking])]
    lines.append(_ranking_note(verdict))
    if verdict.gates:
        lines.append("")
        lines += [line for gate in verdict.gates for line in gate_lines(gate)]
    return lines


def verdict_markdown(verdict: Verdict) -> str:
    """Return the verdict as a Markdown document, for tracking."""
    parts = [f"# Verdict: {_headline(verdict)}", *verdict.sentences]
    parts.append(markdown_table(_RANKING_HEADER, [_place(item) for item in verdict.ranking]))
    parts.append(_ranking_note(verdict))
    if verdict.gates:
        rows = [[gate.name, _answer(gate), gate.reason] for gate in verdict.gates]
        parts += ["## Gates", markdown_table(["gate", "answer", "reason"], rows)]
    if verdict.premises is not None:
        items = [f"- {key}: {value}" for key, value in verdict.premises.to_dict().items()]
        parts += ["## Premises", "\n".join(items)]
    return "\n\n".join(parts) + "\n"


_RANKING_HEADER = ["arm", "ms/token", "times as fast", "interval", "boots", "blocks", "KV tokens"]


def _headline(verdict: Verdict) -> str:
    kind = verdict.kind.upper().replace("_", " ")
    if verdict.winner is None:
        return kind
    if verdict.kind == "keep" and verdict.winner != verdict.reference:
        return f"{kind}: {verdict.winner.label} is faster and does not pass the gates"
    return f"{kind} {verdict.winner.label}"


def _ranking_note(verdict: Verdict) -> str:
    compared = "" if verdict.reference is None else f"; compared with {verdict.reference.label}"
    return f"* has the boots to win; boots: scored/ended{compared}"


def _place(item: Ranked) -> list[str]:
    summary, contrast = item.summary, item.contrast
    return [
        summary.arm.label + (" *" if item.finalist else ""),
        _number(summary.objective_s, "{:.1f}", scale=1000),
        _number(None if contrast is None else contrast.speedup, "{:.2f}"),
        interval_words(contrast),
        _boots(summary),
        str(summary.num_blocks),
        _number(summary.kv_cache_tokens, "{:,}"),
    ]


def interval_words(contrast: Contrast | None) -> str:
    """Return the interval of a speedup for a table."""
    bounds = None if contrast is None else contrast.speedup_bounds
    return NONE if bounds is None else f"{bounds[0]:.2f} to {bounds[1]:.2f}"


def _boots(summary: ArmSummary) -> str:
    return f"{summary.num_scored}/{summary.num_boots}"


def _answer(gate: Gate) -> str:
    if gate.passed is None:
        return "NOT SHOWN" if gate.required else "not shown"
    return "passed" if gate.passed else "FAILED"


def gate_lines(gate: Gate) -> list[str]:
    """Return a gate's name, answer and reason; capitals where it keeps the arm out."""
    head = f"{gate.name:<14}{_answer(gate):<11}"
    return textwrap.wrap(
        gate.reason,
        WIDTH,
        break_on_hyphens=False,
        initial_indent=head,
        subsequent_indent=" " * len(head),
    )


def _throughput_tables(summaries: Sequence[ArmSummary], board: BoardModel | None) -> list[str]:
    cells = sorted({estimate.cell for item in summaries for estimate in item.cells})
    if not cells:
        return []
    note = "" if board is None else "; of this machine, not of the modelled board"
    lines = ["", f"output tokens/s measured here by cell, c<streams>_t<temperature>{note}"]
    name = arm_names(item.arm for item in summaries)
    for start in range(0, len(cells), _CELLS_PER_TABLE):
        shown = cells[start : start + _CELLS_PER_TABLE]
        rows = []
        for item in summaries:
            speeds = {estimate.cell: estimate.output_throughput for estimate in item.cells}
            rows.append([name(item.arm), *(_number(speeds.get(c), "{:.1f}") for c in shown)])
        lines += table(["arm", *(cell.key for cell in shown)], rows)
    return lines


def _number(value: float | None, form: str, *, scale: float = 1) -> str:
    return NONE if value is None else form.format(value * scale)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def wrapped(text: str) -> list[str]:
    """Return a paragraph as lines of the report's width."""
    return textwrap.wrap(text, WIDTH, break_on_hyphens=False, subsequent_indent="  ")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Align columns by width, the first to the left; a rule below the header."""
    columns = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    align: list[Callable[[str, int], str]] = [str.ljust, *[str.rjust] * (len(columns) - 1)]

    def line(cells: Sequence[str]) -> str:
        parts = zip(align, cells, columns, strict=True)
        return "  ".join(put(cell, width) for put, cell, width in parts).rstrip()

    return [line(header), line(["-" * width for width in columns]), *map(line, rows)]


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as Markdown."""
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [header, ["---"] * len(header), *escaped]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
