"""Environments of the tools, one each, below .bench; made once."""

from __future__ import annotations

import shutil
from pathlib import Path

from infra.bench.load.tools import Tool
from infra.setup.install import STAMP, Installer, InstallError, stamp, up_to_date


def ensure(tool: Tool) -> str | None:
    """Make the tool's environment unless it is there; return why it cannot be had, or None."""
    if tool.requirement is None:
        return None
    wanted = stamp(tool.requirement, Path(__file__).read_text(encoding="utf-8"), str(tool.venv))
    if up_to_date(tool.venv, wanted):
        return None
    print(f"{tool.name}: making {tool.venv.parent.name}/{tool.venv.name} (once)", flush=True)
    shutil.rmtree(tool.venv, ignore_errors=True)
    tool.venv.parent.mkdir(exist_ok=True)
    try:
        _install(tool, tool.requirement)
    except InstallError as error:
        return str(error)
    (tool.venv / STAMP).write_text(wanted, encoding="utf-8")
    return None


def _install(tool: Tool, requirement: str) -> None:
    installer = Installer(tool.venv, num_steps=5 if tool.uses_torch else 3)
    installer.create()
    if tool.uses_torch:
        installer.torch()
    installer.pip(requirement, 120, requirement)
    if tool.uses_torch:
        installer.drop_unusable()
