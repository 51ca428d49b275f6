"""`audit-build`: what it refuses, how its children are run, what it prints and returns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator import audit_build_command as command
from orchestrator import cli
from orchestrator.audit_build import (
    PROJECT,
    RULES,
    Build,
    BuildAudit,
    Driven,
    Plan,
    RuleAudit,
    audit_build,
    child_environment,
    judge_rule,
    open_build,
)
from orchestrator.audit_build_text import Displacement
from orchestrator.core.lossless.judge import LosslessResult, LosslessSettings
from orchestrator.errors import ConfigError, MeasurementError
from orchestrator.exit_status import ExitStatus
from serve_apps.audit.drive_markov import make_chain, probabilities
from serve_apps.audit.records import ROW, RecordHeader, RecordWriter

BAD_ARGUMENTS = [
    ["--tokens", "10"],
    ["--tokens", "6000000"],
    ["--seed", "-1"],
    ["--processes", "0"],
    ["--vocabulary", "8"],
    ["--timeout", "0"],
    ["--timeout", "nan"],
    ["--alpha", "0"],
    ["--displacement", "1"],
    ["--rules", "fast"],
    ["--rules", ","],
]


def fake_venv(folder: Path, script: str) -> Path:
    """Make a virtual environment whose Python is a shell script."""
    python = folder / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    python.chmod(0o755)
    return folder / "venv"


def result(kind: Any) -> LosslessResult:
    return LosslessResult(
        kind=kind, p_value=0.25, num_tokens=1280, num_observations={"rank_1": 1280},
        displacement=0.01, chance=0.005, seen=0.02, more_tokens=None, where="rank_1", sentence="S.",
    )  # fmt: skip


def audited(*kinds: str) -> BuildAudit:
    return BuildAudit(
        version="1.2.3",
        rules=tuple(
            RuleAudit(
                rule=rule, drafted_steps=0 if rule == "none" else 100, accepted=50, rejections=90,
                cpu_s=1.0, displacement=Displacement(share=0.012, low=-0.001, high=0.02),
                result=result(kind),
            )
            for rule, kind in zip(RULES, kinds, strict=False)
        ),
    )  # fmt: skip


@pytest.mark.parametrize("arguments", BAD_ARGUMENTS, ids=" ".join)
def test_bad_argument_is_one_line_and_status_2(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["audit-build", str(tmp_path / "none.whl"), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {arguments[0]}: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda folder: folder / "none.whl", "does not exist"),
        (lambda folder: folder, "neither a wheel"),
        (lambda _: Path(__file__), "neither a wheel"),
    ],
)
def test_build_that_is_none_is_refused(make: Any, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=problem):
        open_build(make(tmp_path), tmp_path)


def test_virtual_environment_keeps_its_own_python(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    assert open_build(venv, tmp_path).python == venv / "bin" / "python"


def test_child_sees_no_gpu_and_the_wheel_before_the_project(tmp_path: Path) -> None:
    build = Build(source=tmp_path, python=Path("python"), unpacked=tmp_path / "wheel")
    inherited = {"PYTHONPATH": "/mine", "PYTHONHOME": "/h", "VLLM_PLUGINS": "x", "HOME": "/root"}
    found = child_environment(build, {**inherited, "CUDA_VISIBLE_DEVICES": "0"})
    assert found["CUDA_VISIBLE_DEVICES"] == ""
    assert found["TRITON_INTERPRET"] == "1"
    assert found["PYTHONPATH"].startswith(str(tmp_path / "wheel") + ":")
    assert "/mine" not in found["PYTHONPATH"]
    assert found["HOME"] == "/root"
    assert not {"PYTHONHOME", "VLLM_PLUGINS"} & set(found)


def test_child_that_cannot_drive_gives_its_reason(tmp_path: Path) -> None:
    venv = fake_venv(tmp_path, "echo noise >&2; echo 'cannot drive: no kernel' >&2; exit 3")
    with pytest.raises(ConfigError, match="cannot drive: no kernel; docs/audit-build"):
        audit_build(venv, Plan(rules=("none",)))


def test_child_that_fails_gives_its_last_line(tmp_path: Path) -> None:
    venv = fake_venv(tmp_path, "echo 'TypeError: x' >&2; exit 1")
    with pytest.raises(ConfigError, match="its code failed here: TypeError: x"):
        audit_build(venv, Plan(rules=("none",)))


def test_child_that_says_nothing_gives_its_status(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ended with status 7"):
        audit_build(fake_venv(tmp_path, "exit 7"), Plan(rules=("none",)))


@pytest.mark.parametrize("script", ["exit 0", "echo 'no result'"])
def test_child_without_a_result_is_no_verdict(tmp_path: Path, script: str) -> None:
    with pytest.raises(ConfigError, match="ended with status 0 and no result"):
        audit_build(fake_venv(tmp_path, script), Plan(rules=("none",)))


def test_child_that_is_killed_gives_the_signal_and_not_what_it_said_before(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ended by signal 9; memory may have run out"):
        audit_build(fake_venv(tmp_path, "echo W >&2; kill -9 $$"), Plan(rules=("none",)))


def test_python_that_does_not_start_is_refused(tmp_path: Path) -> None:
    venv = fake_venv(tmp_path, "")
    (venv / "bin" / "python").write_bytes(b"garbage")
    with pytest.raises(ConfigError, match="its python does not start: Exec format error"):
        audit_build(venv, Plan(rules=("none",)))


def test_folder_for_temporary_files_that_cannot_be_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"temporary files: no folder .* set TMPDIR"):
        audit_build(fake_venv(tmp_path, "exit 7"), Plan(rules=("none",)))


@pytest.mark.parametrize("any_version", [False, True])
def test_child_drives_a_version_never_read_only_where_asked_to(
    tmp_path: Path, any_version: bool
) -> None:
    venv = fake_venv(tmp_path, f'echo "$@" > {tmp_path}/arguments; exit 7')
    with pytest.raises(ConfigError, match="status 7"):
        audit_build(venv, Plan(rules=("none",), any_version=any_version))
    assert ("--any-version" in (tmp_path / "arguments").read_text().split()) is any_version


def heeding_all_signals() -> None:
    """Undo what a background job or nohup, in which the tests may run, hands down."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_command_that_is_stopped_leaves_neither_a_process_nor_a_file(
    tmp_path: Path, number: signal.Signals
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    script = (
        f"echo x > $TMPDIR/mine; echo $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid"
    )
    venv = fake_venv(tmp_path, f"{script}; exec sleep 1000")
    command_line = [sys.executable, "-m", "orchestrator", "audit-build", str(venv)]
    with subprocess.Popen(
        [*command_line, "--rules", "none"], env={**os.environ, "TMPDIR": str(files)},
        cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        preexec_fn=heeding_all_signals,
    ) as process:  # fmt: skip
        while not (tmp_path / "pid").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(30) == ExitStatus.INTERRUPTED
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()
    assert list(files.iterdir()) == []


def test_child_that_hangs_is_ended(tmp_path: Path) -> None:
    venv = fake_venv(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 1000")
    with pytest.raises(MeasurementError, match="none: not driven within 2 s"):
        audit_build(venv, Plan(rules=("none",), timeout_s=2.0))
    pid = (tmp_path / "pid").read_text().strip()
    assert not Path(f"/proc/{pid}").exists()


def left_by_a_child(folder: Path, *, scale: float) -> Driven:
    """Write what a rule without drafts leaves, sampled at `scale` times the stated temperature."""
    chain = make_chain(seed=0, vocabulary=96, depth=1, num_candidates=4)
    np.save(folder / "chain.npy", chain.target_logits)
    rng = np.random.default_rng(1)
    tables = probabilities(chain.target_logits / scale).cumsum(-1)
    prompt = last = rng.integers(0, 96, 200)
    texts = np.empty((200, 128), np.int32)
    for place in range(128):
        last = (tables[last] < rng.random((200, 1)) * tables[last][:, -1:]).sum(-1)
        texts[:, place] = last
    np.savez(
        folder / "none.npz", texts=texts, prompt_tokens=prompt,
        temperatures=np.ones(200, np.float32),
    )  # fmt: skip
    header = RecordHeader(
        engine_version="1", rejection_sample_method="none", draft_sample_method="none"
    )
    RecordWriter(folder / "none.rows", header).append(np.zeros(0, ROW))
    return Driven(
        rule="none", version="0.32.0", cpu_s=1.0, drafted_steps=0, accepted=0, rejections=0
    )


@pytest.mark.parametrize(("scale", "kind"), [(1.0, "cannot_tell"), (0.8, "rejected")])
def test_rule_is_judged_by_its_text(tmp_path: Path, scale: float, kind: str) -> None:
    found = judge_rule(tmp_path, left_by_a_child(tmp_path, scale=scale), LosslessSettings())
    assert found.result.kind == kind
    assert found.result.num_tokens == 200 * 128
    assert found.acceptance_length is None


def test_rejected_rule_s_sentence_claims_no_share_that_the_text_does_not_show(
    tmp_path: Path,
) -> None:
    found = judge_rule(tmp_path, left_by_a_child(tmp_path, scale=0.8), LosslessSettings())
    start = f"Rejected after 25,600 tokens, p = {found.result.p_value:.2g}: "
    assert found.result.sentence.startswith(f"{start}{found.result.where}")
    assert "displaced" not in found.result.sentence
    assert found.displacement is not None
    assert found.displacement.low > 0.02


@pytest.mark.parametrize(
    ("kinds", "status"),
    [
        (("passed", "passed"), 0),
        (("passed", "cannot_tell"), 3),
        (("cannot_tell", "rejected", "passed"), 1),
    ],
)
def test_status_follows_the_worst_rule(kinds: tuple[str, ...], status: int) -> None:
    assert command.status_of(audited(*kinds)) == status


def test_table_has_a_row_and_a_sentence_for_each_rule() -> None:
    lines = command.format_audit(audited("passed", "rejected", "cannot_tell"), Plan())
    assert lines[0].startswith("vLLM 1.2.3: dflash2 drafts")
    for rule, verdict in zip(RULES, ("passed", "rejected", "cannot tell"), strict=False):
        assert any(line.startswith(f"{rule} ") and line.endswith(verdict) for line in lines)
        assert f"{rule}: S." in lines
    row = next(line for line in lines if line.startswith("greedy+standard "))
    assert "1.500" in row
    assert "+1.20% (-0.10% to +2.00%)" in row


def test_record_is_plain_json_without_the_place_of_the_build(tmp_path: Path) -> None:
    record = command.audit_record(audited("passed"), tmp_path / "vllm-1.whl", Plan())
    text = json.dumps(record, allow_nan=False)
    assert json.loads(text)["audit"]["rules"][0]["result"]["kind"] == "passed"
    assert str(tmp_path) not in text
    assert record["build"] == "vllm-1.whl"


DONE = {
    "rule": "none", "version": "0.32.0", "cpu_s": 1, "drafted_steps": 0, "accepted": 0,
    "rejections": 0, "steps": 3,
}  # fmt: skip


@pytest.mark.parametrize(
    "said",
    [
        "3", "[]", '"x"', "null", "{}", "[" * 50_000, '{"cpu_s": 1}',
        json.dumps(DONE | {"cpu_s": "x"}), json.dumps(DONE | {"rule": "greedy+block"}),
        json.dumps(DONE | {"cpu_s": float("nan")}),
    ],
    ids=lambda said: said[:12],
)  # fmt: skip
def test_interpreter_that_prints_nonsense_is_no_build(tmp_path: Path, said: str) -> None:
    (tmp_path / "said").write_text(said, encoding="utf-8")
    venv = fake_venv(tmp_path, f"cat {tmp_path}/said")

    with pytest.raises(ConfigError, match="status 0 and no result"):
        audit_build(venv, Plan(rules=("none",)))


@pytest.mark.parametrize("script", ["", "; touch none.npz none.rows chain.npy"])
def test_interpreter_that_leaves_no_records_is_no_build(tmp_path: Path, script: str) -> None:
    (tmp_path / "said").write_text(json.dumps(DONE), encoding="utf-8")
    venv = fake_venv(tmp_path, f"cat {tmp_path}/said{script}")

    with pytest.raises(ConfigError, match="what a process left cannot be read"):
        audit_build(venv, Plan(rules=("none",)))
