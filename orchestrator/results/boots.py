"""Rows to boots: which rows were one boot of one arm, and which replicate it is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from orchestrator.core.lines import first_of
from orchestrator.core.scaling import check_scaling
from orchestrator.core.types import Arm, Boot, BootStatus, Cell
from orchestrator.results.observation import Observation

RunsAre = Literal["blocks", "boots"]
"""What rows that name no boot are taken as: repeats in one boot, or a boot each."""
UNKNOWN_NODE = "unknown"
_MOST_DIGITS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBoot:
    """The rows of one boot of one arm."""

    arm: Arm
    name: str
    is_stated: bool
    """Whether the rows name their boot."""
    rows: tuple[Observation, ...]

    def seconds_per_token(self, cell: Cell) -> float | None:
        """Return the mean seconds per output token of one stream over the rows of a cell.

        None without a row of the cell that has a throughput. Rows are means of their runs.
        """
        values = [
            value
            for row in self.rows
            if row.cell == cell and row.is_valid and (value := row.seconds_per_token) is not None
        ]
        return sum(values) / len(values) if values else None

    def objective(self, weights: Mapping[Cell, float]) -> float | None:
        """Return the weighted mean over the cells; None when a weighted cell is missing."""
        total = 0.0
        for cell, weight in weights.items():
            value = self.seconds_per_token(cell)
            if weight > 0 and value is None:
                return None
            total += weight * (value or 0.0)
        return total


def apart_by_node(
    observations: Sequence[Observation],
) -> tuple[tuple[Observation, ...], tuple[str, ...]]:
    """Return the rows with boots of one name on several nodes named apart, and a sentence each.

    A boot runs on one node. A row without a node is taken to the first node of its boot's name.
    """
    nodes: dict[tuple[Arm, str | None], dict[str, None]] = {}
    for item in observations:
        if item.boot is not None and item.node is not None:
            nodes.setdefault((item.arm, item.boot), {})[item.node] = None
    several = {key: list(found) for key, found in nodes.items() if len(found) > 1}
    rows = tuple(
        replace(item, boot=f"{item.boot} on {item.node or several[item.arm, item.boot][0]}")
        if (item.arm, item.boot) in several
        else item
        for item in observations
    )
    return rows, tuple(
        f"boot {boot} of {arm.label} is on {' and '.join(found)}: a boot runs on one node, so they "
        f"are {len(found)} boots; correct the node if they are one"
        for (arm, boot), found in several.items()
    )


def in_several_files(
    files: Sequence[tuple[Path, Sequence[Observation]]],
) -> tuple[str, ...]:
    """Return a sentence for the boots that have rows in several files and are taken as one each."""
    named, _ = apart_by_node([item for _, rows in files for item in rows])
    paths_of_rows = [path for path, rows in files for _ in rows]
    places: dict[tuple[Arm, str], dict[Path, None]] = {}
    for path, item in zip(paths_of_rows, named, strict=True):
        if item.boot is not None:
            places.setdefault((item.arm, item.boot), {})[path] = None
    shared: dict[tuple[Path, ...], list[str]] = {}
    for (arm, boot), paths in places.items():
        if len(paths) > 1:
            shared.setdefault(tuple(paths), []).append(f"{boot} of {arm.label}")
    return tuple(
        f"{' and '.join(map(str, paths))} have rows of {first_of(names)}: boots of one name are "
        "one boot; name them apart if they are not"
        for paths, names in shared.items()
    )


def row_boots(observations: Sequence[Observation], runs_are: RunsAre) -> tuple[RowBoot, ...]:
    """Return the boots, by arm and then by name, numbers in names as numbers.

    Not in the order of the rows: which boot is the first, by which its arm was picked, and so the
    verdict, would hang on how a file is sorted. Boots without a name are in the order of the rows.

    Rows that name no boot are one boot of their arm; with ``boots`` the k-th such row of each cell
    belongs to the arm's k-th boot.
    """
    groups: dict[tuple[Arm, str, bool], list[Observation]] = {}
    seen: dict[tuple[Arm, Cell], int] = {}
    for item in observations:
        name = item.boot
        if name is None:
            place = (item.arm, item.cell)
            number = seen.get(place, 0)
            seen[place] = number + 1
            name = f"run {number + 1}" if runs_are == "boots" else "not stated"
        groups.setdefault((item.arm, name, item.boot is not None), []).append(item)
    return tuple(
        RowBoot(arm=arm, name=name, is_stated=stated, rows=tuple(rows))
        for (arm, name, stated), rows in sorted(groups.items(), key=lambda item: _order(*item[0]))
    )


def _order(arm: Arm, name: str, is_stated: bool) -> tuple[Arm, bool, list[tuple[str, int]], str]:
    if not is_stated:
        return arm, False, [], ""
    parts = re.findall(r"([^0-9]*)([0-9]*)", name)
    return arm, True, [(text, int(digits[:_MOST_DIGITS] or 0)) for text, digits in parts], name


def core_boots(boots: Sequence[RowBoot]) -> tuple[Boot, ...]:
    """Return the core's records of boots, replicates in row order; rows need their blocks."""
    counts: dict[Arm, int] = {}
    found: list[Boot] = []
    for boot in boots:
        replicate = counts.get(boot.arm, 0)
        counts[boot.arm] = replicate + 1
        named = boot.name.startswith(boot.arm.key)
        trial_id = boot.name if named else f"{boot.arm.key}/{boot.name}"
        blocks = tuple(
            replace(
                row.block,
                boot_id=trial_id,
                index=index,
                block_id=f"{trial_id}/{row.cell.key}/{index}",
            )
            for index, row in enumerate(row for row in boot.rows if row.block is not None)
            if row.block is not None
        )
        found.append(
            Boot(
                trial_id=trial_id,
                arm=boot.arm,
                replicate=replicate,
                node_id=next((row.node for row in boot.rows if row.node), UNKNOWN_NODE),
                status=BootStatus.OK,
                reason="",
                facts=next((row.facts for row in boot.rows if row.facts is not None), None),
                blocks=check_scaling(blocks),
            )
        )
    return tuple(found)
