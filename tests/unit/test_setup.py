"""The installer's decisions; nothing is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from infra.setup import install


class NoInstaller:
    """Stands where an installation would begin."""

    def __init__(self, venv: Path, num_steps: int) -> None:  # noqa: ARG002  the shape of Installer
        raise install.InstallError(f"would make {venv.name}")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    monkeypatch.setattr(install, "PROJECT", tmp_path)
    monkeypatch.setattr(install, "Installer", NoInstaller)
    return tmp_path


def finish(venv: Path, stamp: str) -> None:
    """Make the folder look like an environment that an earlier call made."""
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").touch()
    (venv / install.STAMP).write_text(stamp)


def call(monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    monkeypatch.setattr(sys, "argv", ["install.py", *args])
    return install.main()


@pytest.mark.parametrize("version", [(3, 10), (3, 12), (3, 13)])
def test_other_python_is_refused_before_anything_is_made(
    version: tuple[int, int],
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "version_info", (*version, 0, "final", 0))

    assert call(monkeypatch, "project") == 2
    assert "Python 3.11 is needed" in capsys.readouterr().out
    assert not (project / ".venv").exists()


@pytest.mark.parametrize("args", [(), ("engine",), ("none",), ("project", "more")])
def test_call_that_it_does_not_know_shows_how(
    args: tuple[str, ...],
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(monkeypatch, *args) == 2
    assert "install.py engine 0.28.0" in capsys.readouterr().out


def test_failed_step_is_one_error_and_status_1(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "project") == 1
    assert "error: would make .venv" in capsys.readouterr().out


def test_environment_that_is_up_to_date_is_left_alone(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    venv = project / ".venv"
    finish(venv, install.project_stamp(venv))

    # A setting of a tool is no reason to install anything.
    with (project / "pyproject.toml").open("a") as file:
        file.write("[tool.ruff]\nline-length = 90\n")

    assert call(monkeypatch, "project") == 0
    assert "up to date" in capsys.readouterr().out


def test_changed_requirements_make_it_anew(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    venv = project / ".venv"
    finish(venv, install.project_stamp(venv))
    (project / "pyproject.toml").write_text("[project]\ndependencies = []\n")

    assert call(monkeypatch, "project") == 1
    assert "would make .venv" in capsys.readouterr().out
    assert not venv.exists(), "a half-known environment is not built upon"


def test_interrupted_installation_has_no_stamp_and_is_made_anew(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv = project / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").touch()

    assert call(monkeypatch, "project") == 1


def test_environment_without_its_interpreter_is_not_up_to_date(tmp_path: Path) -> None:
    finish(tmp_path, "wanted")
    assert install.up_to_date(tmp_path, "wanted")
    assert not install.up_to_date(tmp_path, "other")

    (tmp_path / "bin" / "python").unlink()
    assert not install.up_to_date(tmp_path, "wanted")


def test_engine_build_has_a_folder_and_a_stamp_of_its_own(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    venv = project / ".engines" / "0.28.0"
    finish(venv, install.stamp("0.28.0", Path(install.__file__).read_text(), str(venv)))

    assert call(monkeypatch, "engine", "0.28.0") == 0
    assert call(monkeypatch, "engine", "0.29.0") == 1
    assert "would make 0.29.0" in capsys.readouterr().out


def test_stamp_tells_its_parts_apart() -> None:
    assert install.stamp("ab", "c") != install.stamp("a", "bc")
