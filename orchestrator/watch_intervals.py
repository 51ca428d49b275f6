"""Intervals between two looks at production: counters of both ends, and the requests between."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from orchestrator.core.codec import from_plain, to_plain
from orchestrator.core.exposition import EngineCounters, delta, parse_counters
from orchestrator.core.types import CounterSnapshot
from orchestrator.errors import EngineRestarted, MeasurementError, OrchestratorError
from orchestrator.events import Emit
from orchestrator.watch_ports import RecordedRequest, RequestPage, Watched

SETTLE_S = 600.0
"""Until an interval is judged: the router knows a request when it has ended."""
LONGEST_S = 300.0
"""Of an interval between two looks that is still one; a longer one is a gap."""

_T = TypeVar("_T")


class Troubles:
    """Says once that something does not answer, and once that it does again."""

    def __init__(self, say: Emit) -> None:
        self._say = say
        self._lasting: set[str] = set()

    def lasts(self, source: str, reason: str) -> None:
        """Say it, unless it was said already."""
        if source not in self._lasting:
            self._lasting.add(source)
            self._say(f"{source}: {reason}; it goes on without")

    def over(self, source: str) -> None:
        """Say that it is over, if it lasted."""
        if source in self._lasting:
            self._lasting.remove(source)
            self._say(f"{source}: back")

    def tried(self, source: str, call: Callable[[], _T]) -> tuple[bool, _T | None]:
        """Return whether the call returned, and what."""
        try:
            found = call()
        except (OrchestratorError, OSError) as error:
            self.lasts(source, (str(error) or type(error).__name__).splitlines()[0])
            return False, None
        self.over(source)
        return True, found


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """What the engine counted between two looks."""

    began_s: float
    """Since 1970, as is the end."""
    ended_s: float
    counters: CounterSnapshot
    """Their difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    moment_s: float
    exposition: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """What a new process must know."""

    app: str | None
    router: str | None
    """Which one knew the requests of the intervals that wait."""
    before: _Look | None
    pending: tuple[Interval, ...]


class Intervals:
    """Collects the intervals of one engine application at a time.

    Args:
        production: What serves.
        troubles: Told of what does not answer.
        say: Told of restarts.
    """

    def __init__(self, production: Watched, troubles: Troubles, say: Emit) -> None:
        self._production = production
        self._troubles = troubles
        self._say = say
        self._app: str | None = None
        self._before: _Look | None = None
        self._pending: list[Interval] = []
        self._requests: list[RecordedRequest] = []
        self._router: str | None = None
        self._cursor = 0

    def read(self, app: str, now_s: float) -> list[tuple[Interval, tuple[RecordedRequest, ...]]]:
        """Look at an engine application; return the intervals whose requests have had time to end.

        Args:
            app: The application that should carry all the traffic.
            now_s: Seconds since 1970.
        """
        if app != self._app:
            self._app, self._before, self._pending = app, None, []
        if self._carries_all(app):
            self._read_counters(app, now_s)
        if not self._read_requests():
            return []
        settled = [item for item in self._pending if item.ended_s <= now_s - SETTLE_S]
        self._pending = self._pending[len(settled) :]
        known = tuple(self._requests)
        oldest = self._pending[0].began_s if self._pending else now_s - SETTLE_S
        self._requests = [item for item in self._requests if item.ended_at > oldest]
        return [(item, known) for item in settled]

    def state(self) -> dict[str, Any]:
        """Return what a new process must know, as plain JSON; the router still has its requests."""
        return to_plain(
            _Kept(
                app=self._app,
                router=self._router,
                before=self._before,
                pending=tuple(self._pending),
            )
        )

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state.

        Raises:
            ValueError: It holds something else.
        """
        kept = from_plain(_Kept, state)
        self._app, self._router = kept.app, kept.router
        self._before, self._pending = kept.before, list(kept.pending)

    def _carries_all(self, app: str) -> bool:
        _, state = self._troubles.tried("production", self._production.state)
        if state is None:
            return False
        carrying = [name for name, weight in state.weights.items() if weight > 0]
        if carrying == [app] and state.engines.get(app) == "RUNNING":
            self._troubles.over(app)
            return True
        self._troubles.lasts(app, "it does not carry all of the traffic")
        self._before = None
        return False

    def _read_counters(self, app: str, now_s: float) -> None:
        def read() -> tuple[str, EngineCounters]:
            text = self._production.metrics_text(app)
            return text, parse_counters(text)

        _, found = self._troubles.tried("the engine's counters", read)
        if found is None:
            return
        before, self._before = self._before, _Look(moment_s=now_s, exposition=found[0])
        if before is None or not 0 < now_s - before.moment_s <= LONGEST_S:
            return
        try:
            counters = delta(parse_counters(before.exposition), found[1])
        except EngineRestarted as error:
            self._say(f"{app}: {error}; the interval is left out")
        except MeasurementError as error:
            self._say(f"{app}: {error}; the interval shows nothing")
        else:
            self._pending.append(
                Interval(began_s=before.moment_s, ended_s=now_s, counters=counters)
            )

    def _read_requests(self) -> bool:
        """Fetch what has ended since the look before; return whether the router answered."""
        _, page = self._troubles.tried(
            "the router's requests", lambda: self._production.requests(self._cursor)
        )
        if page is None:
            return False
        if self._router not in (None, page.router):
            # A router that was restarted has none of the requests of the intervals that wait.
            self._pending, self._requests = [], []
        elif page.lost:
            self._drop_before(page)
        self._router, self._cursor = page.router, page.next
        self._requests += page.requests
        return True

    def _drop_before(self, page: RequestPage) -> None:
        """Drop the intervals of which the router no longer has all requests."""
        whole_from = min((item.ended_at for item in page.requests), default=float("inf"))
        self._pending = [item for item in self._pending if item.began_s >= whole_from]
