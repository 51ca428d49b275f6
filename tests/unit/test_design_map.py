"""The module map of docs/design.md names every module, in the place of its folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

PROJECT = Path(__file__).parents[2]
PACKAGES = ("orchestrator", "serve_apps", "infra")
CONTINUED = 20
"""Columns from which on a line goes on with what the last one says."""


def section() -> list[str]:
    text = (PROJECT / "docs" / "design.md").read_text(encoding="utf-8")
    found = text.partition("## 2. Layout\n")[2].partition("\n## 3.")[0]
    return [line for line in found.splitlines() if line.startswith("    ")]


def named(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the folder and the name of each module; a name may hold a star."""
    folders: list[tuple[int, str]] = []
    for line in lines:
        depth = len(line) - len(line.lstrip())
        if depth < CONTINUED:
            folders = [(its, name) for its, name in folders if its < depth]
            first = line.split()[0]
            if first.endswith("/"):
                folders.append((depth, first))
        place = "".join(name for _, name in folders)
        yield from ((place, name) for name in re.findall(r"[\w*]+\.py\b", line))


def modules() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        for path in (PROJECT / package).rglob("*.py"):
            if not path.name.startswith("__"):
                yield f"{path.parent.relative_to(PROJECT)}/", path.name


def missing(lines: list[str]) -> list[str]:
    known = set(named(lines))
    return sorted(
        place + name
        for place, name in modules()
        if not any(place == its and fnmatch(name, pattern) for its, pattern in known)
    )


def test_map_names_every_module() -> None:
    assert missing(section()) == []


def test_map_names_no_module_that_is_not_there() -> None:
    there = set(modules())
    gone = [
        place + pattern
        for place, pattern in named(section())
        if not any(place == its and fnmatch(name, pattern) for its, name in there)
        and not (PROJECT / place / pattern).is_file()
    ]
    assert gone == []


def test_module_of_another_folder_is_missed() -> None:
    lines = [line.replace("procfs.py            whose", "nothing") for line in section()]

    assert missing(lines) == ["serve_apps/engine/procfs.py"]
