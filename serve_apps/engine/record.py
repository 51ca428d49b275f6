"""What is written of a trial's boot when it starts, by which others find what it left."""

from __future__ import annotations

import json
import logging
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from serve_apps.engine import procfs, segments
from serve_apps.engine.spec import EngineSpec

logger = logging.getLogger(__name__)

_MACHINE_BOOT = Path("/proc/sys/kernel/random/boot_id")
_SUFFIX = ".json"
_IDENTITY = re.compile(r"\d{1,10}:\d{1,20}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BootRecord:
    """One boot of an engine on this machine."""

    boot_id: str
    trial: str
    """"<study id>/<application>"."""
    supervisor: str
    """``procfs.identity`` of the process that answers for it."""
    machine_boot: str
    """Of the machine: identities and shared memory do not outlive it."""
    user: int
    pid_namespace: str
    folder: str
    """Of its sockets."""
    port: int


def machine_boot() -> str:
    """Return the kernel's id of the machine's current boot; empty where it tells none."""
    try:
        return _MACHINE_BOOT.read_text().strip()
    except OSError:
        return ""


def begin(spec: EngineSpec, boot_id: str, *, folder: str, port: int) -> tuple[str, str]:
    """Write the record of a trial's boot, for which this process answers.

    A record that cannot be written, as on a full disk, costs no boot: it is found by its processes.

    Returns:
        The identity of this process, and the record's file or nothing.
    """
    me = os.getpid()
    identity, owner = procfs.identity(me), procfs.owner(me)
    assert identity is not None
    assert owner is not None
    if spec.boots_dir is None or spec.trial is None:
        return identity, ""
    boot = BootRecord(
        boot_id=boot_id,
        trial=spec.trial,
        supervisor=identity,
        machine_boot=machine_boot(),
        user=owner[0],
        pid_namespace=owner[1],
        folder=folder,
        port=port,
    )
    try:
        return identity, write(spec.boots_dir, boot)
    except OSError as error:
        logger.warning("boot %s has no record: %s", boot_id, error)
        return identity, ""


def write(boots_dir: str, boot: BootRecord) -> str:
    """Write a boot's record and return its file.

    Raises:
        OSError: It cannot be written.
    """
    file = Path(boots_dir) / f"{boot.boot_id}{_SUFFIX}"
    file.parent.mkdir(parents=True, exist_ok=True)
    segments.write_whole(file, json.dumps(asdict(boot)) + "\n")
    return str(file)


def read(file: Path) -> BootRecord | None:
    """Return a record, or None when the file holds none or is gone."""
    try:
        data = json.loads(file.read_text())
        boot = BootRecord(**data)
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    texts = (boot.boot_id, boot.trial, boot.supervisor)
    is_whole = (
        all(isinstance(text, str) for text in texts)
        and all(isinstance(text, str) for text in (boot.machine_boot, boot.pid_namespace))
        and isinstance(boot.folder, str)
        and isinstance(boot.user, int)
        and isinstance(boot.port, int)
        and _IDENTITY.fullmatch(boot.supervisor) is not None
        and "\0" not in boot.folder
        and file.name == f"{boot.boot_id}{_SUFFIX}"
    )
    return boot if is_whole else None


def files(boots_dir: Path) -> list[Path]:
    """Return the files of all records in a folder."""
    return sorted(boots_dir.glob(f"*{_SUFFIX}"))
