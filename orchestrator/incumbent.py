"""What serves in production, as an arm of a study: what the others are compared with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from orchestrator.config import StudyConfig
from orchestrator.core.codec import from_plain
from orchestrator.core.premises import SERVED, Premises, differences
from orchestrator.core.types import Arm
from orchestrator.errors import ConfigError, reported_at
from orchestrator.ports import Registry, Version
from orchestrator.promotion_record import CHAMPION

ARM_TAG = "specpilot.arm"
PREMISES_TAG = "specpilot.premises"


def comparable_champion(
    registry: Registry, config: StudyConfig, premises_by_build: Mapping[str, Premises]
) -> Version | None:
    """Return the champion that the study's arms are compared with; None where nothing serves.

    It is compared with the arms of its own engine build, if the study has that one.

    Raises:
        ConfigError: The champion stands on other premises, so that no arm can be compared with
            it, and the policy does not allow to replace it uncompared.
    """
    name = config.tracking.registered_model
    champion = registry.by_alias(name, CHAMPION)
    if champion is None:
        return None
    reasons = _incomparable(champion, config, premises_by_build)
    if config.policy.replace_incomparable_champion:
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
    try:
        held = held_premises(champion)
    except ConfigError as error:
        return (error.problem,)
    if held is None or ARM_TAG not in champion.tags:
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
    text = version.tags.get(PREMISES_TAG)
    if text is None:
        return None
    try:
        data = dict(json.loads(text))
    except (TypeError, ValueError) as error:
        raise _unreadable(version, f"its tag {PREMISES_TAG} holds no premises: {error}") from error
    with reported_at(_place(version)):
        return Premises.from_dict(data)


def version_arm(version: Version) -> Arm | None:
    """Return the arm that a registered version serves; None where it does not say.

    Raises:
        ConfigError: The tag was written by somebody else.
    """
    text = version.tags.get(ARM_TAG)
    try:
        return None if text is None else from_plain(Arm, json.loads(text))
    except (TypeError, ValueError) as error:
        raise _unreadable(version, f"its tag {ARM_TAG} holds no arm: {error}") from error


def incumbent_arm(champion: Version | None) -> Arm | None:
    """Return the arm that the champion serves, if there is one."""
    return None if champion is None else version_arm(champion)


def with_incumbent(arms: Sequence[Arm], incumbent: Arm | None) -> tuple[Arm, ...]:
    """Return the arms with the incumbent among them, so that it is measured beside them."""
    if incumbent is None or incumbent in arms:
        return tuple(arms)
    return (*arms, incumbent)


def _unreadable(version: Version, problem: str) -> ConfigError:
    return ConfigError(_place(version), problem, "register it again by a study")


def _place(version: Version) -> str:
    return f"version {version.version} of '{version.model_name}'"
