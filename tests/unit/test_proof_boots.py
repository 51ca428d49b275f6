"""Which proof boot is next, when one was not what was raced."""

from __future__ import annotations

from dataclasses import replace

from core_samples import BASELINE, CELL, make_arm, make_boot

from orchestrator.core.proof_gates import ProofDemands
from orchestrator.core.race_state import Choice, RaceQuestion
from orchestrator.core.types import Arm, Boot, Proof
from orchestrator.proof_boots import ProofBoots

ARM = make_arm(7)
CHOICE = Choice(arm=ARM, stop="winner", reason="", chosen_by=(), fresh_boots=2)
QUESTION = RaceQuestion(arms=(BASELINE, ARM), incumbent=None, weights={CELL: 1.0}, board=None)
RACED = {"engine": "e", "models": "m", "platform": "p"}


def boot(arm: Arm, *, platform: str = "p") -> Boot:
    ended = replace(make_boot(arm, []), sections=RACED | {"platform": platform})
    return replace(ended, proof=Proof(findings={}))


def proof_boots() -> ProofBoots:
    raced = [replace(make_boot(arm, []), sections=RACED) for arm in (BASELINE, ARM)]
    demands = ProofDemands(lossless="required", canaries="required")
    return ProofBoots(QUESTION, demands, lambda: raced)


def test_boot_on_another_platform_is_a_failed_try_and_another_follows() -> None:
    proofs = proof_boots()

    assert proofs.start("a", CHOICE) == (BASELINE, 0)
    proofs.end("a", boot(BASELINE, platform="another driver"))
    assert proofs.start("b", CHOICE) == (BASELINE, 1)
    proofs.end("b", boot(BASELINE))
    assert proofs.start("c", CHOICE) == (ARM, 0)
    proofs.end("c", boot(ARM))
    assert proofs.start("d", CHOICE) is None


def test_two_boots_on_another_platform_are_the_last() -> None:
    proofs = proof_boots()
    for number in range(2):
        assert proofs.start(str(number), CHOICE) == (BASELINE, number)
        proofs.end(str(number), boot(BASELINE, platform="another driver"))

    assert proofs.start("c", CHOICE) is None
