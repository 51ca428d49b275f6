"""From rows to an answer: the core's verdict where they have counters, else by tokens / s."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.core.boot_model import BootFit
from orchestrator.core.effects import pair
from orchestrator.core.findings import find
from orchestrator.core.promotion import RAISE_BUDGET, Gate, GateSettings
from orchestrator.core.types import Arm, Cell
from orchestrator.core.verdict import Verdict, decide
from orchestrator.core.wording import gate_sentences
from orchestrator.errors import ConfigError
from orchestrator.results.boots import RowBoot, core_boots, row_boots
from orchestrator.results.observation import UNKNOWN_WORKLOAD, Observation
from orchestrator.results.question import (
    Answer,
    CellLine,
    Outcome,
    Question,
    common_weights,
    find_arm,
    lacks_counters,
)
from orchestrator.results.throughput import (
    cell_contrasts,
    cell_lines,
    conclude,
    fit_objective,
    rank,
    throughput_gates,
)


def answers(observations: Sequence[Observation], question: Question) -> tuple[Answer, ...]:
    """Return one answer for each engine build: two builds are never pooled or ranked together.

    Raises:
        ConfigError: Nothing to compare with.
    """
    builds = sorted({item.arm.engine_build for item in observations})
    arms = sorted({item.arm for item in observations})
    if find_arm(arms, question.reference) is None:
        labels = ", ".join(dict.fromkeys(arm.label for arm in arms))
        problem = (
            "no row is without speculation, so there is nothing to compare with"
            if question.reference is None
            else f"no row is of {question.reference}"
        )
        raise ConfigError("--reference", problem, f"name what serves now; there are: {labels}")
    return tuple(
        _answer([i for i in observations if i.arm.engine_build == build], question)
        for build in builds
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """The rows of one engine build and all that is asked of them."""

    boots: tuple[RowBoot, ...]
    reference: Arm | None
    weights: Mapping[Cell, float]
    question: Question
    limits: tuple[str, ...]
    lines: tuple[CellLine, ...]


def _answer(observations: Sequence[Observation], question: Question) -> Answer:
    boots = row_boots(observations, question.runs_are)
    reference = find_arm([boot.arm for boot in boots], question.reference)
    weights, said = common_weights(boots, question)
    weighted = [item for item in observations if weights.get(item.cell, 0.0) > 0]
    by_counters = bool(weighted) and not lacks_counters(weighted)
    case = _Case(
        boots=boots,
        reference=reference,
        weights=weights,
        question=question,
        limits=(*said, *_limits(observations, boots, question, by_counters)),
        lines=cell_lines(boots, reference, question.confidence),
    )
    if by_counters and reference is not None and any(boot.arm != reference for boot in boots):
        return _by_counters(case, reference)
    return _by_throughput(case)


def _by_counters(case: _Case, reference: Arm) -> Answer:
    arms = tuple(dict.fromkeys(boot.arm for boot in case.boots))
    boots = core_boots(case.boots)
    incumbent = None if case.question.reference is None else reference
    verdict = decide(
        arms,
        boots=boots,
        weights=case.weights,
        board=None,
        incumbent=incumbent,
        settings=GateSettings(),
        confidence=case.question.confidence,
    )
    outcome = _outcome(verdict)
    gates = tuple(map(_of_files, verdict.gates))
    # A file changes nothing in production, so what would be said of it is left out.
    of_production = set(gate_sentences(verdict.gates))
    kept = (text for text in verdict.sentences if text not in of_production)
    sentences = (*_unproven(verdict, outcome), *kept)
    return Answer(
        engine_build=reference.engine_build,
        outcome=outcome,
        winner=verdict.winner if outcome in ("winner", "keep") else None,
        reference=reference,
        basis="counters",
        weights=case.weights,
        sentences=sentences,
        limits=case.limits,
        ranking=(),
        verdict=replace(verdict, sentences=sentences, gates=gates),
        gates=gates,
        findings=find(
            arms,
            boots=boots,
            weights=case.weights,
            board=None,
            incumbent=incumbent,
            confidence=case.question.confidence,
        ),
        cells=case.lines,
    )


_ASKED_OF_STUDIES = {
    "kv": "by policy.min_kv_cache_tokens and min_kv_max_concurrency",
    "ttft": "by policy.ttft_tolerance",
    "lossless": "in a proof boot",
    "canaries": "in a proof boot",
    "in_force": "of the engine that it boots",
}
"""How a study asks what files do not answer, by gate."""


def _of_files(gate: Gate) -> Gate:
    """Return a gate as a reader of files needs it: he has no study whose keys he could set.

    Capitals in a report say that an unanswered gate keeps the arm out; of files none does.
    """
    reason = gate.reason
    if gate.passed is None and gate.name in _ASKED_OF_STUDIES:
        reason = f"files do not say it; a study asks {_ASKED_OF_STUDIES[gate.name]}"
    elif reason.endswith(RAISE_BUDGET):
        reason = f"{reason.removesuffix(RAISE_BUDGET)}: boot them again and add the rows"
    return replace(gate, reason=reason, required=False)


def _unproven(verdict: Verdict, outcome: Outcome) -> Iterator[str]:
    """Yield that the leader lacks boots which did not choose it."""
    if outcome == "cannot_tell" and verdict.winner is not None and verdict.reference is not None:
        yield (
            f"{verdict.winner.label} leads and is not proven: the boots that show it are those "
            "that picked it, and of others there are too few. Boot it and "
            f"{verdict.reference.label} again."
        )


def _outcome(verdict: Verdict) -> Outcome:
    """Return the outcome of a verdict in which gates that files cannot answer keep nothing out."""
    if verdict.kind == "no_difference":
        return "no_difference"
    if verdict.kind == "no_result":
        return "cannot_tell"
    if verdict.winner == verdict.reference:
        return "keep"
    if any(gate.passed is False for gate in verdict.gates):
        return "keep"
    better = next((gate for gate in verdict.gates if gate.name == "better"), None)
    return "winner" if better is not None and better.passed else "cannot_tell"


def _by_throughput(case: _Case) -> Answer:
    fit = fit_objective(case.boots, case.weights)
    outcome, winner, said, gates = _concluded(case, fit)
    return Answer(
        engine_build=case.boots[0].arm.engine_build,
        outcome=outcome,
        winner=winner,
        reference=case.reference,
        basis="throughput",
        weights=case.weights,
        sentences=tuple(said),
        limits=case.limits,
        ranking=rank(case.boots, fit, case.reference, case.question.confidence),
        verdict=None,
        gates=gates,
        findings=None,
        cells=case.lines,
    )


def _concluded(
    case: _Case, fit: BootFit | None
) -> tuple[Outcome, Arm | None, list[str], tuple[Gate, ...]]:
    """Return outcome, winner, sentences and gates of a comparison by tokens / s."""
    reference = case.reference
    if reference is None:
        name = case.question.reference or "no-speculation"
        return "cannot_tell", None, [f"{name} was not measured on this engine build."], ()
    if not case.weights:
        text = (
            "No cell was measured of all arms, so there is no objective that could rank them: name "
            "the cells that matter with --weights, or read the table by cell."
        )
        return "cannot_tell", None, [text], ()
    if fit is None or reference not in fit.means:
        text = f"{reference.label} has no boot with all weighted cells."
        return "cannot_tell", None, [text], ()
    outcome, winner, said = conclude(fit, reference, case.question.confidence)
    best = winner or min(fit.means, key=lambda arm: fit.means[arm])
    if best == reference:
        return outcome, winner, said, ()
    gates = throughput_gates(
        pair(fit, best, reference, confidence=case.question.confidence),
        cell_contrasts(case.lines, best, reference, list(case.weights)),
        best,
    )
    failed = [gate for gate in gates if gate.passed is False and gate.name != "better"]
    if outcome == "winner" and failed:
        return "keep", winner, [*said, *(f"{g.name}: {g.reason}." for g in failed)], gates
    return outcome, winner, said, gates


def _limits(
    observations: Sequence[Observation],
    boots: Sequence[RowBoot],
    question: Question,
    by_counters: bool,
) -> Iterator[str]:
    """Yield what the data cannot support."""
    yield from _counter_limits(observations, by_counters)
    yield from _boot_limits(observations, boots, question)
    if any(item.node is None for item in observations):
        yield "Rows do not say their node: differences between boards are part of every spread."
    if any(item.cell.workload == UNKNOWN_WORKLOAD for item in observations):
        yield "Rows do not say their workload: nothing shows that all arms had the same prompts."
    given = [item for item in observations if item.given_length is not None]
    if any(not item.has_counters for item in given):
        yield (
            "Acceptance is given without counts: it is shown beside the speeds as an order, and "
            "is not tested."
        )


def _counter_limits(observations: Sequence[Observation], by_counters: bool) -> Iterator[str]:
    absent = lacks_counters(observations)
    if absent and len(absent) == sum(not item.arm.is_baseline for item in observations):
        yield (
            "Tokens/s without counters: acceptance is not known and step time is not known apart "
            "from it; intervals are over boots only."
        )
        return
    cells: dict[Arm, list[str]] = {}
    for item in absent:
        cells.setdefault(item.arm, []).append(item.cell.key)
    for arm, keys in cells.items():
        what = "tokens and seconds" if arm.is_baseline else "counters"
        yield f"{arm.label} has no {what} in {', '.join(dict.fromkeys(keys))}."
    if absent and not by_counters:
        yield "Where one arm lacks them all are compared by tokens/s, intervals over boots only."


def _boot_limits(
    observations: Sequence[Observation], boots: Sequence[RowBoot], question: Question
) -> Iterator[str]:
    unstated = sum(item.boot is None for item in observations)
    if unstated and question.runs_are == "blocks":
        yield (
            f"{unstated} rows do not name their boot: those of an arm are taken as repeats in one "
            "boot, and three runs in one boot are one boot. If each was a boot of its own, say "
            "--runs-are boots."
        )
    elif unstated:
        yield (
            f"{unstated} rows do not name their boot and are taken as a boot each, because "
            "--runs-are boots says so. If they were repeats in one boot, every interval here is "
            "too narrow."
        )
    counts = Counter(boot.arm for boot in boots)
    if max(counts.values()) == 1:
        yield "One boot of each arm: there is no interval, and no difference can be shown."
        return
    single = [arm.label for arm, count in counts.items() if count == 1]
    if single:
        yield (
            f"One boot only: {', '.join(single)}. Their spread is taken from the arms that have "
            "more."
        )
