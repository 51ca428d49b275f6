"""What serves in production, as an arm of a study: what the others are compared with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from orchestrator.config import StudyConfig
from orchestrator.core.codec import from_plain
from orchestrator.core.premises import Premises, differences
from orchestrator.core.types import Arm
from orchestrator.errors import ConfigError
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
    if ARM_TAG not in champion.tags or PREMISES_TAG not in champion.tags:
        return ("it was not registered by a study",)
    held = Premises.from_dict(json.loads(champion.tags[PREMISES_TAG]))
    basis = premises_by_build.get(held.engine_build, premises_by_build[config.engine.build])
    # The champion is measured again beside the others, so only what it is counts, not how it was
    # measured then.
    same_measure = replace(
        held,
        node_kind=basis.node_kind,
        workload_digest=basis.workload_digest,
        sampling=basis.sampling,
        step_time=basis.step_time,
        board_model=basis.board_model,
        specpilot_version=basis.specpilot_version,
    )
    return differences(same_measure, basis)


def champion_arm(champion: Version) -> Arm:
    """Return the arm that a registered version serves."""
    return from_plain(Arm, json.loads(champion.tags[ARM_TAG]))


def incumbent_arm(champion: Version | None) -> Arm | None:
    """Return the arm that the champion serves, if there is one."""
    return None if champion is None else champion_arm(champion)


def with_incumbent(arms: Sequence[Arm], incumbent: Arm | None) -> tuple[Arm, ...]:
    """Return the arms with the incumbent among them, so that it is measured beside them."""
    if incumbent is None or incumbent in arms:
        return tuple(arms)
    return (*arms, incumbent)
