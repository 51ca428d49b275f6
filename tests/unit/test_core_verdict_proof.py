"""What proofs make of a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from core_samples import BASELINE, CELL, make_arm, make_boot, make_boots

from orchestrator.core.codec import to_plain
from orchestrator.core.lossless.judge import judge
from orchestrator.core.promotion import GateSettings
from orchestrator.core.proof_findings import TextFinding
from orchestrator.core.proof_gates import ProofDemands, Proofs
from orchestrator.core.types import Arm, Boot, Proof, ProofPart
from orchestrator.core.verdict import Verdict, decide, promotable

FAST, SHORTER = make_arm(7), make_arm(5)
SLOWER = make_arm(7, "greedy", "standard")
ARMS = (BASELINE, FAST, SHORTER, SLOWER)
BOOTS = (
    *make_boots(BASELINE, [0.081, 0.082, 0.083]),
    *make_boots(FAST, [0.0325, 0.0331, 0.0337]),
    *make_boots(SHORTER, [0.0345, 0.0351, 0.0357]),
    *make_boots(SLOWER, [0.0490, 0.0500, 0.0510]),
)
REQUIRED = ProofDemands(lossless="required", canaries="skipped")


def proof(arm: Arm, kind: str) -> Boot:
    sentence = f"{kind} after 1,000 tokens."
    result = replace(judge({}, num_tokens=1_000), kind=kind, sentence=sentence)
    record = to_plain(TextFinding(result=result, floor=0.0))
    return replace(make_boot(arm, []), proof=Proof(findings={str(ProofPart.TEXT): record}))


def verdict_of(
    *boots: Boot,
    chosen: Arm | None = None,
    incumbent: Arm | None = None,
    measured: Sequence[Boot] = BOOTS,
) -> Verdict:
    return decide(
        ARMS,
        boots=measured,
        weights={CELL: 1.0},
        board=None,
        incumbent=incumbent,
        settings=GateSettings(),
        confidence=0.95,
        chosen=chosen,
        chosen_by=() if chosen else None,
        proofs=Proofs(boots=boots, demands=REQUIRED),
    )


def test_choice_that_is_shown_lossless_is_promoted() -> None:
    verdict = verdict_of(proof(BASELINE, "passed"), proof(FAST, "passed"), chosen=FAST)

    assert promotable(verdict)
    gate = next(gate for gate in verdict.gates if gate.name == "lossless")
    assert gate.passed is True
    assert gate.required is True


def test_choice_without_a_proof_wins_and_is_kept_out() -> None:
    for boots in ((), (proof(BASELINE, "passed"), proof(FAST, "cannot_tell"))):
        verdict = verdict_of(*boots, chosen=FAST)

        assert (verdict.kind, verdict.winner) == ("keep", FAST)
        assert not promotable(verdict)
        assert any(
            text.startswith("Production stays as it is: lossless") for text in verdict.sentences
        )


def test_lossy_arm_is_named_and_the_next_choice_stands() -> None:
    verdict = verdict_of(
        proof(BASELINE, "passed"), proof(FAST, "rejected"), proof(SLOWER, "passed"), chosen=SLOWER
    )

    assert promotable(verdict)
    assert verdict.winner == SLOWER
    told = [text for text in verdict.sentences if "is set aside" in text]
    assert told == [
        f"{FAST.label} is set aside: lossless: text: rejected after 1,000 tokens.",
        f"{SHORTER.label} is set aside: it has the rules of {FAST.label}.",
    ]
    assert {item.summary.arm for item in verdict.ranking if item.finalist} == {BASELINE, SLOWER}
    assert not any("cannot be told apart" in text for text in verdict.sentences)


def test_fastest_that_may_win_is_found_where_no_race_chose() -> None:
    verdict = verdict_of(proof(BASELINE, "passed"), proof(FAST, "rejected"))

    assert verdict.winner == SLOWER
    assert verdict.kind == "keep", "nobody proved it"


def test_reference_is_kept_among_those_that_may_win() -> None:
    measured = [boot for boot in BOOTS if boot.arm != SLOWER]
    verdict = verdict_of(
        proof(BASELINE, "passed"), proof(FAST, "rejected"), chosen=BASELINE, measured=measured
    )

    assert (verdict.kind, verdict.winner) == ("keep", BASELINE)
    assert "the fastest of 1 arms that may win" in verdict.sentences[0]


def test_what_serves_and_has_lossy_rules_is_said() -> None:
    verdict = verdict_of(
        proof(BASELINE, "passed"), proof(FAST, "rejected"), chosen=SHORTER, incumbent=SHORTER
    )

    assert verdict.winner == SHORTER
    assert (
        f"{SHORTER.label} itself is not shown to be right: it has the rules of {FAST.label}."
        in verdict.sentences
    )
