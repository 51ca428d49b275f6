"""A whole study in virtual time: nodes, the race's own decisions, and the verdict. No Ray."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import Literal

from orchestrator.core.freed_nodes import FreedNodes
from orchestrator.core.promotion import GateSettings
from orchestrator.core.race import RaceDecision, next_boot
from orchestrator.core.race_state import (
    SECONDS_PER_HOUR,
    Choice,
    Outcome,
    RaceQuestion,
    RaceSettings,
    RaceState,
    elapsed,
    outcome,
    race_state,
)
from orchestrator.core.types import Arm, BoardModel, Boot
from orchestrator.core.verdict import Verdict, decide
from orchestrator.fakes.simulate.world import TimedBoot, World

TellsNode = Literal["never", "confirmation", "always"]
"""When a race knows the node of its next boot, where only one is free: from its choice on
(``confirmation``), also before (``always``), or not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySettings:
    """How a study is run and read."""

    race: RaceSettings
    """Its seed is replaced by the study's."""
    gates: GateSettings
    confidence: float = 0.95


DEFAULT_SETTINGS = StudySettings(
    race=RaceSettings(max_boots=40, seed=0),
    gates=GateSettings(),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRace:
    """What a race did."""

    timed: tuple[TimedBoot, ...]
    """In order of their end."""
    choice: Choice | None
    """None when no arm could be chosen."""
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
    def chosen(self) -> Arm | None:
        """The arm that the race chose."""
        return None if self.choice is None else self.choice.arm


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedStudy:
    """What a study did and said."""

    race: SimulatedRace
    verdict: Verdict

    @property
    def winner(self) -> Arm | None:
        """The verdict's winner."""
        return self.verdict.winner


def simulate_race(
    world: World,
    race: RaceSettings,
    *,
    nodes: int = 8,
    seed: int,
    board: BoardModel | None = None,
    tells_node: TellsNode = "always",
) -> SimulatedRace:
    """Run one race: whenever a node is idle it is asked, as Tune asks its searcher.

    Args:
        world: What the boots are made of.
        race: The race's settings; their seed is replaced by ``seed``.
        nodes: Boots that run at a time.
        seed: Of the study: coverage order, prompts, nodes and luck.
        board: Source of modelled step times; None to measure them.
        tells_node: When the race knows the node of the next boot, where a real one would.
    """
    loop = _Loop(
        world,
        replace(race, seed=seed),
        nodes=nodes,
        seed=seed,
        board=board,
        tells_node=tells_node,
    )
    stop_reason = loop.run()
    return SimulatedRace(
        timed=tuple(loop.ended), choice=loop.choice, stop_reason=stop_reason, num_nodes=nodes
    )


def simulate_study(
    world: World, settings: StudySettings = DEFAULT_SETTINGS, *, nodes: int = 8, seed: int
) -> SimulatedStudy:
    """Run one study: the race and its verdict.

    Args:
        world: What the boots are made of.
        settings: The race and how its end is read.
        nodes: Boots that run at a time.
        seed: Of the study: coverage order, prompts, nodes and luck.
    """
    race = simulate_race(world, settings.race, nodes=nodes, seed=seed)
    verdict = decide(
        world.arms,
        boots=race.boots,
        weights=world.weights,
        board=None,
        incumbent=world.incumbent,
        settings=settings.gates,
        confidence=settings.confidence,
        chosen=None if race.choice is None else race.choice.arm,
        chosen_by=None if race.choice is None else race.choice.chosen_by,
    )
    return SimulatedStudy(race=race, verdict=verdict)


class _Loop:
    """Nodes and boots under way."""

    def __init__(
        self,
        world: World,
        race: RaceSettings,
        *,
        nodes: int,
        seed: int,
        board: BoardModel | None,
        tells_node: TellsNode,
    ) -> None:
        self._world = world
        self._race = race
        self._seed = seed
        self._question = RaceQuestion(
            arms=world.arms, incumbent=world.incumbent, weights=world.weights, board=board
        )
        self._num_nodes = nodes
        self._now_s = 0.0
        self._idle = [f"node-{index}" for index in range(nodes)]
        self._running: list[tuple[float, int, TimedBoot]] = []
        self._freed = FreedNodes()
        self._tells_node = tells_node
        self._num_started = 0
        self._outcomes: list[Outcome] = []
        self.ended: list[TimedBoot] = []
        self.choice: Choice | None = None

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
        while self._idle:
            decision = next_boot(self._state(), self._race)
            self.choice = decision.choice or self.choice
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
        self._num_started += 1
        self._freed.take()
        heapq.heappush(self._running, (timed.end_s, self._num_started, timed))

    def _finish_next(self) -> None:
        self._now_s, _, timed = heapq.heappop(self._running)
        self.ended.append(timed)
        self._outcomes.append(outcome(timed.boot, self._question))
        self._idle.append(timed.boot.node_id)
        self._freed.free(timed.boot.node_id)

    def _next_node(self) -> str | None:
        told = self._tells_node == "always" or (
            self._tells_node == "confirmation" and self.choice is not None
        )
        return self._freed.next if told else None

    def _state(self) -> RaceState:
        spent_s = [item.end_s - item.start_s for item in self.ended]
        spent = elapsed(self._now_s, spent_s, num_nodes=self._num_nodes)
        return race_state(
            self._question,
            ended=self._outcomes,
            running=[timed.boot.arm for _, _, timed in self._running],
            choice=self.choice,
            elapsed=spent,
            node_id=self._next_node(),
        )
