"""Arms and boots by engine build: what a study of several keeps apart, and how it names arms."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from orchestrator.core.types import Arm, Boot


def by_build(arms: Iterable[Arm]) -> dict[str, list[Arm]]:
    """Return the arms by engine build, builds and arms in the order of their first appearance."""
    builds: dict[str, list[Arm]] = {}
    for arm in arms:
        builds.setdefault(arm.engine_build, []).append(arm)
    return builds


def boots_by_build(boots: Iterable[Boot]) -> dict[str, list[Boot]]:
    """Return the boots by engine build, in their order."""
    builds: dict[str, list[Boot]] = {}
    for boot in boots:
        builds.setdefault(boot.arm.engine_build, []).append(boot)
    return builds


def arm_names(arms: Iterable[Arm]) -> Callable[[Arm], str]:
    """Return what names an arm among these: its label, with the build where there are several."""
    return _key if len({arm.engine_build for arm in arms}) > 1 else _label


def _label(arm: Arm) -> str:
    return arm.label


def _key(arm: Arm) -> str:
    return arm.key
