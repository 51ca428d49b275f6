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
from orchestrator.fakes.world import FakeNode
from orchestrator.ports import Finding
from orchestrator.race_searcher import StudyPlan
from orchestrator.trial import Trial, TrialPorts, TrialSpec
from orchestrator.trial_log import TrialLog

Report = Callable[[dict[str, Any]], None]

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

    def boot(
        self, trial_id: str, config: Mapping[str, Any], report: Report = lambda _result: None
    ) -> dict[str, Any]:
        """Run one trial and return what Tune hands to the searcher last.

        Args:
            trial_id: Of the trial.
            config: What the searcher asked for.
            report: Given the result of each block; what it raises ends the trial there.
        """
        log = TrialLog()
        spec = TrialSpec(
            trial_id=trial_id,
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
            log=log,
            node=FakeNode(),
            clock=self.board.clock,
            prover=FakeProver(self.findings.get(spec.arm, {})),
        )
        trial = Trial(spec, ports, lambda _text: None)
        trial.setup()
        while not trial.ended:
            trial.step()
            if not trial.ended:
                report({"text": "", "told": told_of(log)})
        boot = trial.finish()
        trial.cleanup()
        return result_of(boot) | {"told": told_of(log)}


def told_of(log: TrialLog) -> str:
    """Return what a trial has told since the last time, as it travels with its results."""
    return json.dumps([to_plain(entry) for entry in log.take()])


def result_of(boot: Boot) -> dict[str, Any]:
    """Return a trial's last result, as ``SpecTrial.step`` reports it."""
    return {"text": "", "boot": json.dumps(to_plain(boot)), "done": True}
