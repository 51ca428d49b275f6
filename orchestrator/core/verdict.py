"""What a study concludes, in a record and in words."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.core.boot_model import Outlier
from orchestrator.core.checks import draft_doubt
from orchestrator.core.codec import to_plain
from orchestrator.core.comparable import odd_sentences
from orchestrator.core.comparison import measured
from orchestrator.core.estimate import Contrast
from orchestrator.core.evidence import Evidence, ask_gates
from orchestrator.core.premises import Premises
from orchestrator.core.promotion import Gate, GateSettings
from orchestrator.core.proof_gates import Proofs
from orchestrator.core.space import reference_arm
from orchestrator.core.summary import ArmSummary, summarise_compared
from orchestrator.core.types import Arm, BoardModel, Boot, Cell
from orchestrator.core.wording import (
    against,
    boot_sentences,
    gate_sentences,
    model_sentences,
    outlier_sentences,
    reference_sentences,
    set_aside_sentences,
    speed_sentence,
    spread_sentence,
    tie_sentence,
)

VerdictKind = Literal["promote", "keep", "no_difference", "no_result"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One place of the ranking."""

    summary: ArmSummary
    contrast: Contrast | None
    """Against the reference; None for the reference itself or without one."""
    finalist: bool
    """Whether the arm has the boots to win; see ``Evidence.finalists``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer of a study."""

    kind: VerdictKind
    """promote: the winner passes every gate. keep: the incumbent wins, or the winner fails a gate.
    no_difference: the best arm cannot be told apart from the incumbent. no_result: nothing can be
    said."""
    winner: Arm | None
    """The fastest arm after the tie rule, whether or not the gates let it through; None with
    no_difference and no_result."""
    incumbent: Arm | None
    """What serves now; None when nothing does."""
    reference: Arm | None
    """What the winner was compared with: the incumbent, else the baseline."""
    ranking: tuple[Ranked, ...]
    """Scored arms first, the fastest first; then the others."""
    gates: tuple[Gate, ...]
    """Of the winner, or of the best arm with no_difference; empty without one."""
    sentences: tuple[str, ...]
    """The verdict in words."""
    outliers: tuple[Outlier, ...] = ()
    """Boots that are far from their arm's others. They count like any other."""
    premises: Premises | None

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON types, for tracking."""
        return {
            "kind": self.kind,
            "winner": _key(self.winner),
            "incumbent": _key(self.incumbent),
            "reference": _key(self.reference),
            "ranking": [_place(item) for item in self.ranking],
            "gates": [
                {
                    "name": gate.name,
                    "passed": gate.passed,
                    "reason": gate.reason,
                    "blocks": gate.blocks,
                }
                for gate in self.gates
            ],
            "sentences": list(self.sentences),
            "outliers": [_outlier(item) for item in self.outliers],
            "premises": None if self.premises is None else self.premises.to_dict(),
        }


def decide(
    arms: Sequence[Arm],
    *,
    boots: Sequence[Boot],
    weights: Mapping[Cell, float],
    board: BoardModel | None,
    incumbent: Arm | None,
    settings: GateSettings,
    confidence: float,
    premises: Premises | None = None,
    chosen: Arm | None = None,
    chosen_by: Collection[str] | None = None,
    proofs: Proofs | None = None,
) -> Verdict:
    """Return the verdict of a study.

    Args:
        arms: The space.
        boots: All boots, whatever their end.
        weights: The traffic's share by cell.
        board: Source of modelled step times; None when they were measured.
        incumbent: What serves now; it must be one of ``arms`` to be compared with.
        settings: What the policy demands.
        confidence: Coverage of the intervals, 0 to 1.
        premises: What the conclusion depends on.
        chosen: The arm that the race chose, ties broken, and gave its fresh boots; the verdict is
            about this one. None takes the fastest and breaks ties here.
        chosen_by: Trial ids of the boots by which the race chose its winner; they do not count as
            fresh. None takes each arm's first scored boot.
        proofs: What is shown of arms besides their speed, and what is demanded of it; None demands
            nothing.
    """
    taken = measured(boots, cells=tuple(weights), board=board)
    comparison = taken.compare(weights)
    summaries = summarise_compared(arms, boots=boots, comparison=comparison, board=board)
    evidence = Evidence(
        boots=tuple(boots),
        weights=weights,
        board=board,
        incumbent=incumbent,
        reference=reference_arm(arms, incumbent),
        measured=taken,
        comparison=comparison,
        summaries={item.arm: item for item in summaries},
        settings=settings,
        confidence=confidence,
        chosen=chosen,
        chosen_by=chosen_by,
        proofs=proofs or Proofs(),
    )
    conclusion = _conclude(evidence)
    outliers = comparison.outliers()
    shown = [*evidence.finalists, *([evidence.reference] if evidence.reference else [])]
    return Verdict(
        kind=conclusion.kind,
        winner=conclusion.winner,
        incumbent=incumbent,
        reference=evidence.reference,
        ranking=_ranking(evidence),
        gates=conclusion.gates,
        sentences=(
            *conclusion.sentences,
            *set_aside_sentences(evidence.set_aside, conclusion.winner),
            *reference_sentences(evidence.reference, evidence.reference_fault),
            *model_sentences(board, arms=shown, streams=[cell.streams for cell in weights]),
            *gate_sentences(conclusion.gates),
            *outlier_sentences(outliers),
            *boot_sentences(summaries, taken.copies),
            *odd_sentences(evidence.boots),
        ),
        outliers=outliers,
        premises=premises,
    )


def promotable(verdict: Verdict) -> bool:
    """Return whether the verdict allows a change of production."""
    return (
        verdict.kind == "promote"
        and verdict.winner is not None
        and verdict.winner != verdict.incumbent
        and not any(gate.blocks for gate in verdict.gates)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Conclusion:
    kind: VerdictKind
    winner: Arm | None = None
    gates: tuple[Gate, ...] = ()
    sentences: tuple[str, ...]


def _conclude(evidence: Evidence) -> _Conclusion:
    reference = evidence.reference
    if not evidence.scored:
        return _no_result("no boot of any arm has a score")
    if reference is None:
        return _no_result("nothing serves and the space has no baseline to compare with")
    if reference not in evidence.scored:
        return _no_result(f"{reference.label}, to be compared with, has no scored boot")
    chosen = evidence.chosen if evidence.chosen in evidence.scored else None
    best = chosen or min(evidence.candidates, key=evidence.seconds)
    if best == reference:
        return _kept(evidence, reference)
    contrast = evidence.contrast(best, reference)
    if contrast.excludes_zero is None:
        return _no_result(f"no interval: {contrast.reason}")
    if not contrast.excludes_zero:
        return _undecided(evidence, best, reference)
    return _challenged(evidence, best, reference)


def _no_result(reason: str) -> _Conclusion:
    return _Conclusion(kind="no_result", sentences=(f"No result: {reason}.",))


def _kept(evidence: Evidence, reference: Arm) -> _Conclusion:
    """The reference is the fastest itself."""
    serves = ", which serves now," if reference == evidence.incumbent else ""
    sentences = [f"{reference.label}{serves} is the fastest of {_number(evidence)}."]
    sentences += [
        f"{other.label} cannot be told apart from it: "
        f"{evidence.contrast(other, reference).in_words}."
        for other in evidence.tied_with(reference)
    ]
    return _Conclusion(kind="keep", winner=reference, sentences=tuple(sentences))


def _number(evidence: Evidence) -> str:
    """Return of how many arms one is the fastest."""
    left = len(evidence.candidates)
    return f"{left} arms" + (" that may win" if left < len(evidence.scored) else "")


def _undecided(evidence: Evidence, best: Arm, reference: Arm) -> _Conclusion:
    sentences = (
        _speed(evidence, best, reference),
        f"No difference is shown between {best.label} and serving "
        f"{against(reference, evidence.incumbent)}.",
        *spread_sentence(evidence.contrast(best, reference)),
    )
    return _Conclusion(
        kind="no_difference", gates=ask_gates(evidence, best, reference), sentences=sentences
    )


def _challenged(evidence: Evidence, best: Arm, reference: Arm) -> _Conclusion:
    """The best arm is told apart from the reference: break ties, then ask the gates.

    A choice of the race stands: breaking ties anew, by the boots that confirm it, could name an arm
    that has no fresh boots.
    """
    tied = [
        arm
        for arm in evidence.tied_with(best)
        if arm != reference and evidence.contrast(arm, reference).excludes_zero
    ]
    is_chosen = best == evidence.chosen
    winner = best if is_chosen else min([best, *tied], key=lambda a: _preference(evidence, a))
    gates = ask_gates(evidence, winner, reference)
    sentences = [_speed(evidence, winner, reference)]
    baseline = next((arm for arm in evidence.scored if arm.is_baseline), None)
    if baseline not in (None, reference):
        words = evidence.contrast(winner, baseline).in_words
        sentences.append(f"Against no speculation it is {words}.")
    sentences += [
        tie_sentence(
            other,
            evidence.contrast(other, winner),
            taken=winner,
            why=CHOSEN if is_chosen else _why(evidence, winner, other),
        )
        for other in (best, *tied)
        if other != winner
    ]
    doubt = draft_doubt(
        [block for boot in evidence.boots_of(winner) for block in boot.blocks if block.is_valid]
    )
    sentences += [doubt] if doubt else []
    if gates[0].passed is False:
        return _Conclusion(kind="no_difference", gates=gates, sentences=tuple(sentences))
    kind: VerdictKind = "keep" if any(gate.blocks for gate in gates) else "promote"
    return _Conclusion(kind=kind, winner=winner, gates=gates, sentences=tuple(sentences))


def _preference(evidence: Evidence, arm: Arm) -> tuple[int, int, float]:
    """Order tied arms: the smaller depth, then more KV tokens, then the faster."""
    kv = evidence.summaries[arm].kv_cache_tokens
    return arm.num_speculative_tokens, -(kv or 0), evidence.seconds(arm)


CHOSEN = "the race chose it, and its fresh boots are of no other arm"


def _why(evidence: Evidence, winner: Arm, other: Arm) -> str:
    ours, theirs = _preference(evidence, winner), _preference(evidence, other)
    if ours[0] < theirs[0]:
        return f"it drafts {ours[0]} tokens and not {theirs[0]}"
    if ours[1] < theirs[1]:
        return f"it holds {-ours[1]} KV tokens and the other {-theirs[1]}"
    return "its boots were the faster ones"


def _speed(evidence: Evidence, arm: Arm, reference: Arm) -> str:
    return speed_sentence(
        evidence.summaries[arm],
        evidence.summaries[reference],
        contrast=evidence.contrast(arm, reference),
        incumbent=evidence.incumbent,
    )


def _ranking(evidence: Evidence) -> tuple[Ranked, ...]:
    contrasts, finalists = evidence.contrasts(), evidence.finalists
    order = sorted(
        evidence.summaries.values(),
        key=lambda item: (item.objective_s is None, item.objective_s or 0.0),
    )
    return tuple(
        Ranked(summary=item, contrast=contrasts.get(item.arm), finalist=item.arm in finalists)
        for item in order
    )


def _key(arm: Arm | None) -> str | None:
    return None if arm is None else arm.key


def _place(item: Ranked) -> dict[str, object]:
    contrast = item.contrast
    return {
        "arm": item.summary.arm.key,
        "objective_s": item.summary.objective_s,
        "step_time_source": item.summary.step_time_source,
        "num_boots": item.summary.num_boots,
        "num_scored": item.summary.num_scored,
        "num_blocks": item.summary.num_blocks,
        "kv_cache_tokens": item.summary.kv_cache_tokens,
        "boot_time_s": item.summary.boot_time_s,
        "finalist": item.finalist,
        "status": item.summary.status,
        "cells": [to_plain(estimate) for estimate in item.summary.cells],
        "speedup": None if contrast is None else contrast.speedup,
        "log_ratio": None if contrast is None else contrast.log_ratio,
        "low": None if contrast is None else contrast.low,
        "high": None if contrast is None else contrast.high,
        "compared_boots": None if contrast is None else list(contrast.num_boots),
        "compared_blocks": None if contrast is None else _list(contrast.num_blocks),
        "boot_share_of_variance": None if contrast is None else contrast.boot_share,
        "method": None if contrast is None else contrast.method,
        "no_interval": None if contrast is None else contrast.reason,
    }


def _list(counts: tuple[int, int] | None) -> list[int] | None:
    return None if counts is None else list(counts)


def _outlier(item: Outlier) -> dict[str, object]:
    return {
        "arm": item.arm.key,
        "boot": item.boot,
        "seconds_per_output_token": item.score,
        "others": item.others,
        "p_value": item.p_value,
        "num_boots": item.num_boots,
    }
