"""Production under a watcher, in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from core_samples import BUILD, make_arm

from orchestrator.core.cell_promises import CellPromise, CellPromises, Level
from orchestrator.core.codec import to_plain
from orchestrator.core.premises import Premises, differences
from orchestrator.core.types import Cell
from orchestrator.errors import OrchestratorError
from orchestrator.fakes.tracker import FakeRegistry
from orchestrator.fakes.watched import FakeFindings, FakeWatched
from orchestrator.fakes.world import FakeClock
from orchestrator.incumbent import PREMISES_TAG, held_premises
from orchestrator.ports import Version
from orchestrator.promotion_record import CELLS_TAG, CHAMPION
from orchestrator.watch import Watcher, WatchSettings

MODEL = "demo"
PREMISES = Premises(
    engine_build=BUILD,
    engine_args_digest="a",
    target_digest="t",
    draft_digest="d",
    node_kind="gb10",
    workload_digest="w",
    sampling={"top_p": 1.0},
    step_time="measured",
    board_model=None,
    specpilot_version="0.1.0",
)


def cell_promise(
    streams: int, *, weight: float = 0.5, length: float = 3.0, step_s: float = 0.05
) -> CellPromise:
    return CellPromise(
        cell=Cell(streams=streams, temperature=1.0),
        weight=weight,
        length=Level(mean=length, factor=1.02),
        step_time=Level(mean=step_s, factor=1.02),
    )


PROMISES = CellPromises(arm=make_arm(), cells=(cell_promise(4), cell_promise(8)))


@dataclass
class Scene:
    """One champion that keeps its promises, until told otherwise."""

    clock: FakeClock = field(default_factory=FakeClock)
    registry: FakeRegistry = field(default_factory=FakeRegistry)
    findings: FakeFindings = field(default_factory=FakeFindings)
    said: list[str] = field(default_factory=list)
    premises: Mapping[str, Premises] = field(default_factory=lambda: {BUILD: PREMISES})
    refusal: str | OrchestratorError | None = None
    """Why a study that asks again would be refused, or why that cannot be told."""

    def __post_init__(self) -> None:
        self.crown(PROMISES)
        self.production = FakeWatched("specpilot-v1", self.clock)
        self.watcher = self.new_watcher()

    def crown(self, promises: CellPromises | str | None) -> int:
        """Let a version serve that was registered with these promises, or with such a text."""
        tags = {PREMISES_TAG: json.dumps(PREMISES.to_dict())}
        if isinstance(promises, str):
            tags[CELLS_TAG] = promises
        elif promises is not None:
            tags[CELLS_TAG] = json.dumps(to_plain(promises))
        version = self.registry.create_version(MODEL, "run", {}, tags)
        self.registry.set_alias(MODEL, CHAMPION, version.version)
        return version.version

    def new_watcher(self) -> Watcher:
        return Watcher(
            WatchSettings(
                model_name=MODEL, app_prefix="specpilot", tolerance=0.03, default_temperature=1.0
            ),
            registry=self.registry,
            production=self.production,
            findings=self.findings,
            stale=self.stale,
            refusal=self.refuse,
            clock=self.clock,
            say=self.said.append,
        )

    def refuse(self, version: Version) -> str | None:
        if isinstance(self.refusal, OrchestratorError):
            raise self.refusal
        return None if self.refusal is None else f"version {version.version} {self.refusal}"

    def stale(self, version: Version) -> tuple[str, ...]:
        held = held_premises(version)
        assert held is not None
        return differences(held, self.premises[held.engine_build])

    def again(self) -> None:
        """End the watcher, and start another one on its state."""
        state = json.loads(json.dumps(self.watcher.state()))
        self.watcher = self.new_watcher()
        self.watcher.restore(state)

    def minutes(self, num: int, *, streams: int = 4, every: int = 1) -> None:
        """Let minutes pass, with a look after every so many of them."""
        for _ in range(num // every):
            self.production.serve(60.0 * every, streams=streams)
            self.watcher.look()

    def until(self, kind: str, *, is_open: bool, most: int) -> int:
        """Return after how many minutes such a finding is open, or is not."""
        for minute in range(0, most, 4):
            if any(item.kind == kind for item in self.watcher.open) == is_open:
                return minute
            self.minutes(4, every=4)
        raise AssertionError(f"{kind} is not {'open' if is_open else 'closed'} by {most} minutes")

    def change_premise(self, digest: str = "e") -> None:
        self.premises = {BUILD: replace(PREMISES, draft_digest=digest)}
