"""The state of a study on its driver's disk, from which a new driver goes on."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.adapters.kept_file import KeptFile, locked
from orchestrator.adapters.state import Folder, state_dir
from orchestrator.errors import ConfigError

FORMAT = "specpilot.study/2"
"""Of the first line; the second is the state, and the first has its digest. Whoever changes it puts
a state of the new form into ``tests/data/study_state``."""
_ID = re.compile(r"[a-z0-9-]+")


class StudyFile:
    """A study's folder, which one driver holds at a time, and the state in it.

    The folder is locked from its first use to the end of the process, however that comes. A state
    that cannot be written costs the chance to resume and never the study.

    Args:
        study_id: Of the study.
        say: Told once why the state cannot be written.
        folder: Of the study; by default the one that the environment names.
    """

    def __init__(
        self, study_id: str, say: Callable[[str], None], *, folder: Path | None = None
    ) -> None:
        self.study_id = study_id
        self._say = say
        self._folder = folder or studies_dir() / study_id
        self._file = KeptFile(self._folder / "state.json", FORMAT)
        self._lock: int | None = None
        self._has_complained = False
        self.is_kept = False
        """Whether the latest state is on the disk."""

    def __enter__(self) -> StudyFile:
        """Hold the folder if it is there.

        Raises:
            ConfigError: Another driver holds it.
        """
        if _ID.fullmatch(self.study_id):
            try:
                if not self._folder.is_dir():
                    return self
                self._lock = locked(self._folder)
            except BlockingIOError as error:
                raise self._refusal(
                    "another driver runs this study", "wait until it ends, or end it"
                ) from error
            except OSError as error:
                raise self._unreadable(error) from error
        return self

    def __exit__(self, *_error: object) -> None:
        """Let the folder go."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def is_held(self) -> bool:
        """Whether the folder is there and this process holds it."""
        return self._lock is not None

    def read(self) -> dict[str, Any]:
        """Return the state that was written last.

        Raises:
            ConfigError: There is none, it is damaged, or another version wrote it.
        """
        if self._lock is None:
            raise self._unknown()
        try:
            state = self._file.read()
        except FileNotFoundError as error:
            raise self._unknown() from error
        except OSError as error:
            raise self._unreadable(error) from error
        except ValueError as error:
            raise self._refusal(f"{self._file.path} {error}", "begin the study anew") from error
        self.is_kept = True
        return state

    def write(self, state: Mapping[str, Any]) -> None:
        """Put the state in the place of the last one: after a crash there is one or the other."""
        try:
            if self._lock is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._lock = locked(self._folder)
            self._file.write(state, folder=self._lock)
            self.is_kept = True
        except OSError as error:
            self.is_kept = False
            if not self._has_complained:
                self._has_complained = True
                self._say(
                    f"the study's state cannot be written ({error}); it goes on, and cannot be "
                    "resumed if it is killed now"
                )

    def drop(self) -> None:
        """Remove the state, where no newer one could be written: it would be gone on from."""
        with suppress(OSError):  # then nothing can be done, and the write has said why
            self._file.path.unlink(missing_ok=True)

    def _unknown(self) -> ConfigError:
        return self._refusal(
            f"no state of such a study is in {studies_dir()}",
            "give the id that the study printed, on the node that its driver ran on",
        )

    def _unreadable(self, error: OSError) -> ConfigError:
        return self._refusal(f"its state cannot be read ({error})", "repair the folder")

    def _refusal(self, problem: str, remedy: str) -> ConfigError:
        return ConfigError(f"--resume {self.study_id}", problem, remedy)


def studies_dir() -> Path:
    """Return the folder with a folder for each study that was begun on this node."""
    return state_dir() / Folder.STUDIES


def states_left(prefix: str) -> dict[str, dict[str, Any]]:
    """Return the readable states of studies that no driver runs, by id, oldest first.

    Args:
        prefix: What their ids begin with: name and digest of what they ask.
    """
    found: dict[str, dict[str, Any]] = {}
    for folder in sorted(studies_dir().glob(f"{prefix}-*")):
        with suppress(ConfigError), StudyFile(folder.name, lambda _text: None) as file:
            found[folder.name] = file.read()
    return found
