"""One study whose parts die, gone on with until it has its verdict, and what came of it."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from infra.chaos.clients import Clients, Tally
from infra.chaos.faults import DRIVER_SEES, NODE_IS_AWAY, Fault, Kind, Striker
from infra.chaos.invariants import Findings, look
from infra.chaos.site import Site
from orchestrator.core.failures import FailureKind

LIMIT_S = 900.0
"""Longest time for one study with all that happens to it: it hangs after that."""
MAX_STARTS = 20
WAIT_S = 5.0
"""After a refusal, before the next try."""
VERDICT = (0, 3)
"""Exit statuses of a study that came to its end."""
ERROR = 1
REFUSED = 2
PAUSE_S = 2.0
"""Of each client between two requests: they are to notice what fails, not to load two cores."""
_BEGUN = re.compile(r"^study ([a-z0-9-]+-\d{8}-\d{6})$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecord:
    """What came of one study under faults; one line of the results."""

    seed: int
    study_id: str | None
    faults: Sequence[str]
    """What was done, in order."""
    missed: Sequence[str]
    """What had no victim before the study was over."""
    starts: Sequence[int]
    """Exit status of each driver, the first one's first."""
    lost_blocks: int
    double_blocks: int
    orphans: Sequence[str]
    answered: int
    """Requests of production's clients meanwhile."""
    failed: int
    """Those of them that went wrong."""
    wrong: Sequence[str]
    """What else is not as it must be, in words."""
    seconds: float
    failed_headless: int = 0
    """Requests that went wrong while production had lost its only head; not among ``failed``."""
    failures: Sequence[str] = ()
    """Kinds of the boots that failed, as MLflow has them."""
    said: str = ""
    """The end of what the drivers said, where something is wrong or a driver ended by an error."""

    @property
    def is_right(self) -> bool:
        """Whether nothing was lost, counted twice, left behind or denied to a client."""
        counts = self.lost_blocks, self.double_blocks, len(self.orphans), self.failed
        return not any(counts) and not self.wrong


@dataclass(slots=True)
class _Driver:
    """One start of the study, with what it says."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(iter(self.process.stdout.readline, ""))

    def end(self) -> int:
        """Wait for its end and for its last line."""
        status = self.process.wait()
        time.sleep(0.2)
        return status


@dataclass(slots=True)
class StudyRun:
    """One study under its faults.

    Args:
        site: Where it runs.
        striker: Does the faults.
        faults: What is to happen, the earliest first.
        seed: By which they were drawn; the study's own seed, too.
    """

    site: Site
    striker: Striker
    faults: list[Fault]
    seed: int
    done: list[Fault] = field(default_factory=list)
    away: list[tuple[float, Kind]] = field(default_factory=list)
    """When what is to be brought back."""
    starts: list[int] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    study_id: str | None = None
    begun_s: float = field(default_factory=time.monotonic)
    tally: Tally = field(default_factory=Tally)
    num_bad_before: int | None = None
    """Of the clients, when the head was lost; None while there is one."""
    failed_headless: int = 0

    def run(self, *, streams: int) -> StudyRecord:
        """Run it to its verdict, and look at what is left."""
        site = self.site
        url, model = site.cluster.production_url, site.config.engine.served_model_name
        with Clients(url, model, streams=streams, pause_s=PAUSE_S) as self.tally:
            wrong = self._to_its_end()
            self._bring_back()
            found = (
                Findings(wrong=["no driver came so far that the study had an id"])
                if self.study_id is None
                else look(site, self.study_id, self.said)
            )
        wrong += [*found.wrong, *self._untold(found.failures)]
        failed = self.tally.num_bad - self.failed_headless
        is_right = not (wrong or failed or found.lost or found.double or found.orphans)
        return StudyRecord(
            seed=self.seed,
            study_id=self.study_id,
            faults=[f"{fault.kind} at {fault.at_s:.1f} s" for fault in self.done],
            missed=[str(fault.kind) for fault in self.faults],
            starts=self.starts,
            lost_blocks=len(found.lost),
            double_blocks=len(found.double),
            orphans=found.orphans,
            answered=self.tally.answered.total(),
            failed=failed,
            wrong=[*wrong, *([self.tally.words()] if failed else [])],
            seconds=round(time.monotonic() - self.begun_s, 1),
            failed_headless=self.failed_headless,
            failures=found.failures,
            said="" if is_right and ERROR not in self.starts else "".join(self.said[-60:]),
        )

    def _to_its_end(self) -> list[str]:
        """Start the study and go on with it; return why it has no verdict, if it has none."""
        while len(self.starts) < MAX_STARTS:
            resume = ["--resume", self.study_id] if self.study_id else []
            status = self._one_start([f"seed={self.seed}", *resume])
            self.starts.append(status)
            if status in VERDICT:
                return []
            if self._is_over:
                return [f"no verdict after {LIMIT_S:.0f} s"]
            if status == REFUSED:
                # What refuses it may be down, or not know yet that the last driver is dead.
                time.sleep(WAIT_S)
                self._mend_due()
        return [f"no verdict after {MAX_STARTS} starts"]

    @property
    def _passed_s(self) -> float:
        return time.monotonic() - self.begun_s

    @property
    def _is_over(self) -> bool:
        return self._passed_s > LIMIT_S

    def _one_start(self, words: Sequence[str]) -> int:
        driver = _Driver(self.site.begin("study", *words))
        while driver.process.poll() is None:
            if self._is_over:
                driver.process.kill()
            self._strike_due(driver.process)
            self._mend_due()
            time.sleep(0.05)
        status = driver.end()
        self._bring_back(DRIVER_SEES)
        self.said += [*driver.lines, f"(exit status {status})\n"]
        found = _BEGUN.search("".join(driver.lines))
        if found is not None:
            self.study_id = found[1]
        return status

    def _untold(self, failures: Sequence[str]) -> list[str]:
        """Return what the kernel did and no boot tells, where nothing else ended boots."""
        kinds = {fault.kind for fault in self.done}
        if kinds == {Kind.MEMORY} and FailureKind.OOM_KILLED not in failures:
            return [f"the kernel killed for memory, and the boots failed by {failures}"]
        return []

    def _strike_due(self, driver: subprocess.Popen[str]) -> None:
        for fault in [item for item in self.faults if item.at_s <= self._passed_s]:
            num_bad = self.tally.num_bad
            if not self.striker.strike(fault.kind, driver):
                continue
            if fault.kind is Kind.HEAD:
                self.num_bad_before = num_bad
            self.faults.remove(fault)
            self.done.append(fault)
            self.said.append(f"({self._passed_s:.1f} s: {fault.kind})\n")
            self.away.append((self._passed_s + fault.lasts_s, fault.kind))

    def _mend_due(self) -> None:
        for due in [item for item in self.away if item[0] <= self._passed_s]:
            if due[1] not in DRIVER_SEES:
                self._mend(due)
        if not {kind for _, kind in self.away} & NODE_IS_AWAY:
            self.striker.keep_node()

    def _bring_back(self, kinds: AbstractSet[Kind] = frozenset(Kind)) -> None:
        for due in [item for item in self.away if item[1] in kinds]:
            self._mend(due)
        if not {kind for _, kind in self.away} & NODE_IS_AWAY:
            self.striker.keep_node()

    def _mend(self, due: tuple[float, Kind]) -> None:
        self.away.remove(due)
        self.striker.mend(due[1])
        if due[1] is Kind.HEAD and self.num_bad_before is not None:
            self.failed_headless += self.tally.num_bad - self.num_bad_before
            self.num_bad_before = None
