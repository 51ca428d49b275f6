"""The space of arms: which are legal, how vLLM is told of one, whether one is in force.

What an engine can do is knowledge in a table (``CAPABILITIES``, ``DRAFT_ARCHITECTURES``), by model
runner, version and platform: engines accept settings that they ignore, so their silence proves
nothing.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.core.types import Arm, EngineFacts
from orchestrator.errors import ConfigError

METHOD = "dflash"
"""vLLM's name of the method; always written out, never guessed from the draft's path."""
OLDEST_BUILD = (0, 28, 0)
"""First version whose DFlash2 support and metric names this program was read against."""

Platform = Literal["cuda", "cpu"]
ModelRunner = Literal["v1", "v2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftFacts:
    """What the draft's own config.json says; None where it does not."""

    block_size: int | None
    """Tokens of the trained block: one anchor and ``block_size - 1`` drafted."""
    architecture: str | None

    @property
    def trained_depth(self) -> int | None:
        """Largest useful num_speculative_tokens, block_size - 1; None when unknown."""
        return None if self.block_size is None else self.block_size - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTraits:
    """What decides on an engine's capabilities."""

    build: str
    """Version of vLLM, for example ``0.32.0``."""
    platform: Platform
    model_runner: ModelRunner


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceSettings:
    """The values that the search may combine."""

    baseline: bool
    """Whether an arm without speculation takes part."""
    draft_sample_method: tuple[str, ...]
    rejection_sample_method: tuple[str, ...]
    num_speculative_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """Where one value of one key takes effect."""

    runners: tuple[ModelRunner, ...]
    platforms: tuple[Platform, ...] = ("cuda", "cpu")
    since: tuple[int, int, int] = OLDEST_BUILD
    """First version of vLLM that honours it."""
    production: bool = True
    """Whether an arm with this value may ever serve."""
    otherwise: str = "does not have it"
    """What an engine outside the conditions does with the value, for messages."""

    def missing(self, traits: EngineTraits) -> str | None:
        """Return the first condition that the engine fails, in words, or None."""
        if traits.model_runner not in self.runners:
            return f"model runner {' or '.join(self.runners)}"
        if traits.platform not in self.platforms:
            return f"platform {' or '.join(self.platforms)}"
        if _version(traits.build) < self.since:
            return f"vLLM {'.'.join(str(part) for part in self.since)} or later"
        return None


_BOTH: tuple[ModelRunner, ...] = ("v1", "v2")

CAPABILITIES: dict[str, dict[str, Capability]] = {
    "draft_sample_method": {
        "greedy": Capability(runners=_BOTH),
        "probabilistic": Capability(runners=_BOTH),
    },
    "rejection_sample_method": {
        "standard": Capability(runners=_BOTH),
        "block": Capability(
            runners=("v2",), otherwise="accepts it without a word and verifies token by token"
        ),
        "synthetic": Capability(runners=_BOTH, production=False),
    },
}
"""By key and value. Read in vLLM 0.28.0 to 0.33.0."""

DRAFT_ARCHITECTURES: dict[str, Capability] = {
    "DFlash2DraftModel": Capability(
        runners=("v2",), otherwise="refuses it, or drafts as DFlash1 without a word"
    ),
}
"""By the name in the draft's ``architectures``."""


def build_arms(
    space: SpaceSettings, traits: EngineTraits, draft: DraftFacts | None, *, promotable: bool
) -> tuple[Arm, ...]:
    """Return the legal arms: the baseline first, then by draft rule, rejection rule and depth.

    The order is the order of the settings, so that it is the same on every call.

    Args:
        space: Values to combine.
        traits: The engine that all arms run on.
        draft: The draft model; None when the space does not speculate.
        promotable: Whether the study may promote; ``synthetic`` is refused then.

    Raises:
        ConfigError: The space is empty, or a value is unknown, repeated, out of range, not
            honoured by the engine, or not allowed in a study that promotes.
    """
    oldest = ".".join(str(part) for part in OLDEST_BUILD)
    if _version(traits.build) < OLDEST_BUILD:
        raise ConfigError(
            "engine.build", f"vLLM {traits.build} is older than {oldest}", f"use {oldest} or later"
        )
    if not space.baseline and not space.num_speculative_tokens:
        raise ConfigError(
            "search", "the space is empty", "give num_speculative_tokens a depth or baseline=true"
        )
    arms = [Arm(engine_build=traits.build)] if space.baseline else []
    if space.num_speculative_tokens:
        _check_rules(space, traits, promotable=promotable)
        _check_draft(traits, draft)
        _check_depths(space.num_speculative_tokens, draft)
        arms.extend(
            Arm(
                engine_build=traits.build,
                num_speculative_tokens=depth,
                draft_sample_method=draft_rule,
                rejection_sample_method=rejection_rule,
            )
            for draft_rule, rejection_rule, depth in itertools.product(
                space.draft_sample_method,
                space.rejection_sample_method,
                space.num_speculative_tokens,
            )
        )
    return tuple(arms)


def speculative_config(arm: Arm, draft_path: str) -> dict[str, object] | None:
    """Return the value of vLLM's ``--speculative-config``, or None for the baseline."""
    if arm.is_baseline:
        return None
    config: dict[str, object] = {
        "method": METHOD,
        "model": draft_path,
        "num_speculative_tokens": arm.num_speculative_tokens,
        "draft_sample_method": arm.draft_sample_method,
        "rejection_sample_method": arm.rejection_sample_method,
    }
    if arm.rejection_sample_method == "synthetic":
        config["synthetic_acceptance_length"] = 1 + arm.num_speculative_tokens / 2
    return config


def not_in_force(arm: Arm, facts: EngineFacts) -> str | None:
    """Compare what the engine resolved with what the arm asks for.

    A value that the engine does not state counts as not in force, except the model runner of an
    arm without speculation, which changes nothing.

    Returns:
        One sentence that names key, runner and version, or None when the arm is in force.
    """
    version = facts.engine_version
    if version is None:
        return f"the engine does not say its version; {arm.engine_build} was asked for"
    if is_other_build(arm, facts):
        return f"engine.build: {arm.engine_build} was asked for and vLLM {version} answers"
    where = f"on model runner {facts.model_runner or '(not stated)'} of vLLM {version}"
    stated: dict[str, object] = {
        "num_speculative_tokens": facts.num_speculative_tokens,
        "draft_sample_method": facts.draft_sample_method,
        "rejection_sample_method": facts.rejection_sample_method,
    }
    if arm.is_baseline:
        return _speculation_in(stated, facts.draft_architecture, where)
    asked: dict[str, object] = {
        "num_speculative_tokens": arm.num_speculative_tokens,
        "draft_sample_method": arm.draft_sample_method,
        "rejection_sample_method": arm.rejection_sample_method,
    }
    for key, value in asked.items():
        if stated[key] is None:
            return f"{key}: {value} was asked for and the engine does not say what it uses, {where}"
        if stated[key] != value:
            return f"{key}: {value} was asked for and {stated[key]} is in force, {where}"
    return _runner_ignores(arm, facts, where)


def is_other_build(arm: Arm, facts: EngineFacts) -> bool:
    """Whether an engine says that it is of another version than the arm's build."""
    version = facts.engine_version
    return version is not None and _plain(version) != _plain(arm.engine_build)


def _plain(build: str) -> str:
    """Return a build's version without the name that a study gives it."""
    return build.partition("+")[0]


def reference_arm(arms: Sequence[Arm], incumbent: Arm | None) -> Arm | None:
    """Return what a challenger must beat: the incumbent, else the baseline, else None."""
    if incumbent is not None:
        return incumbent
    return next((arm for arm in arms if arm.is_baseline), None)


def _version(build: str) -> tuple[int, int, int]:
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", build)
    if match is None:
        raise ConfigError("engine.build", f"'{build}' is no version", "write it as in 0.32.0")
    major, minor, patch = match.groups()
    return int(major), int(minor), int(patch)


def _check_rules(space: SpaceSettings, traits: EngineTraits, *, promotable: bool) -> None:
    for key, table in CAPABILITIES.items():
        where = f"search.{key}"
        rules: tuple[str, ...] = getattr(space, key)
        if not rules:
            raise ConfigError(where, "is empty", f"name at least one of {', '.join(table)}")
        _check_unique(where, rules)
        for rule in rules:
            if rule not in table:
                raise ConfigError(
                    where, f"'{rule}' is no rule of vLLM's", f"use one of {', '.join(table)}"
                )
            _check_capability(where, f"'{rule}'", capability=table[rule], traits=traits)
            if promotable and not table[rule].production:
                raise ConfigError(
                    where,
                    f"'{rule}' does not verify drafts and can never be promoted",
                    f"remove '{rule}' or set policy.promote=never",
                )


def _check_draft(traits: EngineTraits, draft: DraftFacts | None) -> None:
    supported = ", ".join(DRAFT_ARCHITECTURES)
    if draft is None:
        raise ConfigError(
            "draft.path", "is missing although the space speculates", f"name a {supported} folder"
        )
    if draft.architecture not in DRAFT_ARCHITECTURES:
        raise ConfigError(
            "draft.path",
            f"the draft's architecture is {draft.architecture or 'not stated in its config.json'}",
            f"supported: {supported}",
        )
    _check_capability(
        "engine.model_runner",
        f"a {draft.architecture} draft",
        capability=DRAFT_ARCHITECTURES[draft.architecture],
        traits=traits,
    )


def _check_capability(
    where: str, what: str, *, capability: Capability, traits: EngineTraits
) -> None:
    problem = capability.missing(traits)
    if problem is not None:
        raise ConfigError(
            where,
            f"{what} needs {problem}; model runner {traits.model_runner} of vLLM {traits.build} "
            f"on {traits.platform} {capability.otherwise}",
            f"change engine.* so that it has {problem}, or leave {what} out",
        )


def _check_depths(depths: tuple[int, ...], draft: DraftFacts | None) -> None:
    where = "search.num_speculative_tokens"
    _check_unique(where, depths)
    trained = None if draft is None else draft.trained_depth
    for depth in depths:
        if depth < 1:
            raise ConfigError(
                where, f"{depth} is below 1", "give depths from 1; baseline=true means none"
            )
        if trained is not None and depth > trained:
            raise ConfigError(
                where,
                f"{depth} is beyond the draft's trained block of {trained + 1} tokens",
                f"give at most {trained}",
            )


def _check_unique(where: str, values: Sequence[object]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ConfigError(where, f"{value} stands there twice", "name each value once")


def _speculation_in(
    stated: Mapping[str, object], draft_architecture: str | None, where: str
) -> str | None:
    found = {**stated, "draft model": draft_architecture}
    for key, value in found.items():
        if value not in (None, 0):
            return f"{key}: no speculation was asked for and {value} is in force, {where}"
    return None


def _runner_ignores(arm: Arm, facts: EngineFacts, where: str) -> str | None:
    for key, value, capability in _needs(arm, facts.draft_architecture):
        if capability is None:
            return f"{key}: {value} is not a draft that this program can vouch for, {where}"
        if facts.model_runner not in capability.runners:
            runners = " or ".join(capability.runners)
            return f"{key}: {value} takes effect on model runner {runners} only, not {where}"
    return None


def _needs(
    arm: Arm, draft_architecture: str | None
) -> Iterator[tuple[str, str, Capability | None]]:
    for key, table in CAPABILITIES.items():
        rule: str = getattr(arm, key)
        yield key, rule, table.get(rule)
    architecture = draft_architecture or "an architecture that the engine does not state"
    yield "draft model", architecture, DRAFT_ARCHITECTURES.get(architecture)
