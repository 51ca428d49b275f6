"""What serves in production, as an arm of a study: what the others are compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.config import StudyConfig
from orchestrator.core.premises import SERVED, Premises, differences
from orchestrator.core.types import Arm
from orchestrator.errors import ConfigError
from orchestrator.ports import Registry, Version
from orchestrator.promotion_record import CHAMPION
from orchestrator.version_tags import json_of, read_tag, record_of

ARM_TAG = "specpilot.arm"
PREMISES_TAG = "specpilot.premises"
BESIDE_TAG = "specpilot.judged_beside"
"""Number of the champion that a version was compared with, or ``NOBODY``."""
NOBODY = "none"
REMEDY = "put back what its study's run has, or promote another version"


def comparable_champion(
    registry: Registry, config: StudyConfig, premises_by_build: Mapping[str, Premises]
) -> Version | None:
    """Return the champion that the study's arms are compared with; None where nothing serves.

    It is compared with the arms of its own engine build, if the study has that one.

    Raises:
        ConfigError: The champion stands on other premises, so that no arm can be compared with
            it, and the policy does not allow to replace it uncompared; or its tags are garbled.
    """
    name = config.tracking.registered_model
    champion = registry.by_alias(name, CHAMPION)
    if champion is None:
        return None
    may_be_replaced = config.policy.replace_incomparable_champion
    try:
        reasons = _incomparable(champion, config, premises_by_build)
    except ConfigError:
        if may_be_replaced:
            return None
        raise
    if may_be_replaced:
        return None if reasons else champion
    if reasons:
        raise ConfigError(
            "tracking.registered_model",
            f"the champion of '{name}', version {champion.version}, cannot be compared with this "
            f"study's arms: {'; '.join(reasons)}",
            "study under its premises, or set policy.replace_incomparable_champion=true",
        )
    return champion


def _incomparable(
    champion: Version, config: StudyConfig, premises_by_build: Mapping[str, Premises]
) -> tuple[str, ...]:
    """Return why a champion is no arm of a study with these premises; empty when it is one."""
    held = held_premises(champion)
    if held is None or version_arm(champion) is None:
        return ("it was not registered by a study",)
    basis = premises_by_build.get(held.engine_build, premises_by_build[config.engine.build])
    # The champion is measured again beside the others, so only what it is counts, not how it was
    # measured then.
    return differences(held, basis, names=SERVED)


def held_premises(version: Version) -> Premises | None:
    """Return what a version's evidence depends on; None where it was registered without.

    Raises:
        ConfigError: The tag was written by somebody else, or by another version of specpilot.
    """
    return read_tag(version, PREMISES_TAG, _premises_of, noun="premises", remedy=REMEDY)


def version_arm(version: Version) -> Arm | None:
    """Return the arm that a registered version serves; None where it does not say.

    Raises:
        ConfigError: The tag was written by somebody else.
    """
    return read_tag(version, ARM_TAG, record_of(Arm), noun="arm", remedy=REMEDY)


def incumbent_arm(champion: Version | None) -> Arm | None:
    """Return the arm that the champion serves; None without one that a study registered."""
    return None if champion is None else version_arm(champion)


def _premises_of(text: str) -> Premises:
    return Premises.from_dict(json_of(text))


def with_incumbent(arms: Sequence[Arm], incumbent: Arm | None) -> tuple[Arm, ...]:
    """Return the arms with the incumbent among them, so that it is measured beside them."""
    if incumbent is None or incumbent in arms:
        return tuple(arms)
    return (*arms, incumbent)


def beside_tag(champion: Version | None) -> dict[str, str]:
    """Return what a version is registered with that was compared with this champion."""
    return {BESIDE_TAG: NOBODY if champion is None else str(champion.version)}


def require_compared(version: Version, champion: Version | None, config: StudyConfig) -> None:
    """See that a version was compared with what it would replace.

    Its gates say nothing of a champion that came after its study. A version that does not say what
    it was compared with was not registered by a study.

    Raises:
        ConfigError: It was compared with another one, and the policy does not allow to replace
            the champion uncompared.
    """
    beside = version.tags.get(BESIDE_TAG)
    if champion is None or champion.version == version.version or beside is None:
        return
    if beside == str(champion.version) or config.policy.replace_incomparable_champion:
        return
    whom = "no champion" if beside == NOBODY else f"version {beside}"
    raise ConfigError(
        f"version {version.version} of '{version.model_name}'",
        f"its study compared it with {whom}, and version {champion.version} serves",
        "study again, or set policy.replace_incomparable_champion=true",
    )
