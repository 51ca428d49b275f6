from __future__ import annotations

import json
from dataclasses import replace

from trial_stage import Stage, make_spec

from orchestrator.core.codec import from_plain, to_plain
from orchestrator.core.types import Boot, BootStatus, Proof, ProofPart
from orchestrator.fakes.prover import FakeProver
from orchestrator.ports import Finding

PARTS = (ProofPart.TEXT, ProofPart.CANARIES)
FOUND = Finding(record={"kind": "passed", "p_value": 0.4}, sentence="passed")


def proof_boot(prover: FakeProver, stage: Stage | None = None) -> tuple[Boot, list[str], Stage]:
    stage = stage or Stage(spec=replace(make_spec(), proof=PARTS))
    trial = stage.trial(prover)
    trial.setup()
    said = []
    while not trial.ended:
        said.append(trial.step())
    boot = trial.finish()
    trial.cleanup()
    return boot, said, stage


def test_proof_boot_looks_at_each_part_in_turn_and_measures_nothing() -> None:
    prover = FakeProver(findings=dict.fromkeys(PARTS, FOUND))

    boot, said, stage = proof_boot(prover)

    assert (boot.status, boot.blocks) == (BootStatus.OK, ())
    assert boot.proof == Proof(findings=dict.fromkeys(PARTS, FOUND.record))
    assert prover.asked == list(PARTS)
    assert said == ["text: passed", "canaries: passed"]
    begun, ended = stage.log.take()
    assert begun.params is not None
    assert begun.params["proof"] == "text canaries"
    assert json.loads(ended.artifacts["proof.json"])["findings"]["text"] == FOUND.record


def test_part_that_cannot_be_looked_at_leaves_a_note_and_the_others_their_turn() -> None:
    boot, said, _ = proof_boot(FakeProver(findings={ProofPart.CANARIES: FOUND}))

    assert boot.status is BootStatus.OK
    assert boot.proof is not None
    assert set(boot.proof.findings) == {ProofPart.CANARIES}
    assert boot.proof.notes == (said[0],)
    assert said[0].startswith("text: ")
    assert "says nothing" in said[0]


def test_engine_that_dies_in_a_proof_fails_the_boot() -> None:
    stage = Stage(spec=replace(make_spec(), proof=PARTS))
    prover = FakeProver(findings=dict.fromkeys(PARTS, FOUND))
    trial = stage.trial(prover)
    trial.setup()
    stage.board.power_off()

    trial.step()

    boot = trial.finish()
    assert trial.ended
    assert boot.status is BootStatus.FAILED
    assert "engine lost while text was looked at" in boot.reason
    assert boot.proof is not None, "it is still no boot that was measured"


def test_proof_of_a_boot_that_never_came_up_is_empty_and_there() -> None:
    stage = Stage(spec=replace(make_spec(), proof=PARTS))
    trial = stage.trial(FakeProver())

    boot = trial.finish()

    assert boot.status is BootStatus.FAILED
    assert boot.proof == Proof(findings={})


def test_proof_survives_the_way_through_tune() -> None:
    boot, _, _ = proof_boot(FakeProver(findings=dict.fromkeys(PARTS, FOUND)))

    assert from_plain(Boot, json.loads(json.dumps(to_plain(boot)))) == boot
