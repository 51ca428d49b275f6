"""What studies left on this machine: dead boots, and folders below the state folder."""

from __future__ import annotations

import os
import re
import shutil
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.adapters.state import Folder
from orchestrator.adapters.study_file import StudyFile
from orchestrator.core.leftovers import Condition, Kind, Leftover
from orchestrator.errors import ConfigError
from serve_apps.engine import leftovers, procfs, record
from serve_apps.engine.leftovers import DeadBoot

FOLDERS = {Kind.AUDIT: Folder.AUDIT, Kind.TUNE: Folder.TUNE, Kind.STATE: Folder.STUDIES}
"""By kind: where its folders lie below the state folder."""
_STUDY = re.compile(r"[a-z0-9-]+-[0-9a-f]{8}-\d{8}-\d{6}(-\d+)?")
_TRIAL = re.compile(r"[0-9a-f]{8}(_\d{5})?")
OURS = {Kind.AUDIT: _TRIAL, Kind.TUNE: _STUDY, Kind.STATE: _STUDY}
"""By kind: the names that its folders are given. What is named otherwise is somebody else's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLeftovers:
    """What one machine has of studies."""

    machine: str
    """The same for two nodes of Ray that see the same processes and files."""
    found: tuple[Leftover, ...]
    conditions: Mapping[str, Condition]
    """Of the studies whose states lie here, by id."""
    unread: tuple[str, ...] = ()
    """What could not be looked at, each with the reason."""


def look(state: str) -> NodeLeftovers:
    """Return what this machine has of studies; changes nothing.

    Args:
        state: The state folder.
    """
    host, folder = socket.gethostname(), Path(state).absolute()
    owner = procfs.owner(os.getpid())
    unread = [
        f"{folder / name} is a link and is left alone, with what is behind it"
        for name in (Folder.BOOTS, *FOLDERS.values())
        if (folder / name).is_symlink()
    ]
    boots = [_of_boot(boot, host) for boot in _dead_boots(folder)]
    paths = {kind: _folders(kind, folder / name, unread) for kind, name in FOLDERS.items()}
    folders = [_of_folder(kind, path, host) for kind in paths for path in paths[kind]]
    return NodeLeftovers(
        machine=f"{host} {record.machine_boot()} {owner} {folder}",
        found=(*boots, *folders),
        conditions={path.name: condition(path) for path in paths[Kind.STATE]},
        unread=tuple(f"{host}: {text}" for text in unread),
    )


def remove(state: str, names: Mapping[Kind, Iterable[str]], asked: frozenset[str]) -> list[str]:
    """Remove things that ``look`` has named, if they still may be; return what stays and why.

    Args:
        state: The state folder.
        names: What to remove of each kind.
        asked: Studies whose state goes although it has no verdict.
    """
    folder, left = Path(state).absolute(), list[str]()
    wanted = set(names.get(Kind.BOOT, ()))
    for boot in _dead_boots(folder):
        if boot.boot_id in wanted:
            left += leftovers.end(boot, folder / Folder.BOOTS)
    for kind in FOLDERS:
        for name in filter(OURS[kind].fullmatch, names.get(kind, ())):
            path = folder / FOLDERS[kind] / name
            study = folder / FOLDERS[Kind.STATE] / name
            left += _remove_folder(path, study, needs_verdict=name not in asked)
    return left


def _dead_boots(folder: Path) -> list[DeadBoot]:
    boots = folder / Folder.BOOTS
    return [] if boots.is_symlink() else leftovers.find(boots)


def end_dead_boots(boots_dir: str) -> list[str]:
    """End what dead boots of trials left on this machine; return a sentence about each.

    Args:
        boots_dir: Folder of the records of boots.
    """
    said = []
    for boot in leftovers.find(Path(boots_dir)):
        left = leftovers.end(boot, Path(boots_dir))
        end = f"is left: {'; '.join(left)}" if left else "is gone"
        said.append(f"boot {boot.boot_id} of {boot.trial} on {socket.gethostname()} {end}")
    return said


def condition(folder: Path) -> Condition:
    """Return how far the study of a folder is; looks at it without holding it longer."""
    try:
        with StudyFile(folder.name, lambda _text: None, folder=folder) as file:
            if not file.is_held:
                return Condition.UNREADABLE
            return _condition_held(file)
    except ConfigError as error:
        is_held = isinstance(error.__cause__, BlockingIOError)
        return Condition.RUNNING if is_held else Condition.UNREADABLE


def _condition_held(file: StudyFile) -> Condition:
    try:
        has_verdict = file.read().get("has_verdict")
    except ConfigError:
        return Condition.UNREADABLE
    return Condition.ENDED if has_verdict is True else Condition.UNFINISHED


def _remove_folder(path: Path, study: Path, *, needs_verdict: bool) -> list[str]:
    """Remove a folder while its study, if there is one, is held, so that no driver begins."""
    try:
        with StudyFile(study.name, lambda _text: None, folder=study) as file:
            if file.is_held and needs_verdict and _condition_held(file) is not Condition.ENDED:
                return [f"{path}: its study has no verdict"]
            _remove_below(path)
    except ConfigError as error:
        return [f"{path}: {error.problem}"]
    except FileNotFoundError:
        return []
    except OSError as error:
        return [f"{path} cannot be removed: {error.strerror}"]
    return []


def _remove_below(path: Path) -> None:
    """Remove a folder from its place, and nothing where that has become a link to elsewhere.

    Raises:
        OSError: The place is a link, or something stays.
    """
    place = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        shutil.rmtree(path.name, dir_fd=place)
    finally:
        os.close(place)


def _folders(kind: Kind, place: Path, unread: list[str]) -> list[Path]:
    """Return the folders of a kind in its place; not links, which lead elsewhere."""
    if place.is_symlink():
        return []
    try:
        entries = sorted(os.scandir(place), key=lambda entry: entry.name)
        return [
            Path(entry.path)
            for entry in entries
            if OURS[kind].fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        ]
    except FileNotFoundError:
        return []
    except OSError as error:
        unread.append(f"{place} cannot be read: {error.strerror}")
        return []


def _of_boot(boot: DeadBoot, host: str) -> Leftover:
    port = [] if boot.port is None else [f"port {boot.port}"]
    files = [path for path, _ in boot.segments] + ([boot.folder] if boot.folder else [])
    parts = [text for _, text in boot.processes] + port + files
    return Leftover(
        kind=Kind.BOOT,
        name=boot.boot_id,
        node=host,
        study_id=boot.study_id,
        detail="; ".join(parts) or "its record",
        size_bytes=sum(size for _, size in boot.segments),
        age_s=boot.age_s,
    )


def _of_folder(kind: Kind, path: Path, host: str) -> Leftover:
    return Leftover(
        kind=kind,
        name=path.name,
        node=host,
        study_id=None if kind is Kind.AUDIT else path.name,
        detail=str(path),
        size_bytes=_size(path),
        age_s=_age_s(path),
    )


def _age_s(path: Path) -> float | None:
    """Return how long ago a folder was changed; None when it has gone meanwhile."""
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except OSError:
        return None


def _size(folder: Path) -> int:
    size = 0
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                size += (Path(base) / name).lstat().st_size
            except OSError:
                continue
    return size
