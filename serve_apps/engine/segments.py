"""Shared memory of a boot: which files in /dev/shm are its own, and their removal.

vLLM makes them under names of Python's choice (``psm_*`` of ``SharedMemory``) or its own
(``vllm_offload_*``, ``vllm_ec_*``, ``vllm_engram_*``), none of which says whose it is, and a
killed engine leaves them. A file is a boot's own when it appeared while the boot lived and a
process of the boot was seen to have it open or mapped. Standard library only (the guard uses it).
"""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from serve_apps.engine import procfs

SHM = Path("/dev/shm")
_PROC = Path("/proc")

NOTE = "specpilot guard: left behind: "
"""What a guard's lines on leftovers begin with in the engine's log; they are not the engine's."""
_MAX_LOOKS = 10
"""For the same unknown files, which are somebody else's by then."""

Key = tuple[int, int]
"""Device and inode."""


def listing() -> dict[Key, str]:
    """Return the name of each of this user's shared files."""
    found = {}
    try:
        entries = list(os.scandir(SHM))
    except OSError:
        return {}
    for entry in entries:
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
            found[status.st_dev, status.st_ino] = entry.name
    return found


def size(name: str) -> int:
    """Return the bytes that a shared file takes; 0 when it is gone."""
    try:
        return (SHM / name).stat().st_blocks * 512
    except OSError:
        return 0


def held(pid: int) -> set[Key] | None:
    """Return the shared files that a process has open or mapped; None when it cannot be told."""
    folder = _PROC / str(pid)
    try:
        found = _mapped((folder / "maps").read_text(errors="replace"))
        for entry in os.listdir(folder / "fd"):  # noqa: PTH208 -- names only, as in procfs
            try:
                status = os.stat(folder / "fd" / entry)  # noqa: PTH116 -- follows to the file
            except OSError:
                continue
            found.add((status.st_dev, status.st_ino))
    except FileNotFoundError:
        return set()
    except OSError as error:
        return set() if isinstance(error, ProcessLookupError) else None
    return found


def _mapped(maps: str) -> set[Key]:
    found = set()
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) > 4 and fields[4] != "0":
            major, _, minor = fields[3].partition(":")
            found.add((os.makedev(int(major, 16), int(minor, 16)), int(fields[4])))
    return found


class Watch:
    """Remembers, while a boot lives, which shared files are its own.

    Args:
        file: Where that is kept for whoever comes after this process; None keeps it nowhere.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._before = set(listing())
        self._unknown: set[Key] = set()
        self._num_looks = 0
        self.own: dict[Key, str] = {}
        """Name by file."""

    def look(self, group: int, mark: str, *, finally_: bool = False) -> None:
        """See whose the files are that appeared.

        Processes are looked into only when a file is there whose owner is not known, and only a few
        times for the same files: reading its maps makes a process wait.

        Args:
            group: The boot's process group.
            mark: The boot's mark.
            finally_: Whether the boot is about to be ended: look in any case.
        """
        now = listing()
        unknown = {k: n for k, n in now.items() if k not in self._before and k not in self.own}
        if unknown.keys() - self._unknown:
            self._num_looks = 0
        self._unknown = set(unknown)
        if not unknown or (self._num_looks >= _MAX_LOOKS and not finally_):
            return
        self._num_looks += 1
        theirs: set[Key] = set()
        for pid in procfs.members(group, mark):
            theirs |= held(pid) or set()
        found = {key: name for key, name in unknown.items() if key in theirs}
        if found:
            self.own |= found
            self._keep()

    def unattributed(self) -> list[str]:
        """Return the files that appeared meanwhile, that nobody has now and nobody was seen to."""
        now = listing()
        new = {k: n for k, n in now.items() if k not in self._before and k not in self.own}
        taken = holders(new)
        return sorted(name for key, name in new.items() if not taken.get(key))

    def _keep(self) -> None:
        if self._file is not None:
            lines = [f"{key[0]} {key[1]} {name}\n" for key, name in sorted(self.own.items())]
            try:
                write_whole(self._file, "".join(lines))
            except OSError:  # on a full disk the guard's own memory still has them
                return


def write_whole(file: Path, text: str) -> None:
    """Put a text into a file so that a reader, or one after a kill, finds all of it or none.

    Raises:
        OSError: It cannot be written.
    """
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.replace(file)


def read_kept(file: Path) -> dict[Key, str]:
    """Return what a ``Watch`` has kept; empty when it has kept nothing."""
    found = {}
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return {}
    for line in lines:
        device, _, rest = line.partition(" ")
        inode, _, name = rest.partition(" ")
        if device.isdecimal() and inode.isdecimal() and name and "/" not in name:
            found[int(device), int(inode)] = name
    return found


def holders(files: Iterable[Key]) -> dict[Key, list[str]]:
    """Return who has each of the files open or mapped now.

    A process of another user cannot be looked into; it counts for a file that its mode opens to
    other users.
    """
    wanted = set(files)
    found: dict[Key, list[str]] = {key: [] for key in wanted}
    if not wanted:
        return found
    open_to_all = _open_to_all(wanted)
    for pid in procfs.pids():
        theirs = held(pid)
        hidden = open_to_all if theirs is None and _is_other_user(pid) else set()
        for key in wanted & (hidden if theirs is None else theirs):
            found[key].append(procfs.describe(pid))
    return found


def _is_other_user(pid: int) -> bool:
    try:
        return (_PROC / str(pid)).stat().st_uid not in (0, os.geteuid())
    except OSError:
        return False


def _open_to_all(keys: set[Key]) -> set[Key]:
    found = set()
    for key, name in listing().items():
        if key in keys:
            try:
                mode = (SHM / name).stat().st_mode
            except OSError:
                continue
            if mode & 0o066:
                found.add(key)
    return found


def remove(own: dict[Key, str]) -> list[str]:
    """Remove files of a boot whose processes have ended.

    Args:
        own: Name by file. A file of that name that is another one by now is not removed.

    Returns:
        What stays, with the reason.
    """
    now = listing()
    there = {key: name for key, name in own.items() if now.get(key) == name}
    kept = []
    for key, users in holders(there).items():
        path = SHM / there[key]
        if users:
            kept.append(f"{path} is in use by {', '.join(users)}")
            continue
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            kept.append(f"{path} cannot be removed: {error.strerror}")
    return kept


def segments_file(file: str | Path) -> Path:
    """Return the file beside a record in which the boot's shared memory is kept."""
    return Path(file).with_suffix(".shm")


def remove_folder(folder: str) -> None:
    """Remove a boot's folder with whatever lies in it; what cannot be removed stays."""
    import shutil  # noqa: PLC0415  half of the guard's start, for its end

    shutil.rmtree(folder, ignore_errors=True)


def clear(folder: str, own: dict[Key, str], file: str | Path, *, keep: bool = False) -> list[str]:
    """Remove what a boot without processes left, and last its record.

    Args:
        folder: Of its sockets, or nothing.
        own: Its shared memory.
        file: Its record, or nothing.
        keep: Whether something else of it is left, so that its record must stay.

    Returns:
        What stays, with the reason; then the record stays, too.
    """
    left = remove(own)
    if folder:
        remove_folder(folder)
    if folder and Path(folder).exists():
        left.append(f"the folder {folder} cannot be removed")
    if file and not left and not keep:
        try:
            segments_file(file).unlink(missing_ok=True)
            Path(file).unlink(missing_ok=True)
        except OSError as error:
            left.append(f"the record {file} cannot be removed: {error.strerror}")
    return left


def clear_kept(folder: str, file: str | Path) -> list[str]:
    """Do the same from what the boot's ``Watch`` has kept, when that is gone; see ``clear``."""
    return clear(folder, read_kept(segments_file(file)) if file else {}, file)
