"""A small file system of its own for one folder, which can be full for a while."""

from __future__ import annotations

import errno
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

SIZE_MIB = 256
_PIECE = bytes(1 << 20)


@dataclass(frozen=True, slots=True)
class SmallDisk:
    """A file system in memory, mounted on a folder; needs root and ``mount``.

    What lies in it is gone with it.

    Args:
        folder: Where it is mounted.
    """

    folder: Path

    def make(self) -> None:
        """Mount it; the folder is made.

        Raises:
            OSError: There is no ``mount``, or this is not root.
            subprocess.CalledProcessError: This user may not.
        """
        if os.geteuid() != 0:
            raise PermissionError("a file system of its own needs root")
        self.folder.mkdir(parents=True, exist_ok=True)
        size = f"size={SIZE_MIB}m"
        _run("mount", "-t", "tmpfs", "-o", size, "specpilot-chaos", str(self.folder))

    def fill(self) -> None:
        """Take all that is free."""
        with self._filling.open("wb", buffering=0) as file:
            piece = _PIECE
            while piece:
                try:
                    file.write(piece)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    piece = piece[: len(piece) // 2]

    def free(self) -> None:
        """Give it back."""
        self._filling.unlink(missing_ok=True)

    def remove(self) -> None:
        """Unmount it, also from under processes that have files open in it."""
        subprocess.run(["umount", "--lazy", str(self.folder)], capture_output=True, check=False)

    @property
    def _filling(self) -> Path:
        return self.folder / "filling"


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
