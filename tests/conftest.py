"""Fixtures that all tests share: a clean environment, small stand-ins for a study's inputs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# How long an input takes says more of the machine than of the code.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")

FOREIGN = ("RAY_", "MLFLOW_", "SPECPILOT_")


@pytest.fixture(scope="session", autouse=True)
def clean_environment() -> Iterator[None]:
    """Hide what the caller's environment says of Ray, MLflow and specpilot."""
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(FOREIGN)}
    yield
    os.environ.update(hidden)


@pytest.fixture
def target_folder(tmp_path: Path) -> Path:
    """Return a folder that passes for a target: configuration, tokenizer, weights."""
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.fixture
def draft_folder(tmp_path: Path) -> Path:
    """Return a folder that passes for a DFlash2 draft of seven trained positions."""
    folder = tmp_path / "draft"
    folder.mkdir()
    config = {"architectures": ["DFlash2DraftModel"], "block_size": 8, "vocab_size": 512}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.fixture
def workload_file(tmp_path: Path) -> Path:
    """Return a workload of three prompts."""
    path = tmp_path / "three.jsonl"
    prompts = ["def add(a, b):", "class Stack:", "import json"]
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    return path
