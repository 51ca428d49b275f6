"""What the CPU execution does outside an interpreted process: nothing, or refuse."""

import importlib.metadata
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from serve_apps.cpu import environment, launch

ROOT = Path(__file__).resolve().parents[2]


def test_environment_names_an_interpreted_single_process_engine() -> None:
    chosen = environment()
    assert chosen["TRITON_INTERPRET"] == "1"
    assert chosen["OMP_NUM_THREADS"] == "1"
    assert chosen["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert all(isinstance(value, str) for value in chosen.values())
    chosen.clear()
    assert environment()


def test_environment_leaves_kv_size_to_the_flag_when_asked() -> None:
    assert "VLLM_CPU_KVCACHE_SPACE" not in environment(kv_cache_gib=None)


def test_alias_metadata_keeps_everything_but_name_and_local_version() -> None:
    text = "Metadata-Version: 2.4\nName: vllm-cpu\nVersion: 0.32.0\nProvides-Extra: bench\n"
    renamed = launch.alias_metadata(text, "0.32.0")
    assert renamed.splitlines() == [
        "Metadata-Version: 2.4",
        "Name: vllm",
        "Version: 0.32.0+cpu",
        "Provides-Extra: bench",
    ]


def test_alias_directory_is_none_beside_a_genuine_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: "0.33.0")
    assert launch.alias_directory() is None


def test_alias_directory_holds_a_distribution_that_importlib_finds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Stub:
        version = "0.28.0"

        def read_text(self, name: str) -> str | None:
            assert name == "METADATA"
            return "Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.28.0\n"

    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    with monkeypatch.context() as patch:
        patch.setattr(importlib.metadata, "version", absent)
        patch.setattr(importlib.metadata, "distribution", lambda _name: Stub())
        patch.setattr(launch, "missing_entry_points", lambda: "[vllm.general_plugins]\na = b:c\n")
        patch.setattr(launch.tempfile, "gettempdir", lambda: str(tmp_path))
        directory = launch.alias_directory()
        assert directory == launch.alias_directory()
    assert directory is not None
    found = list(importlib.metadata.distributions(path=[str(directory)]))
    assert [(item.metadata["Name"], item.version) for item in found] == [("vllm", "0.28.0+cpu")]
    assert [entry.value for entry in found[0].entry_points] == ["b:c"]


def test_entry_points_of_the_launcher_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert project == launch._ENTRY_POINTS


@pytest.mark.timeout(120)
def test_plugin_without_interpreter_imports_nothing_heavy() -> None:
    code = (
        "import sys, json; from serve_apps.cpu.plugin import register; register();"
        "print(json.dumps([m for m in ('torch', 'triton', 'vllm', 'numpy') if m in sys.modules]))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], env={"PATH": ""}, capture_output=True, text=True, check=True
    )
    assert json.loads(run.stdout) == []
