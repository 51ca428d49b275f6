"""A world: arms, what is true of them, and boots of them in virtual time."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from orchestrator.core.estimate import boot_objective, geometric_mean
from orchestrator.core.failures import FailureKind
from orchestrator.core.types import Arm, Block, Boot, BootStatus, Cell, EngineFacts
from orchestrator.fakes.simulate.board import (
    BoardPhysics,
    NodeTraits,
    Spread,
    lognormal,
    node_traits,
    rng_of,
)
from orchestrator.fakes.simulate.drafting import AcceptanceTable, DraftQuality, acceptance_table
from orchestrator.fakes.simulate.records import (
    Place,
    block_record,
    facts_record,
    on_stuck_node,
)
from orchestrator.fakes.simulate.window import (
    Happened,
    LoadShape,
    Pace,
    difficulties,
    mean_steps_per_token,
    run_window,
    turns_needed,
)

WARMUP_STEPS_PER_TOKEN = 0.5
"""Steps of the warm-up by its tokens: it decodes about two tokens a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """What goes wrong with boots; the default is nothing."""

    transient: float = 0.0
    """Chance that a boot dies before its engine answers, 0 to 1."""
    death_by_block: float = 0.0
    """Chance that the engine dies in a block, 0 to 1."""
    infeasible: frozenset[Arm] = frozenset()
    """Arms that the engine refuses or has no memory for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BootOrder:
    """Which boot to make."""

    arm: Arm
    replicate: int
    node_id: str
    start_s: float
    seed: int

    @property
    def boot_id(self) -> str:
        """Unique within a study."""
        return f"{self.arm.key}-{self.replicate}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedBoot:
    """A boot with its place in virtual time."""

    boot: Boot
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What a study is simulated in.

    Prompts and their difficulty follow from (seed, replicate, cell, repeat) and are the same for
    all arms; the luck of a boot follows from (seed, arm, replicate), on whatever node and whenever
    it runs.
    """

    name: str
    arms: tuple[Arm, ...]
    incumbent: Arm | None
    weights: Mapping[Cell, float]
    """The traffic's share by cell; every cell is measured."""
    physics: BoardPhysics = field(default_factory=BoardPhysics)
    quality: DraftQuality = field(default_factory=DraftQuality)
    spread: Spread = field(default_factory=Spread)
    load: LoadShape = field(default_factory=LoadShape)
    failures: Failures = field(default_factory=Failures)
    step_factors: Mapping[Arm, float] = field(default_factory=dict)
    """Factors on the step time by arm, to give a world the truth that it is to have."""
    drafts_like: Mapping[Arm, Arm] = field(default_factory=dict)
    """Arms that accept like another one, of at most their own depth."""
    stuck_from_s: Mapping[str, float] = field(default_factory=dict)
    """Virtual time from which a node's clock is stuck, by node."""

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells of every boot."""
        return tuple(self.weights)

    def table(self, arm: Arm, temperature: float) -> AcceptanceTable | None:
        """Return the laws of an arm's accepted length; None without speculation."""
        if arm.is_baseline:
            return None
        return acceptance_table(self.quality, self.drafts_like.get(arm, arm), temperature)

    def step_time_s(self, arm: Arm, streams: int) -> float:
        """Return the true step time, of the median boot on the median node."""
        return self.physics.step_time_s(arm, streams) * self.step_factors.get(arm, 1.0)

    def true_length(self, arm: Arm, temperature: float) -> float:
        """Return the tokens a step that an endless block would show; 1 without speculation."""
        table = self.table(arm, temperature)
        return 1.0 / mean_steps_per_token(table, self.load)

    def true_seconds(self, arm: Arm, cell: Cell) -> float:
        """Return the seconds per output token of one stream that an endless block would show.

        Exact: (prefill + (tokens - 1) * E[steps a token] * step time) / tokens, where ``tokens``
        are those of an answer that the estimate counts: without the prefill's if the arm
        speculates, since no draft belongs to that.
        """
        tokens = self.load.max_tokens
        steps = (tokens - 1) / self.true_length(arm, cell.temperature)
        busy_s = self.physics.prefill_s + steps * self.step_time_s(arm, cell.streams)
        return busy_s / (tokens if arm.is_baseline else tokens - 1)

    def true_objective(self, arm: Arm, weights: Mapping[Cell, float] | None = None) -> float:
        """Return what ``boot_objective`` would show of an endless boot on an undisturbed node.

        Args:
            arm: The arm.
            weights: The traffic's share by cell; None for the world's own.
        """
        shares = self.weights if weights is None else weights
        return sum(share * self.true_seconds(arm, cell) for cell, share in shares.items())

    def best_arm(self, weights: Mapping[Cell, float] | None = None) -> Arm:
        """Return the arm with the smallest true objective."""
        return min(self.arms, key=lambda arm: self.true_objective(arm, weights))

    def regret(self, arm: Arm, weights: Mapping[Cell, float] | None = None) -> float:
        """Return by how much an arm's true objective is above the best's, as a share of it."""
        best = self.true_objective(self.best_arm(weights), weights)
        return self.true_objective(arm, weights) / best - 1.0

    def boot(
        self, arm: Arm, *, replicate: int, node_id: str, start_s: float, seed: int
    ) -> TimedBoot:
        """Boot an arm and measure every cell, as a trial does.

        Args:
            arm: The arm.
            replicate: Number of the boot among its arm's.
            node_id: Where; names the node's own offset and drift.
            start_s: Virtual time of the start.
            seed: The study's.
        """
        order = BootOrder(arm=arm, replicate=replicate, node_id=node_id, start_s=start_s, seed=seed)
        return _boot(self, order)

    def traits(self, node_id: str, seed: int) -> NodeTraits:
        """Return what a study's seed makes of a node."""
        return node_traits(
            node_id,
            seed=seed,
            spread=self.spread,
            stuck_from_s=self.stuck_from_s.get(node_id),
        )


def happen(
    world: World,
    arm: Arm,
    cell: Cell,
    *,
    step_s: float,
    prompts: tuple[object, ...],
    rng: np.random.Generator,
) -> Happened:
    """Run the streams of one block.

    Args:
        world: The world.
        arm: The arm.
        cell: The cell.
        step_s: Step time of this block.
        prompts: What the order of the prompts follows from.
        rng: Luck of the boot.
    """
    table = world.table(arm, cell.temperature)
    pace = Pace(step_s=step_s, prefill_s=world.physics.prefill_s)
    turns = turns_needed(table, pace, world.load)
    hard = difficulties(
        cell, prompts=(*prompts, cell.key), num_turns=turns, shape=world.load, rng=rng
    )
    return run_window(cell, table=table, pace=pace, difficulty=hard, shape=world.load, rng=rng)


def shown_objective(world: World, arm: Arm, *, num_boots: int = 400) -> float | None:
    """Return what boots of the world show on average, without any spread between boots.

    What a window of finite length makes of ``true_objective``; 0.3 % apart at most in the article's
    world. Coverage of intervals may be judged against this, choices against the truth.

    Args:
        world: The world; spread, failures and stuck nodes are taken out of it.
        arm: The arm.
        num_boots: Boots, of fixed seeds; each takes about 2 ms.

    Returns:
        Geometric mean of the boots' objectives in seconds; None where an arm cannot be measured.
    """
    calm = replace(
        world,
        spread=replace(world.spread, boot_cv=0.0, node_cv=0.0, drift=0.0),
        failures=Failures(),
        stuck_from_s={},
    )
    boots = [
        calm.boot(arm, replicate=number, node_id="calm", start_s=0.0, seed=0).boot
        for number in range(num_boots)
    ]
    return geometric_mean(boot_objective(boot, world.weights, None) for boot in boots)


@lru_cache(maxsize=1024)
def block_order(
    cells: tuple[Cell, ...], *, seed: int, replicate: int, blocks_per_cell: int
) -> tuple[Cell, ...]:
    """Return the cells of a boot's blocks: shuffled by replicate, the same for all arms."""
    rng = random.Random(f"{seed}/order/{replicate}")
    order: list[Cell] = []
    for _ in range(blocks_per_cell):
        lap = list(cells)
        rng.shuffle(lap)
        order += lap
    return tuple(order)


def _boot(world: World, order: BootOrder) -> TimedBoot:
    rng = rng_of(order.seed, "boot", order.arm.key, order.replicate)
    # All luck of the boot itself is drawn whatever becomes of it, so that a world with failures
    # differs from the same one without by the failures only.
    boot_s = world.spread.boot_time_s * lognormal(rng, world.spread.boot_time_cv)
    factor = lognormal(rng, world.spread.boot_cv)
    lost_s = boot_s * float(rng.uniform(0.1, 1.0))
    dies = bool(rng.random() < world.failures.transient)
    facts = facts_record(order.arm, order.boot_id, boot_time_s=boot_s, spread=world.spread, rng=rng)
    if order.arm in world.failures.infeasible:
        reason = f"{order.arm.label}: CUDA out of memory at boot"
        kind, end_s = FailureKind.OUT_OF_MEMORY, order.start_s + lost_s
        return _ended(order, BootStatus.INFEASIBLE, reason, end_s=end_s, failure=kind)
    if dies:
        reason = "the engine process ended with status 1"
        kind, end_s = FailureKind.EXITED, order.start_s + lost_s
        return _ended(order, BootStatus.FAILED, reason, end_s=end_s, failure=kind)
    blocks, end_s, loss = _measure(
        world, order, factor=factor, up_s=order.start_s + boot_s, rng=rng
    )
    failure, reason = _judged(blocks, loss)
    return _ended(
        order,
        BootStatus.OK if failure is None else BootStatus.FAILED,
        reason,
        end_s=end_s,
        failure=failure,
        facts=facts,
        blocks=tuple(blocks),
    )


def _measure(
    world: World, order: BootOrder, *, factor: float, up_s: float, rng: np.random.Generator
) -> tuple[list[Block], float, str]:
    """Return the blocks, when the last ended, and what the engine died of, if it did."""
    traits = world.traits(order.node_id, order.seed)
    cells = block_order(
        world.cells,
        seed=order.seed,
        replicate=order.replicate,
        blocks_per_cell=world.load.blocks_per_cell,
    )
    blocks: list[Block] = []
    now_s = up_s
    for index, cell in enumerate(cells):
        luck = lognormal(rng, world.spread.block_cv)
        step_s = world.step_time_s(order.arm, cell.streams) * factor * luck
        step_s *= traits.factor(now_s, world.spread)
        prompts = (order.seed, order.replicate, cells[:index].count(cell))
        happened = happen(world, order.arm, cell, step_s=step_s, prompts=prompts, rng=rng)
        is_stuck = traits.is_stuck(now_s)
        now_s += _warm_up_s(world, step_s) + happened.ramp_s
        now_s += world.load.window_s + happened.drain_s
        if world.failures.death_by_block and rng.random() < world.failures.death_by_block:
            return blocks, now_s, f"engine lost in cell {cell.key}: no engine answers"
        place = Place(boot_id=order.boot_id, index=index, cell=cell, arm=order.arm)
        block = block_record(place, happened, shape=world.load)
        blocks.append(on_stuck_node(block, order.arm, order.node_id) if is_stuck else block)
    return blocks, now_s, ""


def _warm_up_s(world: World, step_s: float) -> float:
    """Return the time of the warm-up, drained."""
    return world.physics.prefill_s + WARMUP_STEPS_PER_TOKEN * world.load.warmup_tokens * step_s


def _judged(blocks: list[Block], loss: str) -> tuple[FailureKind | None, str]:
    """Return how a boot that came up ended, as a trial judges it."""
    bad = [f"{block.cell.key}: {block.invalid_reason}" for block in blocks if not block.is_valid]
    if loss:
        return FailureKind.ENGINE_LOST, loss
    if len(bad) == len(blocks):
        return FailureKind.NO_VALID_BLOCK, f"no valid block; {bad[0]}"
    return None, "; ".join(bad)


def _ended(
    order: BootOrder,
    status: BootStatus,
    reason: str,
    *,
    end_s: float,
    failure: FailureKind | None = None,
    facts: EngineFacts | None = None,
    blocks: tuple[Block, ...] = (),
) -> TimedBoot:
    boot = Boot(
        trial_id=order.boot_id,
        arm=order.arm,
        replicate=order.replicate,
        node_id=order.node_id,
        status=status,
        reason=reason,
        facts=facts,
        blocks=blocks,
        failure=failure,
    )
    return TimedBoot(boot=boot, start_s=order.start_s, end_s=end_s)
