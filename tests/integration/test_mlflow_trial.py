"""Whole trials on a fake board, tracked by a real MLflow store."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from orchestrator.adapters.mlflow_tracker import MlflowTracker
from orchestrator.adapters.study_file import StudyFile
from orchestrator.core.types import Arm, Boot, BootStatus, Cell
from orchestrator.fakes.board import BootFault, FakeBoard, Faults
from orchestrator.fakes.engine import FakeEngine
from orchestrator.fakes.load import FakeLoad
from orchestrator.fakes.world import FakeNode
from orchestrator.journal import Journal, StudyState
from orchestrator.trial import Trial, TrialPorts, TrialSpec
from orchestrator.trial_log import TrialLog

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(180),  # The tables alone take half a minute on two busy cores.
    # MLflow 3.17 on SQLAlchemy 2.1.
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning"),
]
CELLS = tuple(Cell(streams=s, temperature=t) for s in (1, 2, 4) for t in (0.7, 1.0))
GOOD, IGNORED, BIG, DYING, GARBAGE = (
    Arm(
        engine_build="0.32.0",
        num_speculative_tokens=depth,
        draft_sample_method="probabilistic",
        rejection_sample_method="block",
    )
    for depth in (3, 4, 5, 6, 7)
)
FAULTS = {
    IGNORED: Faults(ignored_keys=("draft_sample_method",)),
    BIG: Faults(boot=BootFault.INFEASIBLE),
    DYING: Faults(death_in_block=2),
    GARBAGE: Faults(is_garbage=True),
}


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/ml.db"


@pytest.fixture
def tracker(uri: str) -> MlflowTracker:
    return MlflowTracker(uri, experiment="trials")


def run_trial(tracker: MlflowTracker, study: str, arm: Arm, folder: Path) -> Boot:
    board = FakeBoard(faults=FAULTS)
    spec = TrialSpec(
        trial_id=f"trial-{arm.label}",
        arm=arm,
        replicate=0,
        cells=CELLS,
        blocks_per_cell=1,
        model="m",
        seed=1,
    )
    log = TrialLog()
    ports = TrialPorts(
        engine=FakeEngine(board),
        load=FakeLoad(board, block_s=10.0),
        log=log,
        node=FakeNode(),
        clock=board.clock,
    )
    trial = Trial(spec, ports, lambda _line: None)
    try:
        trial.setup()
        while not trial.ended:
            trial.step()
        boot = trial.finish()
    finally:
        trial.cleanup()
    journal = Journal(
        StudyFile("unused", lambda _text: None, folder=folder),
        StudyState(study_id="unused", run_id=study, asks={}),
        tracker,
    )
    journal.keep(None, log.take())
    assert journal.replay()
    return journal.with_run(boot)


def read(uri: str, boot: Boot) -> Run:
    assert boot.run_id is not None
    return MlflowClient(tracking_uri=uri).get_run(boot.run_id)


def test_good_trial_leaves_all_cells_and_can_be_compared(
    uri: str, tracker: MlflowTracker, tmp_path: Path
) -> None:
    study = tracker.open_study("good", "s", {})
    boot = run_trial(tracker, study, GOOD, tmp_path)

    run = read(uri, boot)
    assert boot.status is BootStatus.OK
    assert run.info.status == "FINISHED"
    for cell in CELLS:
        assert run.data.metrics[f"{cell.key}/output_throughput"] > 0
        assert 1.0 < run.data.metrics[f"{cell.key}/acceptance_length"] < 4.0
    assert run.data.params["num_speculative_tokens"] == "3"
    assert run.data.params["draft_sample_method"] == "probabilistic"
    assert float(run.data.metrics["accept/pos_0"]) > float(run.data.metrics["accept/pos_2"])


@pytest.mark.parametrize(
    ("arm", "status", "num_blocks"),
    [
        (IGNORED, BootStatus.NOT_IN_FORCE, 0),
        (BIG, BootStatus.INFEASIBLE, 0),
        (DYING, BootStatus.FAILED, 3),
        (GARBAGE, BootStatus.FAILED, 6),
    ],
)
def test_bad_trial_is_failed_with_its_reason_and_keeps_its_blocks(
    uri: str,
    tracker: MlflowTracker,
    tmp_path: Path,
    arm: Arm,
    status: BootStatus,
    num_blocks: int,
) -> None:
    study = tracker.open_study("bad", "s", {})
    boot = run_trial(tracker, study, arm, tmp_path)

    run = read(uri, boot)
    blocks = [key for key in run.data.tags if key.startswith("specpilot.block.")]
    assert boot.status is status
    assert run.info.status == "FAILED"
    assert run.data.tags["specpilot.reason"] == boot.reason != ""
    assert len(blocks) == num_blocks


def test_trial_run_is_a_child_of_its_study(
    uri: str, tracker: MlflowTracker, tmp_path: Path
) -> None:
    study = tracker.open_study("nested", "s", {})
    boot = run_trial(tracker, study, GOOD, tmp_path)

    assert read(uri, boot).data.tags["mlflow.parentRunId"] == study
