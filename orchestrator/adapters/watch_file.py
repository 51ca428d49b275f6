"""The state of a watcher on its node's disk, from which a new one goes on."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from orchestrator.adapters.kept_file import KeptFile, locked
from orchestrator.adapters.state import Folder, state_dir
from orchestrator.errors import ConfigError

FORMAT = "specpilot.watch/1"


class WatchFile:
    """The folder of the watcher of one registered model, which one process holds at a time.

    Args:
        model_name: The registered model.
        say: Told once why the state cannot be written.
    """

    def __init__(self, model_name: str, say: Callable[[str], None]) -> None:
        self._folder = state_dir() / Folder.WATCH / f"model-{model_name}"
        self._file = KeptFile(self._folder / "state.json", FORMAT)
        self._say = say
        self._lock: int | None = None
        self._has_complained = False

    @property
    def path(self) -> Path:
        """Where the state lies."""
        return self._file.path

    def __enter__(self) -> WatchFile:
        """Hold the folder.

        Raises:
            ConfigError: Another watcher holds it, or there is no such place.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = locked(self._folder)
        except BlockingIOError as error:
            raise ConfigError(
                "watch", f"another watcher holds {self._folder}", "end it, or let it go on"
            ) from error
        except OSError as error:
            raise ConfigError(
                "SPECPILOT_STATE_DIR", f"{self._folder} cannot be used ({error})",
                "name a folder that can be written",
            ) from error  # fmt: skip
        return self

    def __exit__(self, *_error: object) -> None:
        """Let the folder go."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def read(self) -> dict[str, Any] | None:
        """Return the state that was written last; None where there is none.

        One that is damaged or of another version is none: a watcher collects its evidence again.
        """
        try:
            return self._file.read()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._say(f"{self.path} {error}; the evidence so far is lost")
            return None

    def write(self, state: Mapping[str, Any]) -> None:
        """Put the state in the place of the last one."""
        assert self._lock is not None
        try:
            self._file.write(state, folder=self._lock)
            self._has_complained = False
        except OSError as error:
            if not self._has_complained:
                self._has_complained = True
                self._say(f"the state cannot be written ({error}); evidence is lost if this ends")
