"""The study's configuration as frozen dataclasses; ``config`` composes them from YAML files.

Every check names the dotted key, the value and what to change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from orchestrator.config_engine import EngineConfig
from orchestrator.config_load import CellWeight, LoadConfig
from orchestrator.config_places import (
    NodeConfig,
    PolicyConfig,
    ProductionConfig,
    TrackingConfig,
    require,
    require_count,
)
from orchestrator.config_proof import ProofConfig
from orchestrator.core.distributions import MAX_CONFIDENCE
from orchestrator.core.engine_limits import require_room
from orchestrator.core.types import BoardModel, Cell

MAX_BOOTS, MAX_HOURS = 100_000, 8760
"""Of a study: a year of one board, and more boots than that has time for."""
_ANSWERS = ("max_tokens", "warmup_max_tokens")
"""Of the load: tokens of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A model folder on every node, under the same path."""

    path: str
    """Folder with config.json, weights and, for a target, the tokenizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """A draft model's folder, and what may be known of it without reading it."""

    path: str
    block_size: int | None = None
    """Trained block, one anchor included; read from the folder where it can be read."""
    architecture: str | None = None
    """Name in the draft's ``architectures``; read from the folder where it can be read."""

    def __post_init__(self) -> None:
        """Check the block.

        Raises:
            ConfigError: It has no room for a draft.
        """
        require(
            self.block_size is None or self.block_size >= 2,
            "draft.block_size",
            f"{self.block_size} is below 2, an anchor and one draft",
            "give the trained block, or null for the one in the folder",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig:
    """The space of arms and when the race among them stops."""

    baseline: bool = True
    """Whether an arm without speculation takes part."""
    draft_sample_method: tuple[str, ...] = ("greedy", "probabilistic")
    rejection_sample_method: tuple[str, ...] = ("standard", "block")
    num_speculative_tokens: tuple[int, ...] = ()
    max_boots: int = 40
    """Boots of the race, failed ones included; it stops there at the latest. Proof boots come on
    top."""
    max_hours: float | None = None
    """Hours from the first boot to the end of the race's last; proof boots come on top. None: no
    limit."""
    tolerance: float = 0.01
    """Relative difference of two arms that does not matter, above 0 and below 1."""
    error: float = 0.05
    """Chance that the race calls an arm beaten that is the best by more than ``tolerance``."""

    def __post_init__(self) -> None:
        """Check that the space is not empty and the counts make sense.

        Raises:
            ConfigError: The space is empty or a count is out of range.
        """
        require(
            self.baseline or bool(self.num_speculative_tokens),
            "search",
            "the space is empty",
            "give num_speculative_tokens at least one depth or set baseline=true",
        )
        for name in ("draft_sample_method", "rejection_sample_method"):
            require(
                bool(getattr(self, name)) or not self.num_speculative_tokens,
                f"search.{name}",
                "is empty",
                "name at least one rule",
            )
        self._check_race()

    def _check_race(self) -> None:
        boots, hours = self.max_boots, self.max_hours
        require_count("search.max_boots", boots, MAX_BOOTS)
        require(
            hours is None or 0 < hours <= MAX_HOURS,
            "search.max_hours",
            f"{hours} is not above 0 to {MAX_HOURS}",
            "give the hours that the study may take, or null for no limit",
        )
        for name, usual in (("tolerance", 0.01), ("error", 0.05)):
            value = getattr(self, name)
            require(0 < value < 1, f"search.{name}", f"{value} is not in (0, 1)", f"use {usual}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveConfig:
    """What the study minimises: the traffic's mean seconds per output token of one stream."""

    step_time: Literal["measured", "modelled"] = "measured"
    """``modelled`` takes step times from ``node.board_model``: acceptance alone is measured."""
    weights: list[CellWeight] = field(default_factory=list)
    """Traffic profile; empty weighs all cells alike."""
    confidence: float = 0.95
    """Coverage of the intervals, 0 to 1."""

    def __post_init__(self) -> None:
        """Check ranges.

        Raises:
            ConfigError: A weight is negative or infinite, all are zero, a cell has two, or the
                confidence is out of range.
        """
        require(
            0.5 < self.confidence <= MAX_CONFIDENCE,
            "objective.confidence",
            f"{self.confidence} is not above 0.5 to {MAX_CONFIDENCE}",
            "use 0.95",
        )
        for item in self.weights:
            require(
                0 <= item.weight < math.inf,
                "objective.weights",
                f"{item.weight} is no share of the traffic",
                "give finite weights from 0",
            )
            require(
                sum(item.place == other.place for other in self.weights) == 1,
                "objective.weights",
                f"{item.in_words} has a weight twice",
                "name each cell once",
            )
        require(
            not self.weights or 0 < sum(w.weight for w in self.weights) < math.inf,
            "objective.weights",
            "the weights add up to 0 or to no number",
            "give at least one cell a weight above 0, as in 0.5",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyConfig:
    """One tuning question under one set of premises."""

    name: str
    target: ModelConfig
    draft: DraftConfig | None
    engine: EngineConfig
    search: SearchConfig = field(default_factory=SearchConfig)
    load: LoadConfig
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    node: NodeConfig
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    proof: ProofConfig = field(default_factory=ProofConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    production: ProductionConfig = field(default_factory=ProductionConfig)
    seed: int = 1

    def __post_init__(self) -> None:
        """Check what one part demands of another.

        Raises:
            ConfigError: Two settings contradict each other.
        """
        require(
            self.objective.step_time == "measured" or self.node.board_model is not None,
            "objective.step_time",
            "'modelled' needs a board model",
            "include a node file that has node.board_model or set objective.step_time=measured",
        )
        require(
            self.objective.step_time == "measured"
            or self.engine.platform != "cuda"
            or self.policy.promote == "never",
            "objective.step_time",
            "'modelled' must not decide what a real board serves",
            "set objective.step_time=measured or policy.promote=never",
        )
        require(
            not self.search.num_speculative_tokens or self.draft is not None,
            "draft",
            "is missing although the space speculates",
            "give draft.path or empty the space",
        )
        require(
            self.objective.step_time == "measured" or not self.load.request_rates,
            "load.request_rates",
            "a board model knows streams and no arrivals",
            "set objective.step_time=measured or empty load.request_rates",
        )
        required = [
            name for name in ("lossless", "canaries") if getattr(self.proof, name) == "required"
        ]
        require(
            self.search.baseline or not required,
            "search.baseline",
            f"false leaves no control to show proof.{'/'.join(required)} by",
            "set search.baseline=true, or these to reported or skipped",
        )
        require_count("seed", self.seed, 2**63 - 1, least=-(2**63))
        answers = {f"load.{name}": getattr(self.load, name) for name in _ANSWERS}
        if self.proof.lossless != "skipped":
            answers["proof.answer_tokens"] = self.proof.answer_tokens
        require_room(self.engine.args, streams=self.load.streams, answers=answers)
        if self.load.sampling == "explicit":
            self._check_weights()

    def _check_weights(self) -> None:
        cells = {_place(cell) for cell in self.cells()}
        for item in self.objective.weights:
            require(
                item.place in cells,
                "objective.weights",
                f"{item.in_words} is no cell of the load",
                "add it to load.streams (or request_rates) and load.temperatures, or drop it",
            )

    def cells(self) -> tuple[Cell, ...]:
        """Return the load conditions, streams outermost, then the arrival rates."""
        load, workload = self.load, Path(self.load.workload).stem
        closed = [(streams, 0.0) for streams in load.streams]
        opened = [(load.max_in_flight, rate) for rate in load.request_rates]
        return tuple(
            Cell(streams=streams, temperature=temperature, workload=workload, request_rate=rate)
            for streams, rate in (*closed, *opened)
            for temperature in load.temperatures
        )

    def weights(self) -> dict[Cell, float]:
        """Return the traffic's share by cell; the shares sum to 1."""
        cells = self.cells()
        given = {item.place: item.weight for item in self.objective.weights}
        raw = {cell: given.get(_place(cell), 0.0) if given else 1.0 for cell in cells}
        total = sum(raw.values())
        return {cell: weight / total for cell, weight in raw.items()}

    def board(self) -> BoardModel | None:
        """Return the board model that step times come from, or None when they are measured."""
        return self.node.board_model if self.objective.step_time == "modelled" else None


def _place(cell: Cell) -> tuple[int | None, float, float]:
    """Return what names a cell in the configuration."""
    streams = None if cell.is_open_loop else cell.streams
    return (streams, cell.request_rate, cell.temperature)
