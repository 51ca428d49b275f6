"""What a trial tells, on its way to the driver."""

from __future__ import annotations

import json

from core_samples import make_boot
from trial_stage import ARM, CELLS, Stage

from orchestrator.core.codec import from_plain, to_plain
from orchestrator.core.journal import Entry
from orchestrator.trial_log import TrialLog

PLANTED = "PlantedSecret0123456789"


def test_trial_tells_its_run_its_blocks_and_its_end_in_this_order() -> None:
    log = TrialLog()
    stage = Stage(log=log)

    boot = stage.run()

    told = log.take()
    assert log.take() == []
    assert {entry.trial_id for entry in told} == {boot.trial_id}
    assert told[0].params is not None
    assert (told[0].params["arm"], told[0].params["node"]) == (ARM.label, "node-3")
    blocks = [entry.block for entry in told if entry.block is not None]
    assert [block.block_id for block in blocks] == [block.block_id for block in boot.blocks]
    assert len(told) == len(CELLS) + 2
    assert told[-1].boot is not None
    assert told[-1].boot.run_id is None, "the driver knows it"
    assert "node.json" in told[-1].artifacts
    plain = json.loads(json.dumps([to_plain(entry) for entry in told]))
    assert [from_plain(Entry, entry) for entry in plain] == told


def test_no_secret_of_an_artifact_leaves_the_trial() -> None:
    log = TrialLog()

    said = {"engine_log_tail.txt": f"--api-key {PLANTED}\nup"}
    log.tell(Entry(trial_id="t", boot=make_boot(ARM, []), artifacts=said))

    (entry,) = log.take()
    assert PLANTED not in entry.artifacts["engine_log_tail.txt"]
    assert entry.artifacts["engine_log_tail.txt"].endswith("\nup")
