"""A study in memory: its plan, and one board that runs its boots in virtual time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core_samples import BASELINE, make_arm

from orchestrator.core.codec import from_plain, to_plain
from orchestrator.core.race_state import RaceQuestion, RaceSettings
from orchestrator.core.types import Arm, Boot, Cell, ProofPart
from orchestrator.fakes.board import FakeBoard, Faults
from orchestrator.fakes.engine import FakeEngine
from orchestrator.fakes.load import FakeLoad
from orchestrator.fakes.prover import FakeProver
from orchestrator.fakes.tracker import FakeTracker
from orchestrator.fakes.world import FakeNode
from orchestrator.ports import Finding
from orchestrator.race_searcher import StudyPlan
from orchestrator.trial import Trial, TrialPorts, TrialSpec

ARMS = (
    BASELINE,
    *(
        make_arm(7, draft, rule)
        for draft in ("greedy", "probabilistic")
        for rule in ("standard", "block")
    ),
)
WEIGHTS = {Cell(streams=1, temperature=0.7): 0.5, Cell(streams=2, temperature=1.0): 0.5}
RACE = RaceSettings(max_boots=40, seed=1)


def make_plan(
    arms: Sequence[Arm] = ARMS, *, incumbent: Arm | None = None, race: RaceSettings = RACE
) -> StudyPlan:
    return StudyPlan(
        study_id="study",
        question=RaceQuestion(arms=tuple(arms), incumbent=incumbent, weights=WEIGHTS, board=None),
        race=race,
        expected_boot_s=60.0,
        slot_token="trial_slot",
        num_nodes=1,
        storage_path=Path("unused"),
    )


@dataclass
class Cluster:
    """What runs the searcher's boots: one board, in virtual time."""

    faults: Mapping[Arm, Faults]
    findings: Mapping[Arm, Mapping[ProofPart, Finding]] = field(default_factory=dict)
    """Of proof boots; those of an arm that is not here find nothing."""

    def __post_init__(self) -> None:
        self.board = FakeBoard(faults=self.faults)
        self.tracker = FakeTracker()
        self.run_id = self.tracker.open_study("study", "study", {})

    def boot(
        self, trial_id: str, config: Mapping[str, Any], tick: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
        """Run one trial and return what Tune hands to the searcher.

        Args:
            trial_id: Of the trial.
            config: What the searcher asked for.
            tick: Called between its steps; what it raises ends the trial there.
        """
        spec = TrialSpec(
            trial_id=trial_id,
            study_run_id=self.run_id,
            arm=from_plain(Arm, config["arm"]),
            replicate=config["replicate"],
            cells=tuple(WEIGHTS),
            blocks_per_cell=1,
            model="specpilot",
            seed=1,
            proof=tuple(ProofPart) if config["is_proof"] else (),
        )
        ports = TrialPorts(
            engine=FakeEngine(self.board),
            load=FakeLoad(self.board, block_s=8.0, max_tokens=64),
            tracker=self.tracker,
            node=FakeNode(),
            clock=self.board.clock,
            prover=FakeProver(self.findings.get(spec.arm, {})),
        )
        trial = Trial(spec, ports, lambda _text: None)
        trial.setup()
        while not trial.ended:
            tick()
            trial.step()
        tick()
        boot = trial.finish()
        tick()
        trial.cleanup()
        return result_of(boot)


def result_of(boot: Boot) -> dict[str, Any]:
    """Return a trial's last result, as ``SpecTrial.step`` reports it."""
    return {"text": "", "boot": json.dumps(to_plain(boot)), "done": True}
