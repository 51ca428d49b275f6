"""One engine process: start, readiness, facts, stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from serve_apps.engine.facts import EngineFacts
from serve_apps.engine.spec import EngineSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class BootProgress:
    """How far a boot is; a log that grows is progress even without an answer."""

    elapsed_s: float
    log_bytes: int
    idle_s: float
    """Seconds since the log last grew."""
    last_line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReport:
    """What a stop found."""

    exit_status: int | None
    """Of the engine; None when it never started."""
    killed: tuple[str, ...]
    """Processes that outlived the engine's own end and were ended by SIGTERM or SIGKILL."""
    took_s: float


class EngineProcess:
    """Supervises one boot of one arm."""

    def __init__(
        self,
        spec: EngineSpec,
        *,
        boot_id: str | None = None,
        base_env: Mapping[str, str] | None = None,
    ) -> None:
        raise NotImplementedError

    def start(self) -> None:
        """Start the engine on a free loopback port."""
        raise NotImplementedError

    async def wait_ready(
        self, on_progress: Callable[[BootProgress], None] | None = None
    ) -> EngineFacts:
        """Return once one real completion came from this very boot; raises EngineBootError."""
        raise NotImplementedError

    async def facts(self) -> EngineFacts:
        """Return what the engine says about itself."""
        raise NotImplementedError

    async def metrics_text(self) -> str:
        """Return the engine's own Prometheus exposition, unchanged."""
        raise NotImplementedError

    def tail(self, lines: int = 40) -> str:
        """Return the last lines of this boot's log."""
        raise NotImplementedError

    def is_alive(self) -> bool:
        """Return whether the engine process runs."""
        raise NotImplementedError

    def stop(self) -> StopReport:
        """End everything of this boot; raises EngineLeftoverError when something survives."""
        raise NotImplementedError
