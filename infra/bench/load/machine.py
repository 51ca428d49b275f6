"""The machine and the versions that a run was made with; no names of hosts, no paths."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from infra.bench.load.tools import Tool


def cpu_model(cpuinfo: str) -> str | None:
    """Return the processor's name from the text of /proc/cpuinfo; None where it has none."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return " ".join(value.split())
    return None


def machine_lines(
    tools: Sequence[Tool], *, num_rounds: int, load_before: float, load_after: float
) -> list[str]:
    """Return the conditions of a run as a Markdown list.

    Args:
        tools: Those that ran.
        num_rounds: Runs of each tool in each cell.
        load_before: Load average of the minute before the start.
        load_after: Of the last five minutes of the run.
    """
    info = Path("/proc/cpuinfo")
    model = cpu_model(info.read_text(encoding="utf-8")) if info.exists() else None
    wheels = [tool.requirement.replace("==", " ") for tool in tools if tool.requirement]
    own = ", ".join((f"aiohttp {version('aiohttp')}", *wheels))
    rounds = "1 round" if num_rounds == 1 else f"median of {num_rounds} rounds"
    return [
        f"- {datetime.now(tz=UTC):%Y-%m-%d}, {rounds}, tools in another order in each cell",
        f"- {os.cpu_count()} cores, {model or 'processor unknown'}, {platform.system()}",
        f"- Python {platform.python_version()}; {own}",
        f"- load average before the start {load_before:.2f}, in the last five minutes of the run "
        f"{load_after:.2f}; over about 1.5 on two cores, times are those of a busy machine",
    ]
