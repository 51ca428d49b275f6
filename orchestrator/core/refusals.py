"""Whether the study, rather than an arm of it, is what keeps engines from coming up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import shorten

from orchestrator.core.failures import CLASSES, FailureClass, FailureKind
from orchestrator.core.types import Arm, Boot
from orchestrator.errors import ConfigError

MAX_CAUSE_CHARS = 300
"""Of the engine's words that are cited; the rest is in the log's end of each boot."""

_SETTINGS: tuple[Callable[[Arm], object], ...] = (
    lambda arm: arm.is_baseline,
    lambda arm: arm.num_speculative_tokens,
    lambda arm: arm.draft_sample_method,
    lambda arm: arm.rejection_sample_method,
)
"""What arms of one build differ in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFault:
    """What is wrong with the study, in the three parts of a ``ConfigError``."""

    where: str
    problem: str
    remedy: str
    trial_ids: frozenset[str]
    """Of the boots that show it. They say nothing of their arms."""

    def error(self) -> ConfigError:
        """Return the error with which the study ends."""
        return ConfigError(self.where, self.problem, self.remedy)


def study_fault(boots: Sequence[Boot], arms: Sequence[Arm]) -> StudyFault | None:
    """Return why no arm can run, or None while an arm may be to blame.

    A refusal is the study's when boots were refused with the same words, no boot of their build
    ever came up, and the arms have in common nothing in which the study's arms differ: then no
    setting of an arm can be the cause. The baseline and any other arm are two such arms.

    Args:
        boots: Boots that came back, in the order of their end.
        arms: The study's arms.
    """
    for boot in boots:
        if boot.failure is not None and CLASSES[boot.failure] is FailureClass.CONFIGURATION:
            return StudyFault(
                where="engine.build",
                problem=boot.reason.removeprefix("engine.build: "),
                remedy="name the build that is installed, or give engine.python its environment",
                trial_ids=frozenset({boot.trial_id}),
            )
    up = {boot.arm.engine_build for boot in boots if boot.facts is not None}
    alike: defaultdict[tuple[str, str], list[Boot]] = defaultdict(list)
    for boot in boots:
        build = boot.arm.engine_build
        if boot.failure is FailureKind.BAD_ARGUMENTS and boot.cause and build not in up:
            alike[build, boot.cause].append(boot)
    for (build, cause), refused in alike.items():
        space = [arm for arm in arms if arm.engine_build == build]
        if _has_nothing_in_common([boot.arm for boot in refused], space):
            names = ", ".join(dict.fromkeys(boot.arm.label for boot in refused))
            return StudyFault(
                where="engine.args",
                problem=f"vLLM {build} refuses them with every arm alike ({names}): "
                f"{shorten(cause, MAX_CAUSE_CHARS)}",
                remedy="correct them, or what else all arms share: target.path, engine.env",
                trial_ids=frozenset(boot.trial_id for boot in refused),
            )
    return None


def wants_baseline(boots: Sequence[Boot]) -> bool:
    """Whether the baseline should be next: an arm was refused before any came up.

    With it the study's fault is told from the arm's by one more boot.
    """
    is_refused = any(boot.failure is FailureKind.BAD_ARGUMENTS for boot in boots)
    return is_refused and all(boot.facts is None for boot in boots)


def _has_nothing_in_common(refused: Sequence[Arm], space: Sequence[Arm]) -> bool:
    return all(
        len({setting(arm) for arm in refused}) > 1
        for setting in _SETTINGS
        if len({setting(arm) for arm in space}) > 1
    )
