"""The arms of a study that compares engine builds: each build's own, by what it honours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.core.space import (
    CAPABILITIES,
    DRAFT_ARCHITECTURES,
    Capability,
    DraftFacts,
    EngineTraits,
    SpaceSettings,
    build_arms,
)
from orchestrator.core.types import Arm
from orchestrator.errors import ConfigError


def build_all_arms(
    space: SpaceSettings,
    builds: Sequence[EngineTraits],
    draft: DraftFacts | None,
    *,
    promotable: bool,
) -> tuple[tuple[Arm, ...], tuple[str, ...]]:
    """Return the legal arms of every build, and what was left out.

    A value that one of several builds does not honour is left out of that build's arms, so that
    builds can be compared in which they differ; a value that none honours is refused.

    Args:
        space: Values to combine.
        builds: The engines, the study's own first.
        draft: The draft model; None when the space does not speculate.
        promotable: Whether the study may promote.

    Returns:
        The arms, build by build, and one sentence for each value that a build does without.

    Raises:
        ConfigError: As ``build_arms``, or a build is left without an arm.
    """
    arms: list[Arm] = []
    notes: list[str] = []
    for traits in builds:
        own, left_out = _honoured(space, traits, builds=builds, draft=draft)
        words = f"{', '.join(left_out)} on model runner {traits.model_runner}"
        if left_out and not own.baseline and not own.num_speculative_tokens:
            raise ConfigError(
                "engine.builds", f"vLLM {traits.build} has no {words}, and so no arm",
                "leave the build out, or set search.baseline=true",
            )  # fmt: skip
        if left_out:
            notes.append(f"vLLM {traits.build} has no {words}: the arms with it are left out there")
        arms += build_arms(own, traits, draft, promotable=promotable)
    return tuple(arms), tuple(notes)


def _honoured(
    space: SpaceSettings,
    traits: EngineTraits,
    *,
    builds: Sequence[EngineTraits],
    draft: DraftFacts | None,
) -> tuple[SpaceSettings, list[str]]:
    """Return the space without what another build honours and this one does not, and its names."""

    def lacks(capability: Capability | None) -> bool:
        return (
            capability is not None
            and capability.missing(traits) is not None
            and any(capability.missing(other) is None for other in builds)
        )

    if not space.num_speculative_tokens:
        return space, []
    left_out = [
        rule
        for key, table in CAPABILITIES.items()
        for rule in getattr(space, key)
        if lacks(table.get(rule))
    ]
    if draft is not None and lacks(DRAFT_ARCHITECTURES.get(draft.architecture or "")):
        return replace(space, num_speculative_tokens=()), [str(draft.architecture)]
    rules = {
        key: tuple(rule for rule in getattr(space, key) if rule not in left_out)
        for key in CAPABILITIES
    }
    if not all(rules.values()):
        return replace(space, num_speculative_tokens=()), left_out
    return replace(space, **rules), left_out  # type: ignore[arg-type]  # keys are its fields
