"""The space of arms: which are legal, how vLLM is told of one, whether one is in force.

What an engine can do is knowledge in a table (``CAPABILITIES``, ``DRAFT_ARCHITECTURES``), by model
runner, version and platform: engines accept settings that they ignore, so their silence proves
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    vocab_size: int | None

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
    raise NotImplementedError


def speculative_config(arm: Arm, draft_path: str) -> dict[str, object] | None:
    """Return the value of vLLM's ``--speculative-config``, or None for the baseline."""
    raise NotImplementedError


def not_in_force(arm: Arm, facts: EngineFacts) -> str | None:
    """Compare what the engine resolved with what the arm asks for.

    A value that the engine does not state counts as not in force, except the model runner of an
    arm without speculation, which changes nothing.

    Returns:
        One sentence that names key, runner and version, or None when the arm is in force.
    """
    raise NotImplementedError


def reference_arm(arms: Sequence[Arm], incumbent: Arm | None) -> Arm | None:
    """Return what a challenger must beat: the incumbent, else the baseline, else None."""
    if incumbent is not None:
        return incumbent
    return next((arm for arm in arms if arm.is_baseline), None)
