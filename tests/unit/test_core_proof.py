from __future__ import annotations

from dataclasses import replace

import pytest
from core_samples import BASELINE, make_arm, make_boot

from orchestrator.config_proof import ProofConfig
from orchestrator.core.proof import (
    MAX_ATTEMPTS,
    budget_note,
    next_proof,
    proof_arms,
    proof_of,
)
from orchestrator.core.race_state import Choice
from orchestrator.core.types import Arm, Boot, BootStatus, Proof

BEST, OTHER = make_arm(7), make_arm(5)
ARMS = (BASELINE, OTHER, BEST)


def chosen(arm: Arm) -> Choice:
    return Choice(arm=arm, stop="winner", reason="", chosen_by=(), fresh_boots=2)


def proof_boot(arm: Arm, status: BootStatus = BootStatus.OK, number: int = 0) -> Boot:
    boot = make_boot(arm, [], status=status, replicate=number)
    return replace(boot, proof=Proof(findings={}))


def test_choice_and_the_control_of_its_build_are_proved() -> None:
    other_build = replace(BASELINE, engine_build="0.28.0")

    assert proof_arms(chosen(BEST), ARMS, BASELINE) == (BASELINE, BEST)
    assert proof_arms(chosen(BEST), (other_build, *ARMS), OTHER) == (BASELINE, BEST)
    assert proof_arms(chosen(BEST), (OTHER, BEST), OTHER) == (), "there is no control"


def test_nothing_is_proved_where_nothing_would_change() -> None:
    assert proof_arms(None, ARMS, BASELINE) == ()
    assert proof_arms(chosen(BEST), ARMS, BEST) == ()
    assert proof_arms(chosen(BEST), ARMS[1:], None) == ()
    assert proof_arms(chosen(BASELINE), ARMS, OTHER) == (), "it is the control itself"


def test_each_arm_gets_one_proof_boot_and_a_failed_one_a_second() -> None:
    wanted = (BASELINE, BEST)

    assert next_proof(wanted, ended=[], lost=[], running=[]) == BASELINE
    assert next_proof(wanted, ended=[], lost=[], running=[BASELINE]) is None, "its floor is wanted"
    done = [proof_boot(BASELINE), proof_boot(BEST)]
    assert next_proof(wanted, ended=done[:1], lost=[], running=[]) == BEST
    assert next_proof(wanted, ended=done[:1], lost=[], running=[BEST]) is None
    assert next_proof(wanted, ended=done, lost=[], running=[]) is None
    failed = [proof_boot(BASELINE, BootStatus.FAILED), proof_boot(BEST)]
    assert next_proof(wanted, ended=failed, lost=[], running=[]) == BASELINE
    assert next_proof(wanted, ended=done[:1], lost=[BEST], running=[]) == BEST
    assert next_proof(wanted, ended=done[:1], lost=[BEST] * MAX_ATTEMPTS, running=[]) is None
    alone = next_proof(wanted, ended=[], lost=[BASELINE] * MAX_ATTEMPTS, running=[])
    assert alone is None, "without the control nothing can be concluded of the arm"


def test_proof_of_an_arm_is_its_boot_that_ended_well() -> None:
    failed, good = proof_boot(BEST, BootStatus.FAILED), proof_boot(BEST, number=1)

    assert proof_of(BEST, [failed, good]) is good
    assert proof_of(BEST, [good, failed]) is good
    assert proof_of(BEST, [failed]) is failed
    assert proof_of(OTHER, [failed, good]) is None


@pytest.mark.parametrize(
    ("displacement", "max_tokens", "needed"),
    [
        (0.01, 200_000, None),
        (0.01, 32_036, None),
        (0.01, 32_035, "some 32,036 are"),
        (0.05, 8_000, None),
        (0.05, 1_000, "some 1,281 are"),
        (0.001, 200_000, "some 3,203,600 are"),
    ],
)
def test_budget_that_shows_nothing_is_told(
    displacement: float, max_tokens: int, needed: str | None
) -> None:
    note = budget_note(displacement=displacement, max_tokens=max_tokens)

    assert (note is None) == (needed is None)
    assert needed is None or needed in str(note)


def test_defaults_of_the_proof_show_what_they_ask_for() -> None:
    proof = ProofConfig()

    assert budget_note(displacement=proof.displacement, max_tokens=proof.max_tokens) is None
