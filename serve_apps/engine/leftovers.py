"""What dead boots of trials left on this machine, and its end; nothing else is touched.

A boot is dead when the process that answers for it, its supervisor, is gone. Processes are a
boot's by the marks in their environment (``MARKS``), never by a name; production's engines carry
no mark of a trial, and those of another installation name another folder of records.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from serve_apps.engine import procfs, record, segments
from serve_apps.engine.sockets import is_port_free
from serve_apps.engine.spec import (
    BOOT_ID_VARIABLE,
    BOOTS_DIR_VARIABLE,
    SUPERVISOR_VARIABLE,
    TRIAL_VARIABLE,
    trial_mark,
)

MARKS = frozenset({BOOT_ID_VARIABLE, TRIAL_VARIABLE, SUPERVISOR_VARIABLE, BOOTS_DIR_VARIABLE})
_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One running process, as /proc tells it."""

    identity: str
    """"pid:start"; see ``procfs.identity``."""
    parent: int
    owner: tuple[int, str] | None
    """User and process id namespace; None where they are not told."""
    marks: Mapping[str, str]
    """What it carries of ``MARKS``."""

    @property
    def pid(self) -> int:
        """Its id, which another process may have later."""
        return int(self.identity.partition(":")[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadBoot:
    """What a boot left whose supervisor is gone."""

    boot_id: str
    trial: str
    """"<study id>/<application>"."""
    processes: tuple[tuple[str, str], ...] = ()
    """Identity and command line of each."""
    port: int | None = None
    """Of its engine, while one of its processes may hold it."""
    segments: tuple[tuple[str, int], ...] = ()
    """Path and bytes of its shared memory."""
    folder: str | None = None
    """Of its sockets, if that is there."""
    record: str | None = None
    """File of its record."""
    age_s: float | None = None
    """Since its record was written."""

    @property
    def study_id(self) -> str:
        """The study that the trial was one of."""
        return self.trial.partition("/")[0]


def dead_processes(
    running: Iterable[Process], owner: tuple[int, str] | None, boots_dir: Path
) -> dict[tuple[str, str], list[Process]]:
    """Return the processes of dead boots of trials, by boot id and trial.

    A process belongs to one by its own marks, or, without any mark of ours, by a parent that does.
    It is in question only if it has the given user and process id namespace: in another namespace
    its supervisor has another id than its mark says.

    Args:
        running: All running processes.
        owner: Of the one that asks; None finds nothing.
        boots_dir: Folder of the records of boots.
    """
    processes = {process.pid: process for process in running}
    alive = {process.identity for process in processes.values()}
    boots: dict[int, tuple[str, str]] = {}
    for pid, process in processes.items():
        boot = _boot_of(process, boots_dir)
        is_mine = owner is not None and process.owner == owner
        if is_mine and boot is not None and process.marks[SUPERVISOR_VARIABLE] not in alive:
            boots[pid] = boot
    grew = bool(boots)
    while grew:
        children = {
            pid: boots[process.parent]
            for pid, process in processes.items()
            if pid not in boots
            and process.parent in boots
            and not process.marks
            and process.owner == owner
        }
        boots |= children
        grew = bool(children)
    found: dict[tuple[str, str], list[Process]] = {}
    for pid, boot in sorted(boots.items()):
        found.setdefault(boot, []).append(processes[pid])
    return found


def _boot_of(process: Process, boots_dir: Path) -> tuple[str, str] | None:
    marks = process.marks
    boot_id, trial = marks.get(BOOT_ID_VARIABLE), marks.get(TRIAL_VARIABLE)
    supervisor = marks.get(SUPERVISOR_VARIABLE, "").split(":")
    is_said = len(supervisor) == 2 and all(text.isdecimal() for text in supervisor)
    is_ours = marks.get(BOOTS_DIR_VARIABLE) == str(boots_dir)
    return (boot_id, trial) if boot_id and trial and is_said and is_ours else None


def _running() -> Iterator[Process]:
    for pid in procfs.pids():
        identity, parent = procfs.identity(pid), procfs.parent(pid)
        owner, ours = procfs.owner(pid), procfs.marks(pid)
        marks = {name: value for name, value in ours.items() if name in MARKS}
        # Read again: the id may have gone to another process while the rest was read.
        if identity is not None and parent is not None and procfs.identity(pid) == identity:
            yield Process(identity=identity, parent=parent, owner=owner, marks=marks)


def find(boots_dir: Path, *, trial: str | None = None) -> list[DeadBoot]:
    """Return what dead boots of trials left on this machine, the oldest record first.

    Args:
        boots_dir: Folder of the records of boots.
        trial: Only of this one.
    """
    me = procfs.owner(os.getpid())
    processes = dead_processes(_running(), me, boots_dir)
    found = []
    for file in record.files(boots_dir):
        boot = record.read(file)
        if boot is not None and _is_dead(boot, me):
            left = processes.pop((boot.boot_id, boot.trial), [])
            found.append(_dead_boot(boot, file, left))
    boots = sorted(found, key=lambda boot: -(boot.age_s or 0.0))
    for (boot_id, its_trial), left in processes.items():
        boots.append(DeadBoot(boot_id=boot_id, trial=its_trial, processes=_described(left)))
    return [boot for boot in boots if trial is None or boot.trial == trial]


def _is_dead(boot: record.BootRecord, me: tuple[int, str] | None) -> bool:
    if me is None or boot.user != me[0]:
        return False
    if boot.machine_boot != record.machine_boot():
        return True
    if boot.pid_namespace != me[1]:
        return False
    pid = boot.supervisor.partition(":")[0]
    return pid.isdecimal() and procfs.identity(int(pid)) != boot.supervisor


def _dead_boot(boot: record.BootRecord, file: Path, left: list[Process]) -> DeadBoot:
    own: dict[segments.Key, str] = {}
    if boot.machine_boot == record.machine_boot():
        own = segments.read_kept(segments.segments_file(file))
    now = segments.listing()
    return DeadBoot(
        boot_id=boot.boot_id,
        trial=boot.trial,
        processes=_described(left),
        port=boot.port if left and not is_port_free(boot.port) else None,
        segments=tuple(
            (str(segments.SHM / name), segments.size(name))
            for key, name in sorted(own.items())
            if now.get(key) == name
        ),
        folder=boot.folder if _is_sockets_of(boot) else None,
        record=str(file),
        age_s=_age_s(file),
    )


def _age_s(file: Path) -> float | None:
    try:
        return max(0.0, time.time() - file.stat().st_mtime)
    except OSError:  # somebody else has ended the boot meanwhile
        return None


def _is_sockets_of(boot: record.BootRecord) -> bool:
    """Return whether the folder that a record names is one of its boot's sockets."""
    folder = Path(boot.folder)
    try:
        status = folder.lstat()
    except OSError:
        return False
    is_named = folder.is_absolute() and folder.name.startswith(f"specpilot-{boot.boot_id}-")
    return is_named and stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _described(left: list[Process]) -> tuple[tuple[str, str], ...]:
    return tuple((process.identity, procfs.describe(process.pid)) for process in left)


def end(boot: DeadBoot, boots_dir: Path, *, grace_s: float = 5.0) -> list[str]:
    """End the processes of a dead boot, and remove what it left.

    What it left is looked up again, since its guard may be at it.

    Args:
        boot: Of ``find``.
        boots_dir: Folder of the records of boots.
        grace_s: From SIGTERM to SIGKILL.

    Returns:
        What stays, with the reason.
    """

    def left() -> list[str]:
        found = dead_processes(_running(), procfs.owner(os.getpid()), boots_dir)
        return [process.identity for process in found.get((boot.boot_id, boot.trial), [])]

    survivors = procfs.end_all(left, grace_s=grace_s)
    if survivors:
        return [f"survived SIGKILL: {text}" for text in survivors]
    again = [it for it in find(boots_dir, trial=boot.trial) if it.boot_id == boot.boot_id]
    return [text for it in again if it.record for text in _clear(it, it.record)]


def _clear(boot: DeadBoot, file: str) -> list[str]:
    own = segments.read_kept(segments.segments_file(file)) if boot.segments else {}
    return segments.clear(boot.folder or "", own, file)


def end_trial(trial: str, boots_dir: Path, *, wait_s: float, grace_s: float = 5.0) -> list[str]:
    """Wait until nothing of a trial runs on this machine any more, then remove what it left.

    Its guards end what they guard; what is left after that time is ended here.

    Args:
        trial: "<study id>/<application>", whose application is gone.
        boots_dir: Folder of the records of boots.
        wait_s: How long guards may take.
        grace_s: From SIGTERM to SIGKILL.

    Returns:
        What stays, with the reason.
    """
    deadline = time.monotonic() + wait_s
    while procfs.members(None, trial_mark(trial)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    survivors = procfs.end(None, trial_mark(trial), grace_s=grace_s)
    left = [f"survived SIGKILL: {text}" for text in survivors]
    for boot in find(boots_dir, trial=trial):
        left += end(boot, boots_dir, grace_s=grace_s)
    return left
