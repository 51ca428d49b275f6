from __future__ import annotations

from dataclasses import replace

from core_samples import make_arm, make_block, make_boot

from orchestrator.adapters.trial_metrics import boot_points
from orchestrator.core.codec import to_plain
from orchestrator.core.lossless.greedy import Agreement
from orchestrator.core.lossless.judge import judge
from orchestrator.core.proof_findings import (
    AuditFinding,
    CanaryFinding,
    GreedyFinding,
    TaskFinding,
    TextFinding,
)
from orchestrator.core.quality import CanaryFault, CanaryResult, TaskScore
from orchestrator.core.types import Proof, ProofPart

ARM = make_arm()
FINDINGS = {
    ProofPart.TEXT: TextFinding(
        result=replace(judge({}, num_tokens=1_000), seen=0.008, p_value=0.5), floor=0.01
    ),
    ProofPart.AUDIT: AuditFinding(why_not="another runner", result=None),
    ProofPart.GREEDY: GreedyFinding(
        agreement=Agreement(num_tokens=900, num_disagreements=3, num_near_ties=1)
    ),
    ProofPart.CANARIES: CanaryFinding(
        results=(
            CanaryResult(name="chat", passed=True, reason="as asked"),
            CanaryResult(name="json", passed=False, reason="noise", fault=CanaryFault.GARBAGE),
            CanaryResult(name="image", passed=None, reason="takes none"),
        )
    ),
    ProofPart.TASKS: TaskFinding(
        scores=(
            TaskScore(task="sums", hits=30, total=40),
            TaskScore(task="poems", hits=0, total=0, refused="it was not run"),
        )
    ),
}


def test_proof_boot_leaves_its_numbers_and_invents_none() -> None:
    plain = {str(part): to_plain(found) for part, found in FINDINGS.items()}
    boot = replace(make_boot(ARM, []), proof=Proof(findings=plain))

    values = {point.key: point.value for point in boot_points(boot)}

    assert values["lossless/text_p_value"] == 0.5
    assert values["lossless/text_seen"] == 0.008
    assert values["lossless/text_tokens"] == 1_000
    assert "lossless/text_displacement" not in values, "there were no observations"
    assert values["lossless/numeric_floor"] == 0.01
    assert values["lossless/audit_attached"] == 0.0
    assert "lossless/audit_p_value" not in values
    assert values["lossless/greedy_disagreements"] == 3
    assert (values["canary/chat"], values["canary/json"]) == (1.0, 0.0)
    assert "canary/image" not in values
    assert values["task/sums"] == 0.75
    assert "task/poems" not in values


def test_measured_boot_has_no_numbers_of_a_proof() -> None:
    keys = {point.key for point in boot_points(make_boot(ARM, [make_block(ARM)]))}

    assert keys
    assert not any(key.startswith(("lossless/", "canary/", "task/")) for key in keys)
