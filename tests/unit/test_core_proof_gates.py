from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from core_samples import BASELINE, make_arm, make_boot, make_facts

from orchestrator.core.codec import from_plain, to_plain
from orchestrator.core.lossless.greedy import Agreement
from orchestrator.core.lossless.judge import LosslessResult
from orchestrator.core.proof import Demand
from orchestrator.core.proof_findings import (
    AuditFinding,
    CanaryFinding,
    GreedyFinding,
    TaskFinding,
    TextFinding,
)
from orchestrator.core.proof_gates import NO_PROOF, ProofDemands, Proofs
from orchestrator.core.quality import CanaryFault, CanaryResult, TaskScore
from orchestrator.core.types import Arm, Boot, BootStatus, Proof, ProofPart

ARM, OTHER_DEPTH, OTHER_RULES = make_arm(7), make_arm(5), make_arm(7, "greedy")
REQUIRED = ProofDemands(lossless="required", canaries="required")
Findings = Mapping[ProofPart, object]


def result(
    kind: str, *, sentence: str = "", p_value: float = 1.0, seen: float | None = 0.008
) -> LosslessResult:
    return LosslessResult(
        kind=kind,  # type: ignore[arg-type]  # a literal of its three
        p_value=p_value,
        num_tokens=1000,
        num_observations={"rank_1": 1000},
        displacement=0.002,
        chance=0.001,
        seen=seen,
        more_tokens=None,
        where="rank_1",
        sentence=sentence or f"{kind} it is.",
    )


def text(kind: str, floor: float | None = 0.01) -> TextFinding:
    return TextFinding(result=result(kind), floor=floor)


def audit(kind: str | None) -> AuditFinding:
    if kind is None:
        return AuditFinding(why_not="another runner", result=None)
    return AuditFinding(why_not=None, result=result(kind, sentence=f"steps {kind}."))


def greedy(disagreements: int, tokens: int = 20_000) -> GreedyFinding:
    counted = Agreement(num_tokens=tokens, num_disagreements=disagreements, num_near_ties=0)
    return GreedyFinding(agreement=counted)


def canaries(*passed: str, failed: tuple[str, ...] = ()) -> CanaryFinding:
    return CanaryFinding(
        results=(
            *(CanaryResult(name=name, passed=True, reason="as asked") for name in passed),
            *(
                CanaryResult(name=name, passed=False, reason="noise", fault=CanaryFault.GARBAGE)
                for name in failed
            ),
        )
    )


def tasks(hits: int, total: int = 400) -> TaskFinding:
    return TaskFinding(scores=(TaskScore(task="sums", hits=hits, total=total),))


def boot(arm: Arm, findings: Findings, *, status: BootStatus = BootStatus.OK) -> Boot:
    """Return a proof boot as it comes back: through JSON."""
    plain = {str(part): to_plain(found) for part, found in findings.items()}
    made = make_boot(arm, [], status=status, reason="" if status is BootStatus.OK else "it died")
    made = replace(made, facts=make_facts(arm), proof=Proof(findings=plain))
    return from_plain(Boot, json.loads(json.dumps(to_plain(made))))


CONTROL: Findings = {
    ProofPart.TEXT: text("passed"),
    ProofPart.AUDIT: audit("passed"),
    ProofPart.CANARIES: canaries("chat", "json"),
}


def ask(
    findings: Findings,
    *,
    control: Findings = CONTROL,
    demands: ProofDemands = REQUIRED,
    arm: Arm = ARM,
) -> Proofs:
    return Proofs(boots=(boot(BASELINE, control), boot(arm, findings)), demands=demands)


@pytest.mark.parametrize(
    ("findings", "passed", "words"),
    [
        ({ProofPart.TEXT: text("passed"), ProofPart.AUDIT: audit("passed")}, True, "steps passed"),
        ({ProofPart.TEXT: text("passed"), ProofPart.AUDIT: audit(None)}, True, "cannot attach"),
        ({ProofPart.TEXT: text("cannot_tell"), ProofPart.AUDIT: audit("passed")}, True, "cannot"),
        ({ProofPart.TEXT: text("cannot_tell"), ProofPart.AUDIT: audit(None)}, None, "another run"),
        ({ProofPart.TEXT: text("passed"), ProofPart.AUDIT: audit("rejected")}, False, "audit: ste"),
        ({ProofPart.TEXT: text("rejected"), ProofPart.AUDIT: audit("passed")}, False, "text: rej"),
        ({ProofPart.AUDIT: audit("rejected")}, False, "steps rejected"),
        ({ProofPart.AUDIT: audit("passed")}, None, "steps passed"),
        ({}, None, "not shown"),
    ],
)
def test_text_and_audit_make_one_answer(
    findings: Findings, passed: bool | None, words: str
) -> None:
    gate, _ = ask(findings).gates(ARM)

    assert gate.passed is passed
    assert words in gate.reason
    assert gate.blocks is (passed is not True)


def test_control_that_is_rejected_itself_makes_no_scale() -> None:
    control = {**CONTROL, ProofPart.TEXT: text("rejected")}
    findings = {ProofPart.TEXT: text("rejected"), ProofPart.AUDIT: audit("passed")}
    gate, _ = ask(findings, control=control).gates(ARM)

    assert gate.passed is None
    assert "the control is rejected itself" in gate.reason

    control = {**CONTROL, ProofPart.AUDIT: audit("rejected")}
    gate, _ = ask({ProofPart.AUDIT: audit("rejected")}, control=control).gates(ARM)
    assert gate.passed is None


def test_arm_that_was_looked_at_without_its_control_is_not_judged() -> None:
    findings = {ProofPart.TEXT: text("rejected"), ProofPart.CANARIES: canaries("chat")}
    alone = Proofs(boots=(boot(ARM, findings),), demands=REQUIRED)
    failed = Proofs(
        boots=(boot(BASELINE, {}, status=BootStatus.FAILED), boot(ARM, findings)), demands=REQUIRED
    )
    other_build = Proofs(
        boots=(boot(replace(BASELINE, engine_build="0.28.0"), CONTROL), boot(ARM, findings)),
        demands=REQUIRED,
    )

    for proofs, words in (
        (alone, "no proof boot of the control"),
        (failed, "the control failed: it died"),
        (other_build, "no proof boot of the control"),
    ):
        for gate in proofs.gates(ARM):
            assert gate.passed is None
            assert gate.blocks
            assert words in gate.reason


@pytest.mark.parametrize(
    ("ours", "theirs", "passed"),
    [
        (greedy(3), greedy(2), True),
        (greedy(900), greedy(2), False),
        (greedy(3, tokens=60), greedy(2, tokens=60), None),
        (greedy(3), None, None),
        (None, greedy(3), None),
    ],
)
def test_temperature_zero_has_its_own_rule_and_must_pass(
    ours: GreedyFinding | None, theirs: GreedyFinding | None, passed: bool | None
) -> None:
    base: Findings = {ProofPart.TEXT: text("passed")}
    findings = base if ours is None else {**base, ProofPart.GREEDY: ours}
    control = CONTROL if theirs is None else {**CONTROL, ProofPart.GREEDY: theirs}

    gate, _ = ask(findings, control=control).gates(ARM)

    assert gate.passed is passed
    assert "greedy" in gate.reason


def test_greedy_agreement_alone_shows_no_distribution() -> None:
    control = {ProofPart.GREEDY: greedy(2)}
    gate, _ = ask({ProofPart.GREEDY: greedy(2)}, control=control).gates(ARM)

    assert gate.passed is None


@pytest.mark.parametrize(
    ("findings", "passed", "words"),
    [
        ({ProofPart.CANARIES: canaries("chat", "json")}, True, "chat, json as the control"),
        ({ProofPart.CANARIES: canaries("chat", failed=("json",))}, False, "json: garbage"),
        ({}, None, "no answer was checked"),
        (
            {ProofPart.CANARIES: canaries("chat", "json"), ProofPart.TASKS: tasks(150)},
            False,
            "task sums",
        ),
        (
            {ProofPart.CANARIES: canaries("chat", "json"), ProofPart.TASKS: tasks(301)},
            True,
            "not worse in sums",
        ),
    ],
)
def test_answers_are_held_against_the_control(
    findings: Findings, passed: bool | None, words: str
) -> None:
    control: Findings = CONTROL
    if ProofPart.TASKS in findings:
        control = {**CONTROL, ProofPart.TASKS: tasks(300)}

    _, gate = ask(findings, control=control).gates(ARM)

    assert gate.passed is passed
    assert words in gate.reason


def test_task_that_only_the_control_ran_is_no_pass() -> None:
    control = {**CONTROL, ProofPart.TASKS: tasks(300)}
    _, gate = ask({ProofPart.CANARIES: canaries("chat", "json")}, control=control).gates(ARM)

    assert gate.passed is None
    assert "it was not run" in gate.reason


@pytest.mark.parametrize(
    ("note", "index"),
    [
        ("greedy: the arm answered with status 500", 0),
        ("tasks: lm_eval is not installed", 1),
        ("canaries: no answer", 1),
    ],
)
@pytest.mark.parametrize("side", [0, 1])
def test_part_that_could_not_be_looked_at_is_no_pass(note: str, index: int, side: int) -> None:
    proofs = ask({ProofPart.TEXT: text("passed"), ProofPart.CANARIES: canaries("chat", "json")})
    assert all(gate.passed for gate in proofs.gates(ARM))
    boots = list(proofs.boots)
    proof = boots[side].proof
    assert proof is not None
    boots[side] = replace(boots[side], proof=replace(proof, notes=(note,)))

    gates = replace(proofs, boots=tuple(boots)).gates(ARM)

    assert gates[index].passed is None
    assert note in gates[index].reason
    assert gates[1 - index].passed is True


@pytest.mark.parametrize(
    ("seen", "passed"), [(0.012, True), (0.05, True), (0.051, None), (None, None)]
)
def test_audit_alone_passes_only_where_the_text_is_not_blind(
    seen: float | None, passed: bool | None
) -> None:
    """The engine's own probabilities may be wrong, which only the text would show."""
    blurred = TextFinding(result=result("cannot_tell", seen=seen), floor=0.01)
    gate, _ = ask({ProofPart.TEXT: blurred, ProofPart.AUDIT: audit("passed")}).gates(ARM)

    assert gate.passed is passed


def test_what_limits_the_text_is_said() -> None:
    limited = replace(text("passed"), remarks=("only 20 probabilities a token",))
    gate, _ = ask({ProofPart.TEXT: limited}).gates(ARM)

    assert gate.passed is True
    assert "only 20 probabilities a token" in gate.reason


def sections(**changed: str) -> dict[str, str]:
    return {"engine": "e", "models": "m", "platform": "p", "arguments": "a"} | changed


@pytest.mark.parametrize(
    ("changed", "passed"),
    [({}, True), ({"arguments": "more logprobs"}, True), ({"models": "other weights"}, None)],
)
@pytest.mark.parametrize("side", [0, 1])
def test_what_is_proved_is_what_was_raced(
    changed: dict[str, str], passed: bool | None, side: int
) -> None:
    proofs = ask({ProofPart.TEXT: text("passed"), ProofPart.CANARIES: canaries("chat", "json")})
    boots = [replace(boot, sections=sections()) for boot in proofs.boots]
    raced = [replace(make_boot(b.arm, []), sections=sections()) for b in boots]
    boots[side] = replace(boots[side], sections=sections(**changed))

    gates = replace(proofs, boots=tuple(boots), raced=tuple(raced)).gates(ARM)

    for gate in gates:
        assert gate.passed is passed
        assert ("ran with another models" in gate.reason) is (passed is None)


def test_proof_boots_that_were_lost_are_not_untried() -> None:
    for lost in ((BASELINE, BASELINE), (ARM,)):
        boots = () if ARM not in lost else (boot(BASELINE, CONTROL),)
        for gate in Proofs(boots=boots, lost=lost, demands=REQUIRED).gates(ARM):
            assert gate.blocks
            assert "lost with their process" in gate.reason


def test_arm_that_did_not_answer_is_kept_out_and_not_set_aside() -> None:
    silent = CanaryFinding(
        results=(
            CanaryResult(name="chat", passed=False, reason="HTTP 503", fault=CanaryFault.LOST),
            CanaryResult(name="json", passed=True, reason="as asked"),
        )
    )
    proofs = ask({ProofPart.TEXT: text("passed"), ProofPart.CANARIES: silent})

    assert proofs.gates(ARM)[1].blocks
    assert proofs.set_aside([ARM]) == {}


def test_shorter_context_than_the_controls_is_a_fault() -> None:
    proofs = ask({ProofPart.CANARIES: canaries("chat", "json")})
    control, arm = proofs.boots
    assert arm.facts is not None
    short = replace(arm, facts=replace(arm.facts, max_model_len=512))

    _, gate = replace(proofs, boots=(control, short)).gates(ARM)

    assert gate.passed is False
    assert "512 tokens, the control has 1,024" in gate.reason


@pytest.mark.parametrize(
    ("demand", "kind", "blocks"),
    [
        ("required", "cannot_tell", True),
        ("reported", "cannot_tell", False),
        ("reported", "rejected", True),
        ("skipped", "rejected", False),
    ],
)
def test_demand_says_what_keeps_an_arm_out(demand: Demand, kind: str, blocks: bool) -> None:
    findings = {ProofPart.TEXT: text(kind), ProofPart.AUDIT: audit(None)}
    gate, _ = ask(findings, demands=ProofDemands(lossless=demand)).gates(ARM)

    assert gate.blocks is blocks


def test_what_was_not_looked_at_is_said_to_be_untested() -> None:
    for gate in Proofs().gates(ARM):
        assert gate.passed is None
        assert gate.reason.startswith("not tested")
        assert not gate.blocks
    for gate in Proofs(demands=REQUIRED).gates(ARM):
        assert gate.blocks
    assert [gate.name for gate in Proofs().gates(ARM)] == ["lossless", "canaries"]


def test_without_speculation_an_arm_is_the_control_itself() -> None:
    silent = {**CONTROL, ProofPart.CANARIES: canaries(failed=("chat",))}
    for proofs in (Proofs(demands=REQUIRED), ask({}, control=silent)):
        assert [gate.passed for gate in proofs.gates(BASELINE)] == [True, True]


def test_lossy_rules_are_set_aside_at_every_depth_and_no_others() -> None:
    arms = (BASELINE, ARM, OTHER_DEPTH, OTHER_RULES)
    lossy = ask({ProofPart.AUDIT: audit("rejected"), ProofPart.CANARIES: canaries("chat", "json")})
    garbled = ask({ProofPart.TEXT: text("passed"), ProofPart.CANARIES: canaries(failed=("chat",))})
    unknown = ask({ProofPart.TEXT: text("cannot_tell")})

    aside = lossy.set_aside(arms)
    assert list(aside) == [ARM, OTHER_DEPTH]
    assert aside[ARM].startswith("lossless: audit: steps rejected")
    assert aside[OTHER_DEPTH] == f"it has the rules of {ARM.label}"
    assert list(garbled.set_aside(arms)) == [ARM]
    assert unknown.set_aside(arms) == {}
    assert replace(lossy, demands=NO_PROOF).set_aside(arms) == {}
    other_build = replace(ARM, engine_build="0.28.0")
    assert list(lossy.set_aside((*arms, other_build))) == [ARM, OTHER_DEPTH]


def test_floor_is_the_controls() -> None:
    proofs = ask({})

    assert proofs.floor(ARM) == 0.01
    assert Proofs().floor(ARM) is None


def test_rejection_counts_although_the_engine_died_later() -> None:
    died = boot(ARM, {ProofPart.TEXT: text("rejected")}, status=BootStatus.FAILED)
    passed = boot(ARM, {ProofPart.TEXT: text("passed")}, status=BootStatus.FAILED)
    for demand in ("required", "reported"):
        demands = ProofDemands(lossless=demand)  # type: ignore[arg-type]  # both are demands
        proofs = Proofs(boots=(boot(BASELINE, CONTROL), died), demands=demands)

        assert proofs.gates(ARM)[0].passed is False
        assert list(proofs.set_aside([ARM, OTHER_RULES])) == [ARM]
        alone = Proofs(boots=(boot(BASELINE, CONTROL), passed), demands=demands)
        assert alone.gates(ARM)[0].passed is None, "a pass needs a boot that ended well"


def test_choice_that_nobody_looked_at_after_three_that_failed_is_no_better_known() -> None:
    rejected = {ProofPart.TEXT: text("rejected")}
    others = [
        make_arm(depth, draft) for depth, draft in ((7, "greedy"), (5, "greedy"), (3, "greedy"))
    ]
    boots = tuple(boot(arm, rejected) for arm in others)
    few = Proofs(boots=(boot(BASELINE, CONTROL), *boots[:2]))
    all_three = Proofs(boots=(boot(BASELINE, CONTROL), *boots))

    assert not few.gates(ARM)[0].blocks
    assert all_three.gates(ARM)[0].blocks


def test_lost_boots_of_another_builds_control_are_not_counted() -> None:
    other = replace(BASELINE, engine_build="0.28.0")
    gate = Proofs(boots=(boot(BASELINE, CONTROL),), lost=(other,), demands=REQUIRED).gates(ARM)[0]

    assert gate.reason == "not tested: there is no proof boot of the arm"
