"""What a study of several engine builds concludes: a verdict for each build, and the builds apart.

The arms of one build are ranked among themselves; those of two are never ranked together. What a
build changes is a contrast of its own: the same configuration on both. Whether another build may
take production's place is asked of its choice alone, against what serves when the study has ended,
by the same gates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.core.build_race import build_questions, production_build
from orchestrator.core.builds import boots_by_build
from orchestrator.core.codec import to_plain
from orchestrator.core.comparison import measured
from orchestrator.core.estimate import Contrast, acceptance_lengths
from orchestrator.core.premises import Premises
from orchestrator.core.promotion import Gate, GateSettings
from orchestrator.core.proof_gates import Proofs
from orchestrator.core.race_state import Choice, RaceQuestion
from orchestrator.core.types import Arm, Boot
from orchestrator.core.verdict import Verdict, decide, promotable


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContrast:
    """One configuration on another build, against itself on production's."""

    arm: Arm
    """On the other build."""
    base: Arm
    contrast: Contrast
    """Log ratio of ``arm`` to ``base``; each build's boots tell of its own spread."""
    lengths: Mapping[float, tuple[float | None, float | None]]
    """Acceptance lengths of ``arm`` and of ``base``, by temperature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildChange:
    """The choice of another build, against what serves once the study has ended."""

    arm: Arm
    reference: Arm
    contrast: Contrast
    """Log ratio of ``arm`` to ``reference``."""
    gates: tuple[Gate, ...]
    passes: bool
    """Whether the arm is shown faster and no gate keeps it out."""
    verdict: Verdict
    """Of these two arms alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyVerdict:
    """The answer of a study, whatever the number of its engine builds."""

    verdicts: Mapping[str, Verdict]
    """By build, production's first."""
    contrasts: tuple[BuildContrast, ...] = ()
    changes: tuple[BuildChange, ...] = ()
    is_modelled: bool = False
    """Whether a board model states all step times; it knows no build."""

    @property
    def production(self) -> Verdict:
        """The verdict of the build that production serves: the study's own where there is one."""
        return next(iter(self.verdicts.values()))

    @property
    def build(self) -> str:
        """The build that production serves, or would."""
        return next(iter(self.verdicts))

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON types: the production's verdict, and what other builds add to it."""
        if len(self.verdicts) == 1:
            return self.production.to_dict()
        return {
            **self.production.to_dict(),
            "builds": {build: verdict.to_dict() for build, verdict in self.verdicts.items()},
            "build_contrasts": [_contrast(item) for item in self.contrasts],
            "build_changes": [
                {
                    "arm": item.arm.key,
                    "reference": item.reference.key,
                    "passes": item.passes,
                    "contrast": to_plain(item.contrast),
                    "gates": [to_plain(gate) for gate in item.gates],
                }
                for item in self.changes
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictSettings:
    """How boots are read."""

    gates: GateSettings
    confidence: float
    """Coverage of the intervals, 0 to 1."""
    premises: Mapping[str, Premises]
    """What the conclusions of each build depend on."""


def decide_builds(
    question: RaceQuestion,
    boots: Sequence[Boot],
    *,
    settings: VerdictSettings,
    choices: Mapping[str, Choice],
    proofs: Proofs | None = None,
) -> StudyVerdict:
    """Return the verdict of a study, build by build.

    Args:
        question: What the study asks.
        boots: All boots, whatever their end.
        settings: How they are read.
        choices: What the race of each build chose, and by which boots.
        proofs: What is shown of arms besides their speed; None demands nothing.
    """
    shown = proofs or Proofs()
    by_build = boots_by_build(boots)
    verdicts = {
        build: _verdict(own, by_build.get(build, ()), settings, choices.get(build), shown)
        for build, own in build_questions(question).items()
    }
    if len(verdicts) == 1:
        return StudyVerdict(verdicts=verdicts, is_modelled=question.board is not None)
    return StudyVerdict(
        verdicts=verdicts,
        contrasts=_contrasts(question, boots, settings.confidence),
        changes=_changes(
            replace(question, incumbent=_to_beat(question, next(iter(verdicts.values())))),
            boots,
            settings=settings,
            choices=choices,
            proofs=shown,
        ),
        is_modelled=question.board is not None,
    )


def _verdict(
    question: RaceQuestion,
    boots: Sequence[Boot],
    settings: VerdictSettings,
    choice: Choice | None,
    proofs: Proofs,
) -> Verdict:
    return decide(
        question.arms,
        boots=boots,
        weights=question.weights,
        board=question.board,
        incumbent=question.incumbent,
        settings=settings.gates,
        confidence=settings.confidence,
        premises=settings.premises.get(question.arms[0].engine_build),
        chosen=None if choice is None else choice.arm,
        chosen_by=None if choice is None else choice.chosen_by,
        proofs=proofs,
    )


def _contrasts(
    question: RaceQuestion, boots: Sequence[Boot], confidence: float
) -> tuple[BuildContrast, ...]:
    """Compare every configuration that production's build and another one have, both with boots."""
    taken = measured(boots, cells=tuple(question.weights), board=question.board)
    comparison = taken.compare(question.weights)
    ours = production_build(question.arms, question.reference)
    found: list[BuildContrast] = []
    for arm in question.arms:
        base = replace(arm, engine_build=ours)
        if arm == base or not {arm, base} <= comparison.boots.keys():
            continue
        lengths, bases = acceptance_lengths(arm, boots), acceptance_lengths(base, boots)
        found.append(
            BuildContrast(
                arm=arm,
                base=base,
                contrast=comparison.contrast(arm, base, confidence=confidence),
                lengths={t: (lengths.get(t), bases.get(t)) for t in sorted({*lengths, *bases})},
            )
        )
    return tuple(found)


def _to_beat(question: RaceQuestion, production: Verdict) -> Arm | None:
    """Return what another build's choice must beat: what serves once the study has ended."""
    return production.winner if promotable(production) else question.reference


def _changes(
    question: RaceQuestion,
    boots: Sequence[Boot],
    *,
    settings: VerdictSettings,
    choices: Mapping[str, Choice],
    proofs: Proofs,
) -> tuple[BuildChange, ...]:
    """Ask of every other build's choice whether it may take the incumbent's place.

    Nothing is asked under a board model: it gives the steps of every build the same time.
    """
    reference = question.reference
    if reference is None or question.board is not None:
        return ()
    found: list[BuildChange] = []
    for build, choice in choices.items():
        if build == reference.engine_build:
            continue
        pair = {build, reference.engine_build}
        asked = replace(question, arms=(reference, choice.arm))
        verdict = _verdict(
            asked, [b for b in boots if b.arm.engine_build in pair], settings, choice, proofs
        )
        place = next((item for item in verdict.ranking if item.summary.arm == choice.arm), None)
        if place is not None and place.contrast is not None:
            found.append(
                BuildChange(
                    arm=choice.arm,
                    reference=reference,
                    contrast=place.contrast,
                    gates=verdict.gates,
                    passes=promotable(verdict),
                    verdict=replace(verdict, premises=settings.premises.get(build)),
                )
            )
    return tuple(found)


def _contrast(item: BuildContrast) -> dict[str, object]:
    return {
        "arm": item.arm.key,
        "base": item.base.key,
        "contrast": to_plain(item.contrast),
        "acceptance_lengths": {f"{t:g}": list(pair) for t, pair in item.lengths.items()},
    }
