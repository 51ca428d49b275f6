"""Boards in virtual time: how long a step, a boot and a block take, and how that wavers. Pure."""

from __future__ import annotations

import bisect
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from orchestrator.core.types import Arm

STUCK_CLOCK_MHZ = 799.0
"""SM clock of a board whose power delivery went wrong, under load and without a throttle reason."""
STUCK_SLOWDOWN = 3.0
"""Factor on the step time of such a board: 799 MHz against 2400."""

GRAPH_SIZES = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
"""Tokens of a step for which the engine captures CUDA graphs: vLLM's default list up to 512."""

Rules = tuple[str, str]
"""Draft rule and rejection rule."""


def rng_of(*parts: object) -> np.random.Generator:
    """Return the random numbers that belong to a name, the same on every machine."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardPhysics:
    """Step time by arm and streams.

    Formula: (base_s + verify_s_per_token * padded + rule_s_per_token * tokens + draft) * cliff,
    tokens = streams * (1 + depth), padded to the next graph size; the draft costs draft_s once and
    draft_s_per_position for each position; the cliff counts past the trained block only.

    The default coefficients are those of ``conf/node/gb10_model.yaml`` where that has them.
    """

    base_s: float = 0.08085
    verify_s_per_token: float = 0.0011167
    draft_s: float = 0.01232
    draft_s_per_position: float = 0.0
    """A DFlash draft proposes its whole block in one pass, so positions cost next to nothing."""
    rule_s_per_token: Mapping[Rules, float] = field(default_factory=dict)
    """What a pair of rules costs beyond greedy + standard, by drafted and bonus token."""
    trained_depth: int = 7
    cliff: float = 1.35
    """Factor past ``trained_depth``; a public GB10 grid lost 26 % of its speed from 7 to 8."""
    tokens_of: Mapping[Arm, int] = field(default_factory=dict)
    """Depth that an arm's steps cost as, where that is not its own."""
    prefill_s: float = 0.15
    """What a stream waits between two answers: the prefill of the next prompt."""

    def step_time_s(self, arm: Arm, streams: int) -> float:
        """Return the seconds of one engine step on an undisturbed board."""
        depth = arm.num_speculative_tokens
        tokens = streams * (1 + self.tokens_of.get(arm, depth))
        seconds = self.base_s + self.verify_s_per_token * padded(tokens)
        if arm.is_baseline:
            return seconds
        rules = (str(arm.draft_sample_method), str(arm.rejection_sample_method))
        seconds += self.draft_s + self.draft_s_per_position * depth
        seconds += self.rule_s_per_token.get(rules, 0.0) * tokens
        return seconds * (self.cliff if depth > self.trained_depth else 1.0)


def padded(tokens: int) -> int:
    """Return the graph size that so many tokens run at; beyond the last there is no padding."""
    place = bisect.bisect_left(GRAPH_SIZES, tokens)
    return GRAPH_SIZES[place] if place < len(GRAPH_SIZES) else tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How step time and boot time waver; coefficients of variation."""

    boot_cv: float = 0.02
    """Of the step time between boots, lognormal: 2 % with autotune off, 6 % with it on."""
    block_cv: float = 0.002
    """Of the step time between blocks of one boot."""
    node_cv: float = 0.005
    """Of the nodes' fixed offsets."""
    drift: float = 0.003
    """Amplitude of a slow wave of the step time, each node with its own phase."""
    drift_period_s: float = 12 * 3600.0
    kv_cv: float = 0.03
    """Of the KV cache's capacity between boots."""
    boot_time_s: float = 420.0
    boot_time_cv: float = 0.06


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTraits:
    """What is fixed about one node in one study."""

    offset: float
    """Factor on the step time."""
    phase: float
    """Of the drift, in radians."""
    stuck_from_s: float | None = None
    """Virtual time from which its clock is stuck; None: never."""

    def is_stuck(self, at_s: float) -> bool:
        """Whether the clock is stuck at a moment of virtual time."""
        return self.stuck_from_s is not None and at_s >= self.stuck_from_s

    def factor(self, at_s: float, spread: Spread) -> float:
        """Return the factor on the step time at a moment of virtual time."""
        wave = math.sin(2 * math.pi * at_s / spread.drift_period_s + self.phase)
        slow = STUCK_SLOWDOWN if self.is_stuck(at_s) else 1.0
        return self.offset * (1.0 + spread.drift * wave) * slow


def node_traits(
    node_id: str, *, seed: int, spread: Spread, stuck_from_s: float | None = None
) -> NodeTraits:
    """Return what one study's seed makes of a node."""
    rng = rng_of(seed, "node", node_id)
    return NodeTraits(
        offset=lognormal(rng, spread.node_cv),
        phase=float(rng.uniform(0.0, 2 * math.pi)),
        stuck_from_s=stuck_from_s,
    )


def lognormal(rng: np.random.Generator, cv: float) -> float:
    """Return a factor with median 1 and a coefficient of variation."""
    return math.exp(math.sqrt(math.log1p(cv * cv)) * float(rng.standard_normal()))
