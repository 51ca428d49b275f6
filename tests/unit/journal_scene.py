"""A study in memory whose drivers are killed and whose tracker goes away, wherever dice say so."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from core_samples import BASELINE, make_arm, make_block, make_boot
from ray.tune.search import Searcher
from study_stage import WEIGHTS, Cluster, Report, make_plan, result_of, told_of

from orchestrator.adapters.study_file import StudyFile
from orchestrator.core.codec import from_plain
from orchestrator.core.journal import Entry
from orchestrator.core.proof_gates import ProofDemands
from orchestrator.core.race_state import RaceSettings
from orchestrator.core.types import Arm, Block, Boot, BootStatus, Proof
from orchestrator.errors import ConfigError, TransientError
from orchestrator.fakes.board import BootFault, Faults
from orchestrator.fakes.tracker import FakeTracker
from orchestrator.journal import Journal, StudyState
from orchestrator.race_searcher import RaceSearcher
from orchestrator.resume import take_over
from orchestrator.study import RaceResult
from orchestrator.trial_log import TrialLog

BEST, GOOD = make_arm(7, "probabilistic", "block"), make_arm(7, "greedy", "standard")
PLAN = replace(
    make_plan((BASELINE, GOOD, BEST), race=RaceSettings(max_boots=12, seed=1)),
    demands=ProofDemands(),
)
ID = "demo-1a2b3c4d-20260101-000000"
T = TypeVar("T")
ASKS: dict[str, Any] = {
    "configuration": {}, "tracking": {}, "arms": [], "incumbent": None, "premises": {},
    "proof_workload": "w",
}  # fmt: skip


class Killed(BaseException):
    """The driver is no more."""


class MoodyTracker(FakeTracker):
    """A tracker that is away for a while, fails a call, or does it and loses the answer.

    Args:
        rng: Decides.
        tick: Called before and after each call; what it raises comes at that moment.
    """

    def __init__(self, rng: random.Random, tick: Callable[[], None]) -> None:
        super().__init__()
        self._rng = rng
        self._tick = tick
        self.is_calm = False
        self.is_away = False
        self.num_failed = 0

    def open_study(self, study_id: str, name: str, params: Mapping[str, object]) -> str:
        return self._call(lambda: FakeTracker.open_study(self, study_id, name, params))

    def open_trial(self, study_run_id: str, trial_id: str, params: Mapping[str, object]) -> str:
        return self._call(lambda: FakeTracker.open_trial(self, study_run_id, trial_id, params))

    def log_block(self, run_id: str, block: Block) -> None:
        self._call(lambda: FakeTracker.log_block(self, run_id, block))

    def close_trial(self, run_id: str, boot: Boot, artifacts: Mapping[str, str]) -> None:
        self._call(lambda: FakeTracker.close_trial(self, run_id, boot, artifacts))

    def drop_trials(self, study_run_id: str, kept: Collection[str]) -> None:
        self._call(lambda: FakeTracker.drop_trials(self, study_run_id, kept))

    def _call(self, call: Callable[[], T]) -> T:
        self._tick()
        if not self.is_calm:
            if self._rng.random() < (0.3 if self.is_away else 0.08):
                self.is_away = not self.is_away
            if self.is_away or self._rng.random() < 0.05:
                self.num_failed += 1
                raise TransientError("the tracker does not answer")
        value = call()
        self._tick()
        if not self.is_calm and self._rng.random() < 0.1:
            self.num_failed += 1
            raise TransientError("the tracker's answer was lost")
        return value


class Disk(StudyFile):
    """A study's file in memory; death comes before or after a write, and it is whole."""

    def __init__(self, tick: Callable[[], None]) -> None:
        super().__init__(ID, lambda _text: None)
        self._tick = tick
        self.text: str | None = None

    def read(self) -> dict[str, Any]:
        assert self.text is not None
        return dict(json.loads(self.text))

    def write(self, state: Mapping[str, Any]) -> None:
        self._tick()
        self.text = json.dumps(state)
        self.is_kept = True
        self._tick()


@dataclass
class Driver:
    """A study's drivers, one after the other, each killed wherever the dice say so."""

    seed: int
    is_whole: bool = False
    """Whether boots are trials on the fake board; else they are made up, which takes less time."""
    max_kills: int = 8
    issued: list[tuple[Arm, int, bool]] = field(default_factory=list)
    reached: set[str] = field(default_factory=set)
    """Ids of the blocks whose results reached a driver that lived to write them down."""
    num_kills: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.cluster = Cluster({GOOD: Faults(boot=BootFault.TRANSIENT, failing_boots=1)})
        self.tracker = MoodyTracker(self.rng, self.tick)
        self.disk = Disk(self.tick)

    def tick(self) -> None:
        """Go on, or die here."""
        if self.num_kills < self.max_kills and self.rng.random() < 0.02:
            self.num_kills += 1
            raise Killed

    @property
    def state(self) -> StudyState:
        """What is on the disk."""
        return from_plain(StudyState, self.disk.read())

    def run(self) -> tuple[RaceSearcher, RaceResult]:
        """Start drivers until one lives to the end of the study."""
        while True:
            with suppress(Killed, TransientError, ConfigError):  # refused: the tracker is away
                return self.drive()

    def drive(self) -> tuple[RaceSearcher, RaceResult]:
        """Do what the driver does, and Tune in it."""
        state = None if self.disk.text is None else self.state
        if state is not None:
            take_over(state, self.tracker)
        run_id = self.tracker.open_study(ID, ID, {})
        journal = Journal(
            self.disk, state or StudyState(study_id=ID, run_id=run_id, asks=ASKS), self.tracker
        )
        journal.keep(journal.state.race)
        searcher = RaceSearcher(PLAN, lambda _id, _name: None, keep=journal.keep)
        if journal.state.race is not None:
            searcher.set_out_from(journal.state.race)
        self.race(searcher, journal)
        self.tracker.is_calm = True
        assert journal.replay()
        self.tracker.close_study(run_id, succeeded=True, tags={}, metrics={}, artifacts={})
        journal.conclude()
        boots, proofs = (
            tuple(map(journal.with_run, found)) for found in (searcher.boots, searcher.proofs)
        )
        return searcher, RaceResult(boots=boots, choices=searcher.choices, proofs=proofs)

    def race(self, searcher: RaceSearcher, journal: Journal) -> None:
        """Run the boots that the searcher wants."""
        running: dict[str, dict[str, Any]] = {}
        num_parallel = 1 + self.seed % 3
        while True:
            if self.rng.random() < 0.5:
                journal.replay()
            trial_id = f"{self.rng.getrandbits(32):08x}"
            config = searcher.suggest(trial_id) if len(running) < num_parallel else None
            if config == Searcher.FINISHED:
                return
            if isinstance(config, dict):
                arm = from_plain(Arm, config["arm"])
                self.issued.append((arm, config["replicate"], config["is_proof"]))
                running[trial_id] = config
                continue
            first = next(iter(running))

            def report(result: dict[str, Any], trial_id: str = first) -> None:
                self.hand_over(searcher, trial_id, result)
                if self.rng.random() < 0.5:
                    journal.replay()

            boot = self.cluster.boot if self.is_whole else self.made_up
            result = boot(first, running.pop(first), report)
            self.hand_over(searcher, first, result, is_last=True)

    def hand_over(
        self,
        searcher: RaceSearcher,
        trial_id: str,
        result: dict[str, Any],
        *,
        is_last: bool = False,
    ) -> None:
        """Give a result to the searcher; it may be lost with the driver before that."""
        self.tick()
        searcher.on_trial_result(trial_id, result)
        if is_last:
            searcher.on_trial_complete(trial_id, result)
        told = (entry["block"] for entry in json.loads(result["told"]))
        self.reached |= {block["block_id"] for block in told if block is not None}

    def made_up(self, trial_id: str, config: Mapping[str, Any], report: Report) -> dict[str, Any]:
        """Tell what a trial tells."""
        rng, arm, log = self.rng, from_plain(Arm, config["arm"]), TrialLog()
        status = BootStatus.OK if rng.random() < 0.9 else BootStatus.FAILED
        boot = replace(
            make_boot(arm, (), replicate=config["replicate"], status=status),
            trial_id=trial_id,
            proof=Proof(findings={}) if config["is_proof"] else None,
        )
        log.tell(Entry(trial_id=trial_id, params={"node": "n"}))
        for index, cell in enumerate(() if config["is_proof"] else WEIGHTS):
            seconds = rng.lognormvariate(0, 0.02) / (2 + arm.num_speculative_tokens)
            tokens = 3000 + rng.randrange(300)
            block = make_block(
                arm, cell=cell, seconds_per_token=seconds, tokens=tokens, index=index
            )
            block = replace(block, block_id=f"{trial_id}/{index}", boot_id=trial_id)
            boot = replace(boot, blocks=(*boot.blocks, block))
            log.tell(Entry(trial_id=trial_id, block=block))
            report({"text": "", "told": told_of(log)})
        log.tell(Entry(trial_id=trial_id, boot=boot))
        return result_of(boot) | {"told": told_of(log)}
