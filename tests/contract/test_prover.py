"""What a proof boot looks at, on servers whose distributions are known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from orchestrator.core.codec import from_plain
from orchestrator.core.lossless.judge import LosslessSettings
from orchestrator.core.proof_gates import AuditFinding, CanaryFinding, GreedyFinding, TextFinding
from orchestrator.core.types import EngineFacts, ProofPart
from orchestrator.errors import TransientError
from orchestrator.fakes.openai import serving
from orchestrator.fakes.openai.markov import MODEL, MarkovSettings, markov_server
from orchestrator.load.workload import load_workload
from orchestrator.lossless_answers import TextTest
from orchestrator.prove import EngineProver, ProofPlan
from serve_apps.audit.records import (
    FIRST_ACCEPTED,
    KINDS,
    ROW,
    RecordHeader,
    RecordWriter,
    write_note,
)


@pytest.fixture
def plan(workload_file: Path) -> ProofPlan:
    return ProofPlan(
        model=MODEL,
        is_control=False,
        floor=1e-4,
        text=TextTest(
            workload=load_workload(workload_file),
            seed=5,
            token_budget=4_000,
            control_tokens=1_000,
            max_tokens=100,
            wait_s=0.01,
            judging=LosslessSettings(alpha=0.0005, displacement=0.1),
        ),
        greedy_tokens=1_000,
    )


@contextmanager
def booted(settings: MarkovSettings | None = None) -> Iterator[EngineFacts]:
    with serving(markov_server(settings)) as server:
        yield EngineFacts(
            boot_id="boot", pid=1, base_url=server.url, engine_version=None, model_runner=None,
            num_speculative_tokens=None, draft_sample_method=None, rejection_sample_method=None,
            draft_architecture=None, kv_cache_tokens=None, kv_max_concurrency=None,
            max_model_len=1024, boot_time_s=1.0, weights_bytes=None, log_path="",
        )  # fmt: skip


def text_of(plan: ProofPlan, facts: EngineFacts) -> TextFinding:
    return from_plain(TextFinding, EngineProver(plan).prove(ProofPart.TEXT, facts).record)


def test_lossless_arm_passes_and_a_lossy_one_is_rejected(plan: ProofPlan) -> None:
    with booted() as facts:
        passed = text_of(plan, facts)
    with booted(MarkovSettings(displaced=0.1)) as facts:
        rejected = text_of(plan, facts)

    assert passed.result.kind == "passed"
    assert passed.floor == plan.floor
    assert passed.result.num_tokens < 4_000, "it ends as soon as it is known"
    assert rejected.result.kind == "rejected"


def test_control_gives_the_floor(plan: ProofPlan) -> None:
    with booted() as facts:
        found = text_of(replace(plan, is_control=True, floor=None), facts)
    with booted(MarkovSettings(scorer_temperature=1.2)) as facts:
        coarse = text_of(replace(plan, is_control=True, floor=None), facts)

    assert found.result.kind != "rejected"
    assert found.floor is not None
    assert coarse.floor is not None
    assert found.floor < 0.01 < coarse.floor
    assert found.result.num_tokens == 1_000


def test_floor_of_the_control_is_room_for_the_arm(plan: ProofPlan) -> None:
    with booted(MarkovSettings(scorer_temperature=1.15)) as facts:
        strict = text_of(replace(plan, floor=0.0), facts)
        lenient = text_of(replace(plan, floor=0.5), facts)

    assert strict.result.kind == "rejected"
    assert lenient.result.kind != "rejected"


def test_greedy_tokens_are_held_against_the_scorers_choice(plan: ProofPlan) -> None:
    with booted() as facts:
        right = EngineProver(plan).prove(ProofPart.GREEDY, facts)
    with booted(MarkovSettings(displaced=0.05)) as facts:
        wrong = EngineProver(plan).prove(ProofPart.GREEDY, facts)

    assert from_plain(GreedyFinding, right.record).agreement.num_disagreements == 0
    assert from_plain(GreedyFinding, wrong.record).agreement.num_disagreements > 5
    assert "are not the scorer's choice" in wrong.sentence


def test_audit_is_read_from_the_boots_folder_and_leaves_nothing(
    plan: ProofPlan, tmp_path: Path
) -> None:
    folder = tmp_path / "audit"
    folder.mkdir()
    write_note(folder / "audit-1.json", attached=True, why="")
    rows = np.zeros(4_000, ROW)
    rows["kind"], rows["m"] = KINDS.index(FIRST_ACCEPTED), 0.6
    rows["x"][:1_000] = 1.0
    header = RecordHeader(
        engine_version="0.32.0", rejection_sample_method="block", draft_sample_method="greedy"
    )
    RecordWriter(folder / "audit-1.rows", header).append(rows)
    prover = EngineProver(replace(plan, audit_folder=folder))

    with booted() as facts:
        with pytest.raises(TransientError, match="no tokens were sampled"):
            prover.prove(ProofPart.AUDIT, facts)
        prover.prove(ProofPart.TEXT, facts)
        found = from_plain(AuditFinding, prover.prove(ProofPart.AUDIT, facts).record)
        assert folder.exists(), "the engine still writes to it"

    prover.close()
    assert found.why_not is None
    assert found.result is not None
    assert found.result.kind == "rejected"
    assert not folder.exists()


def test_audit_whose_records_end_early_does_not_pass(plan: ProofPlan, tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    folder.mkdir()
    write_note(folder / "audit-1.json", attached=True, why="")
    rows = np.zeros(4_000, ROW)
    rows["kind"], rows["m"] = KINDS.index(FIRST_ACCEPTED), 0.5
    rows["x"] = np.arange(len(rows)) % 2
    header = RecordHeader(
        engine_version="0.32.0",
        rejection_sample_method="block",
        draft_sample_method="greedy",
        limit_rows=3_000,
    )
    RecordWriter(folder / "audit-1.rows", header).append(rows)
    prover = EngineProver(replace(plan, audit_folder=folder))

    with booted() as facts:
        prover.prove(ProofPart.TEXT, facts)
        with pytest.raises(TransientError, match="end before the text does"):
            prover.prove(ProofPart.AUDIT, facts)


def test_engine_that_takes_no_audit_is_no_fault_of_the_arm(plan: ProofPlan, tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    folder.mkdir()
    write_note(folder / "audit-1.json", attached=False, why="this build has no sampler")
    prover = EngineProver(replace(plan, audit_folder=folder))

    with booted() as facts:
        prover.prove(ProofPart.TEXT, facts)
        found = prover.prove(ProofPart.AUDIT, facts)

    assert from_plain(AuditFinding, found.record) == AuditFinding(
        why_not="this build has no sampler", result=None
    )
    assert found.sentence == "cannot attach: this build has no sampler"


@pytest.mark.parametrize(
    ("content", "words"), [(b"no header", "does not begin with a header"), (None, "was seen")]
)
def test_audit_that_cannot_be_read_is_said(
    plan: ProofPlan, tmp_path: Path, content: bytes | None, words: str
) -> None:
    folder = tmp_path / "audit"
    if content is not None:
        folder.mkdir()
        write_note(folder / "audit-1.json", attached=True, why="")
        (folder / "audit-1.rows").write_bytes(content)
    prover = EngineProver(replace(plan, audit_folder=folder))

    with booted() as facts:
        prover.prove(ProofPart.TEXT, facts)
        if content is None:
            assert words in prover.prove(ProofPart.AUDIT, facts).sentence
        else:
            with pytest.raises(TransientError, match=words):
                prover.prove(ProofPart.AUDIT, facts)


def test_canaries_are_results_whatever_the_server_answers(plan: ProofPlan) -> None:
    with booted() as facts:
        found = EngineProver(plan).prove(ProofPart.CANARIES, facts)

    results = from_plain(CanaryFinding, found.record).results
    assert results
    assert not any(item.passed for item in results), "a Markov chain answers no question"
    assert "answer as asked: none" in found.sentence


@pytest.mark.parametrize("part", [ProofPart.TEXT, ProofPart.GREEDY, ProofPart.CANARIES])
def test_server_that_is_gone_is_said_and_not_judged(plan: ProofPlan, part: ProofPart) -> None:
    with booted() as facts:
        pass
    prover = EngineProver(replace(plan, text=replace(plan.text, timeout_s=1.0)))

    with pytest.raises(TransientError):
        prover.prove(part, facts)
