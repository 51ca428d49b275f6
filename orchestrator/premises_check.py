"""Whether what is registered still stands: the premises of its evidence beside the world."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orchestrator.config import StudyConfig
from orchestrator.core.conclusions import Judged, compare_keys, judge, premises_gate
from orchestrator.core.premises import SERVED, Compared, compare
from orchestrator.core.promotion import Gate
from orchestrator.errors import ConfigError, MeasurementError
from orchestrator.incumbent import held_premises, version_arm
from orchestrator.ports import Version
from orchestrator.prepare import Prepared, world


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A registered version beside the world."""

    version: Version
    compared: tuple[Compared, ...] = ()
    """Its premises, and the keys of its arm."""
    judged: tuple[Judged, ...] = ()
    """Every conclusion of its study."""
    fault: str | None = None
    """Why nothing can be said of it."""

    @property
    def state(self) -> Literal["stands", "stale", "unknown"]:
        """Whether all conclusions stand, or one is stale, or that cannot be told."""
        states = {item.state for item in self.judged}
        if "stale" in states:
            return "stale"
        return "unknown" if "unknown" in states or self.fault is not None else "stands"

    @property
    def is_incomparable(self) -> bool:
        """Whether no arm of the study can be compared with the version: it is another engine."""
        return self.fault is not None or any(
            item.state == "changed" and item.name in SERVED for item in self.compared
        )


def check(version: Version, prepared: Prepared) -> Checked:
    """Compare a version's premises with the study file and this machine.

    Args:
        version: Registered by a study.
        prepared: What the study would ask now.

    Raises:
        ConfigError: A file of a model cannot be read.
    """
    try:
        held, arm = held_premises(version), version_arm(version)
    except ConfigError as error:
        return Checked(version=version, fault=error.problem)
    if held is None or arm is None:
        return Checked(version=version, fault="it was not registered by a study")
    now = world(prepared, held.engine_build)
    build = now.values["engine_build"]
    space = [item for item in prepared.arms if item.engine_build == build]
    compared = (*compare(held, now), *compare_keys(arm, space))
    return Checked(version=version, compared=compared, judged=judge(compared, arm))


def gate(version: Version, prepared: Prepared) -> Gate:
    """Return whether all still holds that a promotion of the version stands on.

    Raises:
        ConfigError: Its tag holds no premises, or a file of a model cannot be read.
    """
    held = held_premises(version)
    build = prepared.config.engine.build if held is None else held.engine_build
    return premises_gate(held, world(prepared, build), version_arm(version))


def is_refused(config: StudyConfig, champion: Checked | None) -> bool:
    """Return whether ``comparable_champion`` refuses the study for what serves."""
    is_incomparable = champion is not None and champion.is_incomparable
    return is_incomparable and not config.policy.replace_incomparable_champion


def asking(config: StudyConfig, champion: Checked | None, command: str) -> str:
    """Return the command of a study that is not refused for the champion that serves.

    Args:
        config: The study.
        champion: What serves, beside the world; None where nothing does.
        command: The study, as it would be typed.
    """
    adds = " policy.replace_incomparable_champion=true" if is_refused(config, champion) else ""
    return command + adds


def stale_premises(checked: Checked) -> tuple[str, ...]:
    """Return a sentence for each changed premise that makes a conclusion stale.

    Raises:
        MeasurementError: Nothing can be said of the version.
    """
    if checked.fault is not None:
        raise MeasurementError(f"version {checked.version.version}: {checked.fault}")
    stands_on = {
        item: [judged.conclusion.value for judged in checked.judged if item in judged.because]
        for item in checked.compared
        if item.state == "changed"
    }
    return tuple(
        f"{item.sentence}; stale: {', '.join(names)}" for item, names in stands_on.items() if names
    )
