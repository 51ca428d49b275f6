"""What serves in production, as an arm of a study: what the others are compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.config import StudyConfig
from orchestrator.core.premises import SERVED, Premises, differences
from orchestrator.core.types import Arm
from orchestrator.errors import ConfigError
from orchestrator.ports import Registry, Version
from orchestrator.promotion_record import CHAMPION
from orchestrator.version_tags import json_of, read_tag, record_of, version_number_of

ARM_TAG = "specpilot.arm"
PREMISES_TAG = "specpilot.premises"
INCUMBENT_TAG = "specpilot.incumbent"
"""Number of the champion that a version's study compared it with, or ``NO_INCUMBENT``."""
NO_INCUMBENT = "none"
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


def incumbent_tag(champion: Version | None) -> dict[str, str]:
    """Return the tag that tells later promotions what a new version was compared with."""
    return {INCUMBENT_TAG: NO_INCUMBENT if champion is None else str(champion.version)}


def require_compared(version: Version, champion: Version | None, config: StudyConfig) -> None:
    """See that a version was compared with what it would replace.

    Its gates say nothing of a champion that came after its study. A version that does not say what
    it was compared with was not registered by a study.

    Raises:
        ConfigError: It was compared with another one, and the policy does not allow to replace
            the champion uncompared; or its tag was written by somebody else.
    """
    if champion is None or champion.version == version.version:
        return
    if INCUMBENT_TAG not in version.tags or config.policy.replace_incomparable_champion:
        return
    noun = f"number of a version and not {NO_INCUMBENT}"
    incumbent = read_tag(version, INCUMBENT_TAG, _incumbent_number, noun=noun, remedy=REMEDY)
    if incumbent == champion.version:
        return
    whom = "no champion" if incumbent is None else f"version {incumbent}"
    raise ConfigError(
        f"version {version.version} of '{version.model_name}'",
        f"its study compared it with {whom}, and version {champion.version} serves",
        "study again, or set policy.replace_incomparable_champion=true",
    )


def _incumbent_number(text: str) -> int | None:
    return None if text == NO_INCUMBENT else version_number_of(text)
