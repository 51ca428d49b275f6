"""The seams of a watcher: what it sees of production, and where its findings go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from orchestrator.ports import ProductionState


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """What the router keeps of one client's request that has ended; no text."""

    started_at: float
    """Since 1970, as is the end."""
    ended_at: float
    temperature: float | None
    """None where the request stated none."""
    streams_at_start: int
    """Requests under way when it began, itself included."""
    output_tokens: int | None
    """None where the answer had no ``usage``: a stream that was not asked for one (the number of
    its chunks is too small by the acceptance length), and one that the client broke off."""
    prompt_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPage:
    """The requests that ended since an earlier page."""

    router: str
    """Another one where the router began anew, and knows nothing of the requests before."""
    next: int
    """Where the page after this one begins."""
    lost: int
    """Requests that ended in between and that the router no longer has."""
    requests: tuple[RecordedRequest, ...]


class Watched(Protocol):
    """Production as a watcher sees it: what serves, what it counts, what is asked."""

    def state(self) -> ProductionState:
        """Read what is declared and how it is doing."""
        ...

    def metrics_text(self, app: str) -> str:
        """Return the engine's Prometheus exposition.

        Raises:
            TransientError: The engine does not answer.
        """
        ...

    def requests(self, after: int) -> RequestPage:
        """Return clients' requests that ended, from the page that ``after`` names on; 0 is all.

        Raises:
            TransientError: The router does not answer.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchFinding:
    """Something that a watcher found to have changed."""

    finding_id: str
    """Unique, and the same however often it is told."""
    kind: str
    """``acceptance``, ``step_time``, ``traffic`` or ``premise``."""
    version: int
    """Registered version whose verdict it concerns."""
    sentence: str
    opened_utc_s: float
    closed_utc_s: float | None = None
    """None while it is open."""
    closed_because: str = ""
    study: str = ""
    """What became of the study that it started; empty where it started none."""


class Findings(Protocol):
    """Where a watcher's findings are kept: one tracking run a finding, RUNNING while it is open."""

    def tell(self, model_name: str, finding: WatchFinding) -> None:
        """Store the finding as it is now; a second call with the same id changes its run.

        Raises:
            TransientError: The tracker does not do its part.
        """
        ...
