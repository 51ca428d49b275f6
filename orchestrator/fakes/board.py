"""One board in memory: its clock, its speed, and the engine that runs on it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from orchestrator.core.failures import Failure
from orchestrator.core.types import Arm, BoardModel
from orchestrator.errors import TransientError
from orchestrator.fakes.acceptance import AcceptanceModel
from orchestrator.fakes.world import FakeClock

DEFAULT_BOARD = BoardModel(
    name="fake",
    source="made up for tests; no board is like this",
    base_s=0.040,
    verify_s_per_token=0.0004,
    draft_s=0.006,
    streams=(1, 64),
    depths=(0, 16),
)


class BootFault(StrEnum):
    """How a boot fails."""

    INFEASIBLE = "infeasible"
    """The engine refuses the arm or runs out of memory."""
    TRANSIENT = "transient"
    """The boot dies for a reason outside the arm."""
    REFUSED = "refused"
    """The engine refuses its arguments, in the same words whatever the arm."""
    STARTUP_CHECK = "startup_check"
    """Its own check at the start finds too little memory free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What goes wrong with one arm on this board; the default is nothing."""

    boot: BootFault | None = None
    failing_boots: int | None = None
    """Boots that fail before one works; None means all."""
    ignored_keys: tuple[str, ...] = ()
    """Fields of ``Arm`` that the engine takes and ignores: it uses greedy and standard."""
    restart_in_block: int | None = None
    """Block, from 0 in each boot, in which the engine restarts."""
    death_in_block: int | None = None
    """Block, from 0 in each boot, in which the engine dies."""
    death: Failure | None = None
    """What the evidence of that says; None where there is none."""
    hang_in_block: int | None = None
    """Block, from 0 in each boot, from which on no completion gets a token; health is as before."""
    reset_every: int | None = None
    """Every n-th request ends in a connection reset."""
    foreign_tokens: int = 0
    """Tokens that somebody else's traffic generates in every block."""
    is_garbage: bool = False
    """The engine emits one token for ever and accepts no draft."""


@dataclass(slots=True, kw_only=True)
class Counters:
    """The engine's counters since its start."""

    generation_tokens: int = 0
    prompt_tokens: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_pos: list[int] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class RunningEngine:
    """One engine process on the board."""

    arm: Arm
    """What is in force, which may differ from what was asked."""
    faults: Faults
    boot_id: str
    pid: int
    speed: float
    """Factor on the step time, drawn once a boot."""
    counters: Counters
    num_blocks: int = 0
    num_requests: int = 0
    num_running: int = 0
    is_alive: bool = True
    hangs: bool = False


class FakeBoard:
    """What a fake engine and a fake load share: one node's engine, its speed and its faults.

    Deterministic in the seed, the node, the arm and the number of the arm's boot, whatever the
    order in which arms are booted.

    Args:
        node_id: Name of the node that the board is in.
        clock: Virtual time; boots and blocks move it.
        model: Step time by depth and streams.
        acceptance: Acceptance by rule, depth and temperature.
        faults: What goes wrong, by arm.
        seed: Seed of all noise.
        boot_cv: Coefficient of variation of the step time between boots.
        block_cv: Coefficient of variation of the step time between blocks of one boot.
        boot_time_s: Seconds from start to the first completion.
        kv_cache_tokens: Tokens that the KV cache holds without speculation.
    """

    def __init__(
        self,
        node_id: str = "node-0",
        *,
        clock: FakeClock | None = None,
        model: BoardModel = DEFAULT_BOARD,
        acceptance: AcceptanceModel | None = None,
        faults: Mapping[Arm, Faults] | None = None,
        seed: int = 1,
        boot_cv: float = 0.02,
        block_cv: float = 0.002,
        boot_time_s: float = 420.0,
        kv_cache_tokens: int = 300_000,
    ) -> None:
        self.node_id = node_id
        self.clock = clock or FakeClock()
        self.model = model
        self.acceptance = acceptance or AcceptanceModel()
        self.boot_time_s = boot_time_s
        self.kv_cache_tokens = kv_cache_tokens
        self._faults = dict(faults or {})
        self._seed = seed
        self._boot_cv = boot_cv
        self._block_cv = block_cv
        self._boots: Counter[Arm] = Counter()
        self._num_starts = 0
        self._engine: RunningEngine | None = None

    @property
    def base_url(self) -> str:
        """Address of the board's engine; nothing listens there."""
        return f"http://{self.node_id}.invalid:8000"

    def faults_of(self, arm: Arm) -> Faults:
        """Return what goes wrong with an arm."""
        return self._faults.get(arm, Faults())

    def count_boot(self, arm: Arm) -> int:
        """Count one more boot of the arm and return its number, from 0."""
        self._boots[arm] += 1
        return self._boots[arm] - 1

    def power_on(self, arm: Arm, number: int) -> RunningEngine:
        """Let an engine run on the board."""
        faults = self.faults_of(arm)
        rng = random.Random(f"{self._seed}/{self.node_id}/{arm.key}/{number}")
        self._num_starts += 1
        self._engine = RunningEngine(
            arm=_in_force(arm, faults),
            faults=faults,
            boot_id=f"{self.node_id}-{arm.key}-{number}",
            pid=1000 + self._num_starts,
            speed=max(0.1, rng.gauss(1.0, self._boot_cv)),
            counters=_zero(arm),
        )
        return self._engine

    def kill(self) -> None:
        """End the process of the engine that runs, if one does; who boots it may wait for that."""
        if self._engine is not None:
            self._engine.is_alive = False

    def power_off(self) -> None:
        """End the engine; no error when there is none."""
        self._engine = None

    def engine(self) -> RunningEngine:
        """Return the engine that runs.

        Raises:
            TransientError: None runs, or it died.
        """
        if self._engine is None or not self._engine.is_alive:
            raise TransientError(f"no engine answers at {self.base_url}")
        return self._engine

    def restart(self) -> None:
        """Replace the engine by a fresh process of the same arm, with counters from 0."""
        engine = self.engine()
        self._num_starts += 1
        self._engine = replace(
            engine,
            boot_id=f"{engine.boot_id}-restarted",
            pid=1000 + self._num_starts,
            counters=_zero(engine.arm),
        )

    def block_step_time_s(self, streams: int, *, seed: int) -> float:
        """Return the seconds of one engine step in one block."""
        engine = self.engine()
        rng = random.Random(f"{self._seed}/{engine.boot_id}/{seed}/{streams}")
        noise = max(0.1, rng.gauss(1.0, self._block_cv))
        step_s = self.model.step_time_s(engine.arm.num_speculative_tokens, streams)
        return step_s * engine.speed * noise


def _in_force(arm: Arm, faults: Faults) -> Arm:
    if arm.is_baseline:
        return arm
    fallback = {"draft_sample_method": "greedy", "rejection_sample_method": "standard"}
    return replace(arm, **{key: fallback[key] for key in faults.ignored_keys})  # type: ignore[arg-type]  # texts


def _zero(arm: Arm) -> Counters:
    return Counters(accepted_per_pos=[0] * arm.num_speculative_tokens)
