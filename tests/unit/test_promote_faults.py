"""Kills and failures at every call of a promotion: in the end fully the old or fully the new."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from promotion_scene import MODEL, Fuse, Killed, Scene, Wire, kept

from orchestrator.errors import OrchestratorError, PromotionError, TransientError
from orchestrator.fakes.production import FakeProduction
from orchestrator.fakes.world import FakeClock
from orchestrator.ports import Version
from orchestrator.promotion_record import (
    CHAMPION,
    OUTAGE_NOT_KNOWN,
    OUTAGE_TAG,
    PREVIOUS,
    REASON_TAG,
)
from orchestrator.promotion_steps import Measurement

FAULTS = ("kill before", "kill after", "fail before", "fail after", "fail long", "die")


@dataclass
class World:
    """Production and registry that outlive the processes that promote."""

    capacity: int = 2
    scene: Scene = field(init=False)

    def __post_init__(self) -> None:
        production = FakeProduction(capacity=self.capacity)
        self.scene = Scene(production=production, canary_s=3.0)

    def run(self, do: Callable[[Scene], None], fuse: Fuse) -> BaseException | None:
        """Run one command in a process of its own; return what ended it."""
        scene = Scene(
            production=Wire(self.scene.production, fuse),  # type: ignore[arg-type]
            registry=Wire(self.scene.registry, fuse),  # type: ignore[arg-type]
            clock=self.scene.clock,
            free_boards=lambda: self.scene.production.num_free,
            canary_s=3.0,
        )
        fuse.die = self.kill_newest
        try:
            do(scene)
        except (Killed, OrchestratorError) as error:
            return error
        return None

    def kill_newest(self) -> None:
        newest = max(self.scene.production.state().engines, default=None)
        if newest is not None:
            self.scene.production.die(newest)

    def require_whole(self, *, told: BaseException | None = None) -> None:
        """Check that one version serves alone and that the registry says so."""
        aliases, (engines, weights) = self.scene.aliases(), self.scene.serving()
        champion = aliases[CHAMPION]
        serves = set() if champion is None else {f"specpilot-v{champion}"}
        assert engines == serves, told
        assert {app for app, weight in weights.items() if weight > 0} == serves
        others = [number for alias, number in aliases.items() if alias != CHAMPION]
        assert champion is None or champion not in others
        for _ in range(9):  # an engine that has died is started again
            statuses = self.scene.production.state().engines
        assert set(statuses.values()) <= {"RUNNING"}
        steps = [self.scene.step(version) for version in self.versions()]
        assert set(steps) <= {None, "retired", "failed"}, steps

    def versions(self) -> list[Version]:
        found = (self.scene.registry.by_number(MODEL, number) for number in range(1, 99))
        return [version for version in found if version is not None]

    def newest(self) -> Version:
        return self.versions()[-1]


def promote(world: World, number: int) -> Callable[[Scene], None]:
    def do(scene: Scene) -> None:
        version = world.scene.registry.by_number(MODEL, number)
        assert version is not None
        scene.promoter().promote(version, measure=kept(), allow_outage=True)

    return do


def roll_back(world: World, number: int) -> Callable[[Scene], None]:
    def do(scene: Scene) -> None:
        version = world.scene.registry.by_number(MODEL, number)
        assert version is not None
        scene.promoter().promote(version, kind="rollback", allow_outage=True)

    return do


def settle(scene: Scene) -> None:
    scene.promoter().settle(MODEL)


def prepared(case: str) -> tuple[World, Callable[[Scene], None], int]:
    """Return a world, what is done in it, and the version that should serve then."""
    world = World(capacity=1 if case == "swap" else 2)
    world.scene.register(3)
    if case == "first":
        return world, promote(world, 1), 1
    world.scene.promote(world.newest())
    world.scene.register(7)
    if case != "rollback":
        return world, promote(world, 2), 2
    world.scene.promote(world.newest())
    return world, roll_back(world, 1), 1


def num_calls(case: str) -> int:
    world, do, _ = prepared(case)
    fuse = Fuse()
    assert world.run(do, fuse) is None
    return fuse.num_calls


@pytest.mark.parametrize("case", ["first", "beside", "swap", "rollback"])
@pytest.mark.parametrize("fault", FAULTS)
def test_fault_at_any_call_ends_in_the_old_or_the_new_version_whole(case: str, fault: str) -> None:
    for at in range(num_calls(case)):
        world, do, _ = prepared(case)
        ended = world.run(do, Fuse(at=at, fault=fault))

        assert world.run(settle, Fuse()) is None, (at, ended)
        world.require_whole(told=ended)


@pytest.mark.parametrize("case", ["first", "beside", "swap", "rollback"])
def test_promotion_that_was_killed_at_any_call_finishes_when_it_is_run_again(case: str) -> None:
    for at in range(num_calls(case)):
        for fault in ("kill before", "kill after"):
            world, do, target = prepared(case)
            assert isinstance(world.run(do, Fuse(at=at, fault=fault)), Killed)

            ended = world.run(do, Fuse())

            is_champion = isinstance(ended, PromotionError) and "champion already" in str(ended)
            assert ended is None or is_champion, (at, fault, ended)
            world.require_whole()
            assert world.scene.aliases()[CHAMPION] == target


def test_promotion_that_goes_on_does_not_repeat_what_is_recorded() -> None:
    measured: list[int] = []

    world, *_ = prepared("beside")

    def measure(scene: Scene) -> None:
        version = world.newest()

        def count(on: Version) -> Any:
            measured.append(on.version)
            return kept()(on)

        scene.promoter().promote(version, measure=count)

    for at in range(num_calls("beside")):
        world, *_ = prepared("beside")
        measured.clear()
        world.run(measure, Fuse(at=at, fault="kill before"))
        was_recorded = world.scene.step(world.newest()) in (
            "measured",
            "soaked",
            "canary",
            "shifted",
        )
        before = len(measured)
        world.run(measure, Fuse())
        if was_recorded:
            assert len(measured) == before


@pytest.mark.parametrize("case", ["first", "beside", "swap", "rollback"])
@pytest.mark.parametrize("fault", ["fail before", "fail after", "fail long", "die"])
def test_failure_that_leaves_the_process_alive_needs_no_second_command(
    case: str, fault: str
) -> None:
    """Unless it says that it could not put production or the registry back."""
    for at in range(num_calls(case)):
        world, do, target = prepared(case)
        before = world.scene.aliases()
        ended = world.run(do, Fuse(at=at, fault=fault))
        if ended is None:
            assert world.scene.aliases()[CHAMPION] == target
        elif "could not be put back" not in str(ended) and fault != "fail long":
            assert world.scene.aliases() == before or isinstance(ended, TransientError)
            if isinstance(ended, PromotionError):
                world.require_whole(told=ended)
                assert world.versions()[target - 1].tags[REASON_TAG] not in ("", "under way")


@pytest.mark.parametrize("seed", range(400))
def test_random_commands_with_random_faults_end_in_one_version_whole(seed: int) -> None:
    source = random.Random(seed)
    world = World(capacity=source.choice([1, 2, 3]))
    world.scene.register(source.randint(1, 9))
    for _ in range(source.randint(1, 6)):
        if source.random() < 0.4:
            world.scene.register(source.randint(1, 9))
        number = source.randint(1, len(world.versions()))
        do = source.choice([promote(world, number), roll_back(world, number), settle])
        fault = source.choice([*FAULTS, ""])
        ended = world.run(do, Fuse(at=source.randrange(120), fault=fault))
        if ended is None and fault == "":
            world.require_whole()

    assert world.run(settle, Fuse()) is None
    world.require_whole()
    aliases = world.scene.aliases()
    if aliases[PREVIOUS] is not None:
        assert world.run(roll_back(world, aliases[PREVIOUS]), Fuse()) is None
        world.require_whole()
        assert world.scene.aliases()[CHAMPION] == aliases[PREVIOUS]


class JumpingClock(FakeClock):
    """A wall clock that somebody sets."""

    offset_s = 0.0

    def utc_s(self) -> float:
        return super().utc_s() + self.offset_s


def swap_with(clock: JumpingClock) -> tuple[World, Version]:
    world = World(capacity=1)
    world.scene.clock = clock
    world.scene.register(3)
    world.scene.promote(world.newest())
    world.scene.register(7)
    return world, world.newest()


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_outage_is_measured_though_the_clock_is_set_meanwhile(jump_s: float) -> None:
    clock = JumpingClock()
    world, version = swap_with(clock)

    def measure(on: Version) -> Measurement:
        clock.sleep(40.0)
        clock.offset_s = jump_s
        return kept()(on)

    done = world.scene.promoter().promote(version, measure=measure, allow_outage=True)

    assert done.outage_s == pytest.approx(42, abs=3)


@pytest.mark.parametrize("jump_s", [-3600.0, -86400.0 * 365])
def test_outage_that_began_before_the_clock_was_set_back_is_not_known(jump_s: float) -> None:
    for at in range(num_calls("swap")):
        clock = JumpingClock()
        world, version = swap_with(clock)
        world.run(promote(world, version.version), Fuse(at=at, fault="kill after"))
        if world.scene.step(version) != "stopped":
            continue
        clock.offset_s = jump_s

        assert world.run(promote(world, version.version), Fuse()) is None

        assert world.scene.tag(version, OUTAGE_TAG) == OUTAGE_NOT_KNOWN
        return
    raise AssertionError("no kill left the outage open")
