"""The process that drives a build: which one it takes, and as what it shows it to vLLM."""

from __future__ import annotations

import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from serve_apps.audit import drive
from serve_apps.audit.drive import NotDrivableError, build_version, is_known, write_stand_in


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a package `vllm` without a version, which an import would find; return its folder."""
    folder = tmp_path / "vllm"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise ImportError('not to be imported')\n")
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    monkeypatch.setattr(drive, "NEEDED", ("vllm",))
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def state(package: Path, version: str) -> None:
    text = f"TYPE_CHECKING = False\n__version__ = version = '{version}'\n"
    (package / "_version.py").write_text(text)


def test_build_version_is_read_without_an_import(package: Path) -> None:
    state(package, "0.29.0+cpu")
    assert build_version() == "0.29.0+cpu"


def test_build_version_never_read_is_refused_unless_asked_for(package: Path) -> None:
    state(package, "0.34.0")
    with pytest.raises(NotDrivableError, match=r"vLLM 0\.34\.0 is none .* 0\.28 to 0\.33; --any-v"):
        build_version()
    assert build_version(any_version=True) == "0.34.0"


def test_build_version_that_is_not_stated_is_refused(package: Path) -> None:
    with pytest.raises(NotDrivableError, match="states no version"):
        build_version(any_version=True)
    (package / "_version.py").write_text("version = None\n")
    with pytest.raises(NotDrivableError, match="states no version"):
        build_version(any_version=True)


def test_build_version_names_the_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive, "NEEDED", ("json", "no_such_package"))
    with pytest.raises(NotDrivableError, match="has no no_such_package: install it there"):
        build_version()


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("0.27.9", False),
        ("0.28.0", True),
        ("0.33.1.dev7+gabc", True),
        ("0.34.0", False),
        ("0.280.0", False),
        ("1.30.0", False),
        ("dev", False),
    ],
)
def test_version_is_known_by_its_minor_version(version: str, known: bool) -> None:
    assert is_known(version) is known


def test_stand_in_is_a_cpu_build_with_a_triton_backend(tmp_path: Path) -> None:
    write_stand_in(tmp_path, "0.33.0+cu130")
    (found,) = distributions(path=[str(tmp_path)])
    assert (found.metadata["Name"], found.version) == ("vllm", "0.33.0+cpu")
    (entry,) = found.entry_points
    assert (entry.group, entry.name) == ("triton.backends", "cpu")
    assert entry.value == "serve_apps.cpu.triton_backend"
