"""Watch production: one look at a time, in terms of ports.

A look never fails. What does not answer is said once, and once when it is back; the look shows
nothing of it. Findings that the tracker does not take are told again at the next look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from orchestrator.core.cell_promises import CellPromises
from orchestrator.core.codec import from_plain, to_plain
from orchestrator.errors import ConfigError
from orchestrator.events import Emit
from orchestrator.incumbent import PREMISES_TAG
from orchestrator.ports import Clock, Registry, Version
from orchestrator.production_stage import app_name
from orchestrator.promotion_record import CELLS_TAG, CHAMPION
from orchestrator.version_tags import read_tag, record_of
from orchestrator.watch_evidence import interval_evidence
from orchestrator.watch_intervals import Intervals, Troubles
from orchestrator.watch_monitor import Change, Monitor
from orchestrator.watch_ports import Findings, Watched, WatchFinding

DRIFT_KINDS = ("acceptance", "step_time", "traffic")


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """What is watched."""

    model_name: str
    """The registered model."""
    app_prefix: str
    """Of the engine applications."""
    tolerance: float
    """Relative difference beyond an interval that is no drift yet."""
    default_temperature: float | None
    """Of requests that state none; None leaves them out of the mix."""


class Watcher:
    """Looks at production, and keeps the findings that are open.

    Args:
        settings: What is watched.
        registry: Where the champion stands.
        production: What serves.
        findings: Where findings are kept.
        stale: Returns a sentence for each changed premise that a conclusion of the version's
            study stands on.
        refusal: Returns why a study that asks again would be refused for the version; None where
            it would not.
        clock: Time.
        say: Told what happens.
    """

    def __init__(
        self,
        settings: WatchSettings,
        *,
        registry: Registry,
        production: Watched,
        findings: Findings,
        stale: Callable[[Version], Sequence[str]],
        refusal: Callable[[Version], str | None],
        clock: Clock,
        say: Emit,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._findings = findings
        self._stale = stale
        self._refusal = refusal
        self._clock = clock
        self._say = say
        self._troubles = Troubles(say)
        self._version: Version | None = None
        self._monitor: Monitor | None = None
        self._promises: CellPromises | None = None
        self._kept: Mapping[str, Any] | None = None
        """Evidence of an earlier process, until its version is seen."""
        self._kept_version: int | None = None
        self._open: dict[str, WatchFinding] = {}
        """By kind, and for premises by sentence."""
        self._untold: dict[str, WatchFinding] = {}
        self._intervals = Intervals(production, self._troubles, say)

    @property
    def open(self) -> tuple[WatchFinding, ...]:
        """Findings that are open, oldest first."""
        return tuple(sorted(self._open.values(), key=lambda item: item.opened_utc_s))

    @property
    def shares(self) -> dict[tuple[int, float], float] | None:
        """Shares of the last whole day's output tokens by cell; None before it."""
        return None if self._monitor is None else self._monitor.shares

    def look(self) -> None:
        """Take one look at everything."""
        name = self._settings.model_name
        answered, champion = self._troubles.tried(
            "the registry", lambda: self._registry.by_alias(name, CHAMPION)
        )
        if champion is not None:
            self._troubles.over(f"'{name}'")
            self._turn_to(champion)
        elif answered:
            self._troubles.lasts(f"'{name}'", "it has no champion to watch")
        if self._version is not None:
            self._compare_production(self._version)
            self._compare_premises(self._version)
        self._tell()

    def refusal(self) -> tuple[bool, str | None]:
        """Return whether it can be told if a study would be refused, and why it would."""
        version, refusal = self._version, self._refusal
        if version is None:
            return False, None
        return self._troubles.tried("the study that asks again", lambda: refusal(version))

    def note_study(self, finding_id: str, text: str) -> None:
        """Write on a finding what became of the study that it started."""
        for key, finding in self._open.items():
            if finding.finding_id == finding_id:
                self._open[key] = replace(finding, study=text)
                self._untold[finding_id] = self._open[key]

    def state(self) -> dict[str, Any]:
        """Return what a new process must know, as plain JSON."""
        monitor = self._kept if self._monitor is None else self._monitor.state()
        return {
            "version": self._kept_version if self._version is None else self._version.version,
            "monitor": None if monitor is None else dict(monitor),
            "intervals": self._intervals.state(),
            "open": {key: to_plain(finding) for key, finding in self._open.items()},
            "untold": {key: to_plain(finding) for key, finding in self._untold.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state.

        Raises:
            ValueError: Another version of this program wrote it; nothing was taken from it.
        """
        try:
            opened = {k: from_plain(WatchFinding, v) for k, v in state["open"].items()}
            untold = {k: from_plain(WatchFinding, v) for k, v in state["untold"].items()}
            version, monitor = state["version"], state["monitor"]
            self._intervals.restore(state["intervals"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"is no state of a watcher: {error!r}") from error
        self._kept_version, self._kept = version, monitor
        self._open, self._untold = opened, untold

    def _turn_to(self, champion: Version) -> None:
        """Begin with a version's tests, or go on with them."""
        if self._version is not None and self._version.version == champion.version:
            return
        before = self._kept_version if self._version is None else self._version.version
        if before is not None and before != champion.version:
            for key in list(self._open):
                self._close(key, f"version {champion.version} serves now")
        self._version = champion
        self._promises, self._monitor = self._read_promises(champion), None
        if self._promises is not None:
            self._monitor = Monitor(self._promises, tolerance=self._settings.tolerance)
            self._resume(self._monitor, champion)
        self._kept = self._kept_version = None

    def _resume(self, monitor: Monitor, champion: Version) -> None:
        if self._kept is None or self._kept_version != champion.version:
            self._say(f"watching version {champion.version}")
            return
        try:
            monitor.restore(self._kept)
        except (ValueError, KeyError, TypeError) as error:
            self._say(f"the evidence so far is dropped: {error}")
            # Nothing would ever close what the dropped evidence had opened.
            for key in [key for key in self._open if key in DRIFT_KINDS]:
                self._close(key, "its evidence was lost")
            return
        self._say(f"watching version {champion.version}, with the evidence so far")

    def _read_promises(self, version: Version) -> CellPromises | None:
        parse, remedy = record_of(CellPromises), "register another by a study"
        try:
            found = read_tag(version, CELLS_TAG, parse, noun="promise of cells", remedy=remedy)
        except ConfigError as error:
            self._say(f"{error}; only its premises are watched")
            return None
        if found is None:
            self._say(
                f"version {version.version}: it was registered without {CELLS_TAG}; only its "
                f"premises are watched, until a study registers another"
            )
        return found

    def _compare_production(self, version: Version) -> None:
        app = app_name(self._settings.app_prefix, version.version)
        for interval, requests in self._intervals.read(app, self._clock.utc_s()):
            if self._promises is None or self._monitor is None:
                continue
            evidence = interval_evidence(
                self._promises,
                interval.counters,
                requests,
                span=(interval.began_s, interval.ended_s),
                default_temperature=self._settings.default_temperature,
            )
            seconds = interval.ended_s - interval.began_s
            self._take(self._monitor.update(evidence, seconds))

    def _take(self, changes: Iterable[Change]) -> None:
        for change in changes:
            if change.is_open:
                self._found(change.kind, change.kind, change.sentence)
            else:
                self._close(change.kind, change.sentence)

    def _compare_premises(self, version: Version) -> None:
        if PREMISES_TAG not in version.tags:
            return
        _, stale = self._troubles.tried("the premises", lambda: self._stale(version))
        if stale is None:
            return
        for key in [key for key in self._open if key not in (*DRIFT_KINDS, *stale)]:
            self._close(key, "it is no longer so")
        for sentence in stale:
            self._found(sentence, "premise", sentence)

    def _found(self, key: str, kind: str, sentence: str) -> None:
        if key in self._open or self._version is None:
            return
        now_s, number = self._clock.utc_s(), self._version.version
        moment = datetime.fromtimestamp(now_s, tz=UTC).strftime("%Y%m%d-%H%M%S")
        # Several premises may change between two looks.
        nth = f"-{len(self._open)}" if kind == "premise" else ""
        finding = WatchFinding(
            finding_id=f"{kind}-v{number}-{moment}{nth}",
            kind=kind,
            version=number,
            sentence=sentence,
            opened_utc_s=now_s,
        )
        self._open[key] = self._untold[finding.finding_id] = finding
        self._say(f"finding {finding.finding_id}: {sentence}")

    def _close(self, key: str, because: str) -> None:
        finding = self._open.pop(key, None)
        if finding is not None:
            closed = replace(finding, closed_utc_s=self._clock.utc_s(), closed_because=because)
            self._untold[finding.finding_id] = closed
            self._say(f"closed {finding.finding_id}: {because}")

    def _tell(self) -> None:
        for key, finding in list(self._untold.items()):
            tell = partial(self._findings.tell, self._settings.model_name, finding)
            told, _ = self._troubles.tried("MLflow", tell)
            if not told:
                return
            del self._untold[key]
