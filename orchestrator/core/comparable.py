"""Which boots of a study are of one kind: numbers of two engines or two drivers never meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from orchestrator.core.builds import arm_names, boots_by_build
from orchestrator.core.types import Arm, Boot

SHARED = ("engine", "models", "load", "environment", "platform")
"""Sections of the fingerprint that all boots of an engine build must have in common."""

ACROSS = ("models", "load", "platform")
"""Those of them that the boots of two builds must have in common to be compared at all: another
build is another engine, and may want other variables."""

OWN = ("arguments", "speculation", "resolved_config")
"""Those that the boots of one arm must have in common besides."""


def odd_boots(boots: Sequence[Boot]) -> dict[str, tuple[str, ...]]:
    """Return the boots that ran on or with something else than the others, by trial id.

    The others are those of the same engine build: a build is not odd for not being another one. Of
    two builds only what has nothing to do with the engine must agree. The usual kind is the most
    frequent one, the earliest where kinds are as frequent. A boot without a fingerprint is not
    judged; one without a valid block is not either, and however many of a kind fail, they never
    outvote one that has numbers.

    Returns:
        Sections of the fingerprint in which each differs.
    """
    judged = [b for b in boots if b.sections and any(block.is_valid for block in b.blocks)]
    odd: dict[str, tuple[str, ...]] = {}
    for own in boots_by_build(judged).values():
        odd |= _differing(own, SHARED)
    odd |= _differing([boot for boot in judged if boot.trial_id not in odd], ACROSS)
    by_arm: dict[Arm, list[Boot]] = {}
    for boot in judged:
        if boot.trial_id not in odd:
            by_arm.setdefault(boot.arm, []).append(boot)
    for own in by_arm.values():
        odd |= _differing(own, OWN)
    return odd


def comparable_boots(boots: Sequence[Boot]) -> tuple[Boot, ...]:
    """Return the boots without the odd ones."""
    odd = odd_boots(boots)
    return tuple(boot for boot in boots if boot.trial_id not in odd)


def odd_sentences(boots: Sequence[Boot]) -> tuple[str, ...]:
    """Return one sentence for each odd boot."""
    odd = odd_boots(boots)
    name = arm_names(boot.arm for boot in boots)
    return tuple(
        f"{name(boot.arm)}, boot {boot.replicate} on node {boot.node_id}, is left out: not what "
        f"the other boots have: {', '.join(odd[boot.trial_id])} (fingerprint.json of its run)"
        for boot in boots
        if boot.trial_id in odd
    )


def _differing(boots: Sequence[Boot], names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    if not boots:
        return {}
    # Counter keeps the order of the first occurrence, and max takes the first of equals.
    kinds = Counter(_kind(boot.sections, names) for boot in boots)
    usual = max(kinds, key=lambda kind: kinds[kind])
    odd: dict[str, tuple[str, ...]] = {}
    for boot in boots:
        kind = _kind(boot.sections, names)
        if kind != usual:
            pairs = zip(names, kind, usual, strict=True)
            odd[boot.trial_id] = tuple(name for name, own, most in pairs if own != most)
    return odd


def _kind(sections: Mapping[str, str], names: Sequence[str]) -> tuple[str | None, ...]:
    return tuple(sections.get(name) for name in names)
