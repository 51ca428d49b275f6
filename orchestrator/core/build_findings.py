"""Findings and rows of tables of a study, build by build."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from orchestrator.core.build_race import build_questions
from orchestrator.core.builds import boots_by_build
from orchestrator.core.findings import Findings, find
from orchestrator.core.race_state import RaceQuestion
from orchestrator.core.summary import ArmSummary, summarise
from orchestrator.core.types import Arm, Boot


def find_builds(
    question: RaceQuestion,
    boots: Sequence[Boot],
    *,
    confidence: float,
    set_aside: Collection[Arm] = (),
) -> dict[str, Findings]:
    """Return what the boots of each build show, production's build first.

    Args:
        question: What the study asks.
        boots: All boots, whatever their end.
        confidence: Coverage of each interval, 0 to 1.
        set_aside: Arms that no finding may name as the best.
    """
    by_build = boots_by_build(boots)
    return {
        build: find(
            own.arms,
            boots=by_build.get(build, ()),
            weights=own.weights,
            board=own.board,
            incumbent=own.incumbent,
            confidence=confidence,
            set_aside=set_aside,
        )
        for build, own in build_questions(question).items()
    }


def summarise_builds(question: RaceQuestion, boots: Sequence[Boot]) -> tuple[ArmSummary, ...]:
    """Return one summary an arm, by build; an arm is judged beside those of its own build."""
    by_build = boots_by_build(boots)
    return tuple(
        summary
        for build, own in build_questions(question).items()
        for summary in summarise(
            own.arms, boots=by_build.get(build, ()), weights=own.weights, board=own.board
        )
    )
