"""The audit in the real engine on the CPU: what it records, and that it changes nothing."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cpu_engine import NEEDS_ENGINE, Engine, booted

from orchestrator.core.lossless.judge import judge
from orchestrator.core.lossless.observations import Observations
from serve_apps.audit.plugin import AUDIT_DIR_VARIABLE
from serve_apps.audit.records import KINDS, Records, attachment, read_folder

pytestmark = NEEDS_ENGINE

STANDARD = {
    "method": "dflash",
    "model": "infra/tiny_models/draft",
    "num_speculative_tokens": 7,
    "draft_sample_method": "probabilistic",
    "rejection_sample_method": "standard",
}
PROMPTS = ("def parse(line):\n", "class Reader:\n", "import os\n", "for name in names:\n")
NUM_TOKENS = 40


def answers(engine: Engine) -> list[str]:
    def one(index: int) -> str:
        body = {"temperature": 1.0, "max_tokens": NUM_TOKENS, "ignore_eos": True}
        prompt = PROMPTS[index % len(PROMPTS)]
        text: str = engine.complete(prompt=prompt, seed=index, **body)["choices"][0]["text"]
        return text

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(one, range(12)))


class Audited:
    """What one boot answered, counted and recorded."""

    def __init__(self, folder: Path, *, audit: bool) -> None:
        records = folder / "records"
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv(AUDIT_DIR_VARIABLE, raising=False)
            if audit:
                patch.setenv(AUDIT_DIR_VARIABLE, str(records))
            with booted(folder, "--speculative-config", json.dumps(STANDARD)) as engine:
                self.texts = answers(engine)
                self.num_drafts = engine.counter("vllm:spec_decode_num_drafts_total")
                accepted = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
                self.num_first = engine.counter(
                    accepted + '{engine="0",model_name="tiny",position="0"'
                )
        self.folder = records


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Audited:
    return Audited(tmp_path_factory.mktemp("audited"), audit=True)


@pytest.fixture(scope="module")
def records(audited: Audited) -> Records:
    assert attachment(audited.folder).attached
    (only,) = read_folder(audited.folder)
    return only


def test_records_name_what_they_were_taken_from(records: Records) -> None:
    assert records.header.engine_version.startswith("0.32.0")
    assert records.header.rejection_sample_method == "standard"
    assert records.header.draft_sample_method == "probabilistic"
    assert not records.header.truncated


def test_every_draft_and_acceptance_that_the_engine_counts_is_recorded(
    audited: Audited, records: Records
) -> None:
    x, _ = records.by_kind()["first_accepted"]
    assert len(x) == audited.num_drafts > 100
    assert x.sum() == audited.num_first > 0


def test_lossless_engine_is_not_rejected(records: Records) -> None:
    by_kind = records.by_kind()
    assert set(by_kind) >= set(KINDS) - {f"bonus_rank_{b}" for b in ("17-64", "65+")}
    found = {kind: Observations(x=x, m=m) for kind, (x, m) in by_kind.items()}
    assert judge(found, num_tokens=12 * NUM_TOKENS).p_value > 1e-3


def test_engine_without_the_audit_samples_the_same_and_writes_nothing(
    audited: Audited, tmp_path: Path
) -> None:
    plain = Audited(tmp_path, audit=False)
    assert plain.texts == audited.texts
    assert plain.num_drafts == audited.num_drafts
    assert not plain.folder.exists()
