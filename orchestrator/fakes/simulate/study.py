"""A whole study in virtual time: nodes, the race's own decisions, and the verdict. No Ray."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace

from orchestrator.core.estimate import boot_objective
from orchestrator.core.promotion import GateSettings
from orchestrator.core.race import RaceDecision, RaceSettings, RaceState, next_boot
from orchestrator.core.types import Arm, Boot, BootStatus
from orchestrator.core.verdict import Verdict, decide
from orchestrator.fakes.simulate.world import TimedBoot, World

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySettings:
    """How a study is run and read."""

    race: RaceSettings
    """Its seed is replaced by the study's."""
    gates: GateSettings
    confidence: float = 0.95


DEFAULT_SETTINGS = StudySettings(
    race=RaceSettings(num_finalists=3, boots_per_finalist=3, max_boots=60, seed=0),
    gates=GateSettings(),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedStudy:
    """What a study did and said."""

    timed: tuple[TimedBoot, ...]
    """In order of their end."""
    verdict: Verdict
    stop_reason: str
    num_nodes: int

    @property
    def boots(self) -> tuple[Boot, ...]:
        """All boots, whatever their end, in order of their end."""
        return tuple(item.boot for item in self.timed)

    @property
    def num_boots(self) -> int:
        """Boots started."""
        return len(self.timed)

    @property
    def hours(self) -> float:
        """Virtual hours from the start to the end of the last boot; 0 without any."""
        return max((item.end_s for item in self.timed), default=0.0) / SECONDS_PER_HOUR

    @property
    def winner(self) -> Arm | None:
        """The verdict's winner."""
        return self.verdict.winner


def simulate_study(
    world: World, settings: StudySettings = DEFAULT_SETTINGS, *, nodes: int = 8, seed: int
) -> SimulatedStudy:
    """Run one study: whenever a node is idle the race is asked, as Tune asks its searcher.

    Args:
        world: What the boots are made of.
        settings: The race and how its end is read.
        nodes: Boots that run at a time.
        seed: Of the study: coverage order, prompts, nodes and luck.
    """
    loop = _Loop(world, replace(settings.race, seed=seed), nodes=nodes, seed=seed)
    stop_reason = loop.run()
    verdict = decide(
        world.arms,
        boots=tuple(item.boot for item in loop.ended),
        weights=world.weights,
        board=None,
        incumbent=world.incumbent,
        settings=settings.gates,
        confidence=settings.confidence,
    )
    return SimulatedStudy(
        timed=tuple(loop.ended), verdict=verdict, stop_reason=stop_reason, num_nodes=nodes
    )


class _Loop:
    """Nodes and boots under way; the state of the race is kept up as boots end."""

    def __init__(self, world: World, race: RaceSettings, *, nodes: int, seed: int) -> None:
        self._world = world
        self._race = race
        self._seed = seed
        self._now_s = 0.0
        self._idle = [f"node-{index}" for index in range(nodes)]
        self._running: list[tuple[float, int, TimedBoot]] = []
        self._num_started = 0
        self._scores: dict[Arm, tuple[float, ...]] = dict.fromkeys(world.arms, ())
        self._issued = dict.fromkeys(world.arms, 0)
        self._failed = dict.fromkeys(world.arms, 0)
        self._dead: frozenset[Arm] = frozenset()
        self.ended: list[TimedBoot] = []

    def run(self) -> str:
        """Run to the end of the race, let the boots under way end, and return why it ended."""
        while True:
            decision = self._fill()
            if decision is not None and decision.kind == "finished":
                while self._running:
                    self._finish_next()
                return decision.reason
            # A race that waits while nothing runs would wait for ever.
            assert self._running, "the race waits and no boot is under way"
            self._finish_next()

    def _fill(self) -> RaceDecision | None:
        """Start boots while nodes are idle; return what the race said last, None with no node."""
        decision = None
        while self._idle:
            decision = next_boot(self._state(), self._race)
            if decision.kind != "boot":
                return decision
            assert decision.arm is not None
            assert decision.replicate is not None
            self._start(decision.arm, decision.replicate)
        return None

    def _start(self, arm: Arm, replicate: int) -> None:
        timed = self._world.boot(
            arm,
            replicate=replicate,
            node_id=self._idle.pop(0),
            start_s=self._now_s,
            seed=self._seed,
        )
        self._issued[arm] += 1
        self._num_started += 1
        heapq.heappush(self._running, (timed.end_s, self._num_started, timed))

    def _finish_next(self) -> None:
        self._now_s, _, timed = heapq.heappop(self._running)
        self.ended.append(timed)
        boot = timed.boot
        self._idle.append(boot.node_id)
        score = boot_objective(boot, self._world.weights, None)
        if boot.status in (BootStatus.INFEASIBLE, BootStatus.NOT_IN_FORCE):
            self._dead |= {boot.arm}
        elif score is not None:
            self._scores[boot.arm] += (score,)
        else:
            self._failed[boot.arm] += 1

    def _state(self) -> RaceState:
        world = self._world
        return RaceState(
            arms=world.arms,
            incumbent=world.incumbent,
            scores=self._scores,
            dead=self._dead,
            issued=self._issued,
            failed=self._failed,
        )
