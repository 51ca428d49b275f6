"""Promotions on the shipped production and registry: fully the new or fully the old."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from orchestrator.core.promotion import PromotionStep
from orchestrator.errors import ConfigError, MeasurementError, PromotionError, TransientError
from orchestrator.fakes.production import FakeProduction
from orchestrator.fakes.tracker import FakeRegistry
from orchestrator.fakes.world import FakeClock
from orchestrator.ports import ProductionState, Version
from orchestrator.promote import (
    CHALLENGER,
    CHAMPION,
    FAILED_STEP,
    PREVIOUS,
    STEP_TAG,
    Promoted,
    Promoter,
    PromotionSettings,
    app_name,
)

MODEL = "demo"
DEADLINE_S = 300.0


class RecordingRegistry(FakeRegistry):
    """Remembers the steps that were recorded, and can be gone from one call on."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[str] = []
        self.refuses: Callable[[str, str], bool] = lambda _call, _what: False

    def set_tag(self, model_name: str, version: int, key: str, value: str) -> None:
        self._call("tag", value)
        super().set_tag(model_name, version, key, value)
        if key == STEP_TAG:
            self.steps.append(value)

    def set_alias(self, model_name: str, alias: str, version: int) -> None:
        self._call("alias", alias)
        super().set_alias(model_name, alias, version)

    def delete_alias(self, model_name: str, alias: str) -> None:
        self._call("delete", alias)
        super().delete_alias(model_name, alias)

    def _call(self, call: str, what: str) -> None:
        if self.refuses(call, what):
            raise TransientError("the registry does not answer")


class MuteProduction(FakeProduction):
    """Its challenger answers, and says nothing."""

    def complete(self, prompt: str, max_tokens: int, app: str | None) -> Mapping[str, object]:
        answer = dict(super().complete(prompt, max_tokens, app))
        silent = app is None or app.endswith("v2")
        return answer | ({"text": "", "output_tokens": 0} if silent else {})


@dataclass
class Scene:
    """Production with nothing or one champion, and a registered challenger."""

    production: FakeProduction = field(default_factory=FakeProduction)
    registry: RecordingRegistry = field(default_factory=RecordingRegistry)
    clock: FakeClock = field(default_factory=FakeClock)
    said: list[str] = field(default_factory=list)

    def register(self, depth: int) -> Version:
        version = self.registry.create_version(MODEL, "run-1", {"depth": depth}, {})
        self.registry.set_alias(MODEL, CHALLENGER, version.version)
        return version

    def promote(
        self, version: Version, measure: Callable[[], float | None] | None = None
    ) -> Promoted:
        return self.promoter().promote(version, measure)

    def promoter(self) -> Promoter:
        settings = PromotionSettings(
            name="specpilot",
            deadline_s=DEADLINE_S,
            verify_requests=3,
            verify_prompts=("a", "b"),
            verify_max_tokens=8,
        )
        return Promoter(self.registry, self.production, self.clock, settings, self.said.append)

    def aliases(self) -> dict[str, int | None]:
        versions = {
            alias: self.registry.by_alias(MODEL, alias)
            for alias in (CHAMPION, CHALLENGER, PREVIOUS)
        }
        return {alias: v.version if v is not None else None for alias, v in versions.items()}

    def serving(self) -> tuple[set[str], dict[str, float]]:
        state: ProductionState = self.production.state()
        return set(state.engines), dict(state.weights)

    def step(self, version: Version) -> str | None:
        found = self.registry.by_number(MODEL, version.version)
        assert found is not None
        return found.tags.get(STEP_TAG)


def scene_with_champion(production: FakeProduction | None = None) -> tuple[Scene, Version]:
    """Return a scene in which version 1 serves, and version 2, its challenger."""
    scene = Scene(production=production or FakeProduction())
    first = scene.register(3)
    if isinstance(production, MuteProduction):
        scene.production.declare({app_name("specpilot", 1): first.config}, {"specpilot-v1": 1.0})
        scene.registry.set_alias(MODEL, CHAMPION, 1)
        scene.production.state()
    else:
        scene.promote(first)
    scene.registry.steps.clear()
    return scene, scene.register(7)


def test_first_promotion_makes_the_challenger_the_champion_that_serves_alone() -> None:
    scene = Scene()
    version = scene.register(7)

    done = scene.promote(version, lambda: 42.0)

    assert done == Promoted(version=1, previous=None, verified_throughput=42.0)
    assert scene.aliases() == {CHAMPION: 1, CHALLENGER: None, PREVIOUS: None}
    assert scene.serving() == ({"specpilot-v1"}, {"specpilot-v1": 1.0})


def test_promotion_over_a_champion_shifts_the_traffic_and_then_ends_the_old_engine() -> None:
    scene, version = scene_with_champion()
    begun = len(scene.production.declarations)

    done = scene.promote(version)

    assert done == Promoted(version=2, previous=1, verified_throughput=None)
    assert scene.aliases() == {CHAMPION: 2, CHALLENGER: None, PREVIOUS: 1}
    assert scene.production.declarations[begun:] == [
        (("specpilot-v1", "specpilot-v2"), {"specpilot-v1": 1.0}),
        (("specpilot-v1", "specpilot-v2"), {"specpilot-v2": 1.0}),
        (("specpilot-v2",), {"specpilot-v2": 1.0}),
    ]


def test_promotion_measures_while_the_challenger_has_all_the_traffic_and_the_old_still_runs() -> (
    None
):
    scene, version = scene_with_champion()
    seen: list[tuple[set[str], dict[str, float]]] = []

    def measure() -> float:
        seen.append(scene.serving())
        return 1.0

    scene.promote(version, measure)

    assert seen == [({"specpilot-v1", "specpilot-v2"}, {"specpilot-v2": 1.0})]


def test_clients_are_served_in_every_moment_of_a_promotion() -> None:
    class WatchedProduction(FakeProduction):
        is_watched = False

        def declare(
            self, engines: Mapping[str, Mapping[str, object]], weights: Mapping[str, float]
        ) -> None:
            super().declare(engines, weights)
            self.ask()

        def state(self) -> ProductionState:
            state = super().state()
            self.ask()
            return state

        def ask(self) -> None:
            if self.is_watched:
                assert self.complete("x", 4, None)["text"]

    production = WatchedProduction()
    scene = Scene(production=production)
    scene.promote(scene.register(3))
    production.is_watched = True

    scene.promote(scene.register(7))

    assert len(production.declarations) == 6


def test_steps_are_recorded_on_the_version_in_their_order() -> None:
    scene, version = scene_with_champion()

    scene.promote(version)

    assert scene.registry.steps == [
        "challenger",
        "booted",
        "verified",
        "shifted",
        "aliased",
        "retired",
    ]
    assert scene.step(version) == "retired"
    assert len(scene.said) >= 6


def test_promoting_the_champion_again_is_refused_and_touches_nothing() -> None:
    scene, _ = scene_with_champion()
    champion = scene.registry.by_alias(MODEL, CHAMPION)
    assert champion is not None
    begun, before = len(scene.production.declarations), scene.aliases()

    with pytest.raises(PromotionError, match="is the champion already"):
        scene.promote(champion)

    assert len(scene.production.declarations) == begun
    assert scene.aliases() == before


def is_challenger(spec: Mapping[str, object]) -> bool:
    return spec["depth"] == 7


def fail_measure(error: BaseException) -> Callable[[], float]:
    def measure() -> float:
        raise error

    return measure


FAILURES: list[tuple[str, Callable[[], FakeProduction], BaseException | None, str]] = [
    ("boot", lambda: FakeProduction(fails=is_challenger), None, "specpilot-v2 did not start"),
    ("no answer", lambda: FakeProduction(is_broken=is_challenger), None, "no completion"),
    ("empty", MuteProduction, None, "answer 1 of the verification was empty"),
    ("no board", lambda: FakeProduction(capacity=1), None, "production.deadline_s"),
    ("load", FakeProduction, PromotionError("3 requests failed"), "3 requests failed"),
    ("window", FakeProduction, MeasurementError("too short"), "too short"),
    ("network", FakeProduction, TransientError("reset"), "reset"),
    ("refused", FakeProduction, ConfigError("a", "b", "c"), "a: b; c"),
    ("bug", FakeProduction, ValueError("bug"), "bug"),
]


@pytest.mark.parametrize(
    ("production", "error", "says"),
    [case[1:] for case in FAILURES],
    ids=[case[0] for case in FAILURES],
)
def test_promotion_that_fails_leaves_production_and_aliases_as_they_were(
    production: Callable[[], FakeProduction], error: BaseException | None, says: str
) -> None:
    """F06: production serves the previous version again."""
    scene, version = scene_with_champion(production())
    serving, aliases = scene.serving(), scene.aliases()
    assert serving == ({"specpilot-v1"}, {"specpilot-v1": 1.0})

    with pytest.raises(PromotionError, match=says):
        scene.promote(version, None if error is None else fail_measure(error))

    assert scene.serving() == serving
    assert scene.aliases() == aliases == {CHAMPION: 1, CHALLENGER: 2, PREVIOUS: None}
    assert scene.step(version) == "failed"
    assert scene.production.state().engines == {"specpilot-v1": "RUNNING"}


def test_first_promotion_that_fails_leaves_no_engine_and_no_champion() -> None:
    scene = Scene(production=FakeProduction(fails=is_challenger))
    version = scene.register(7)

    with pytest.raises(PromotionError):
        scene.promote(version)

    assert scene.serving() == (set(), {})
    assert scene.aliases() == {CHAMPION: None, CHALLENGER: 1, PREVIOUS: None}


def test_interrupted_promotion_is_put_back_and_stays_an_interrupt() -> None:
    scene, version = scene_with_champion()

    with pytest.raises(KeyboardInterrupt):
        scene.promote(version, fail_measure(KeyboardInterrupt()))

    assert scene.serving() == ({"specpilot-v1"}, {"specpilot-v1": 1.0})
    assert scene.aliases()[CHAMPION] == 1


def test_challenger_that_does_not_come_up_is_waited_for_until_the_deadline_only() -> None:
    scene, version = scene_with_champion(FakeProduction(capacity=1))
    begun = scene.clock.monotonic()

    with pytest.raises(PromotionError, match=r"DEPLOYING after 300 s"):
        scene.promote(version)

    assert scene.clock.monotonic() - begun == pytest.approx(DEADLINE_S, abs=2.0)


def test_slow_boot_within_the_deadline_is_no_failure() -> None:
    """F12: a seven-minute boot."""
    scene = Scene(production=FakeProduction(polls_to_start=200))

    scene.promote(scene.register(7))

    assert scene.aliases()[CHAMPION] == 1
    assert 190 < scene.clock.monotonic() < DEADLINE_S


@pytest.mark.parametrize("alias", [PREVIOUS, CHAMPION])
def test_registry_that_is_gone_when_the_champion_is_named_undoes_the_shift(alias: str) -> None:
    scene, version = scene_with_champion()
    refusals = iter([True])
    scene.registry.refuses = lambda call, what: (
        (call, what) == ("alias", alias) and next(refusals, False)
    )

    with pytest.raises(PromotionError, match="registry does not answer"):
        scene.promote(version)

    assert scene.serving() == ({"specpilot-v1"}, {"specpilot-v1": 1.0})
    assert scene.aliases() == {CHAMPION: 1, CHALLENGER: 2, PREVIOUS: None}


def test_production_is_put_back_even_if_the_registry_stays_gone() -> None:
    scene, version = scene_with_champion()
    shifted: list[str] = []

    def gone(_call: str, what: str) -> bool:
        if what == "shifted":
            shifted.append(what)
        return bool(shifted)

    scene.registry.refuses = gone

    with pytest.raises(PromotionError, match="the registry could not be put back"):
        scene.promote(version)

    assert scene.serving() == ({"specpilot-v1"}, {"specpilot-v1": 1.0})
    assert scene.aliases()[CHAMPION] == 1


def test_production_that_cannot_be_put_back_is_said_out_loud() -> None:
    class StubbornProduction(FakeProduction):
        num_left = 2

        def declare(
            self, engines: Mapping[str, Mapping[str, object]], weights: Mapping[str, float]
        ) -> None:
            self.num_left -= 1
            if self.num_left < 0:
                raise TransientError("Serve does not answer")
            super().declare(engines, weights)

    production = StubbornProduction()
    scene = Scene(production=production)
    version = scene.register(7)

    with pytest.raises(PromotionError, match="production could not be put back: Serve does not"):
        scene.promote(version, fail_measure(PromotionError("3 requests failed")))

    assert any("could not be put back" in line for line in scene.said)
    assert scene.aliases()[CHAMPION] is None


def test_version_that_serves_stays_champion_if_the_old_engine_cannot_be_ended() -> None:
    scene, version = scene_with_champion()
    scene.registry.refuses = lambda call, _what: call == "delete"

    done = scene.promote(version)

    assert done.version == 2
    assert scene.aliases()[CHAMPION] == 2
    assert scene.serving()[1] == {"specpilot-v2": 1.0}
    assert any("what was before it is left" in line for line in scene.said)


def test_lost_champion_is_brought_back_from_the_registry_alone() -> None:
    scene, _ = scene_with_champion()
    champion = scene.registry.by_alias(MODEL, CHAMPION)
    assert champion is not None
    scene.production = FakeProduction()

    scene.promoter().reapply(champion)

    assert scene.serving() == ({"specpilot-v1"}, {"specpilot-v1": 1.0})


def test_lost_champion_that_does_not_come_up_is_an_error() -> None:
    scene, _ = scene_with_champion()
    champion = scene.registry.by_alias(MODEL, CHAMPION)
    assert champion is not None
    scene.production = FakeProduction(fails=lambda _spec: True)

    with pytest.raises(PromotionError, match="did not start"):
        scene.promoter().reapply(champion)


class Killed(BaseException):
    """Stands for a SIGKILL: what comes after it is not done."""


@pytest.mark.parametrize("after", ["challenger", "booted", "verified", "shifted", "aliased"])
def test_promotion_that_was_killed_is_settled_by_the_next_command(
    after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, version = scene_with_champion()
    promoter = scene.promoter()
    done = Promoter._done

    def kill(self: Promoter, on: Version, step: PromotionStep, text: str) -> None:
        done(self, on, step, text)
        if step.value == after:
            if step is PromotionStep.CHALLENGER:  # the declaration comes after its record
                scene.production.declare(both, {"specpilot-v1": 1.0})
            raise Killed

    first = scene.registry.by_number(MODEL, 1)
    assert first is not None
    both = {"specpilot-v1": first.config, "specpilot-v2": version.config}
    monkeypatch.setattr(Promoter, "_done", kill)
    monkeypatch.setattr(Promoter, "_undo", lambda *_: "")
    with pytest.raises(Killed):
        promoter.promote(version)
    monkeypatch.undo()
    assert scene.serving()[0] == {"specpilot-v1", "specpilot-v2"}

    scene.promoter().settle(MODEL, scene.registry.by_alias(MODEL, CHAMPION))

    serves = "specpilot-v2" if after == "aliased" else "specpilot-v1"
    assert scene.serving() == ({serves}, {serves: 1.0})
    assert scene.step(version) == ("retired" if after == "aliased" else "failed")


def test_settling_refuses_and_leaves_alone_what_this_model_never_promoted() -> None:
    scene, version = scene_with_champion()
    scene.production.declare({"specpilot-v1": {}, "specpilot-v2": {}}, {"specpilot-v1": 1.0})
    before = scene.serving()

    with pytest.raises(ConfigError, match="specpilot-v2, which is no version"):
        scene.promoter().settle(MODEL, scene.registry.by_alias(MODEL, CHAMPION))
    with pytest.raises(ConfigError, match="specpilot-v1, specpilot-v2"):
        scene.promoter().settle("another", None)

    assert scene.serving() == before
    assert scene.step(version) is None


def test_settling_ends_the_engine_of_a_promotion_that_could_not_be_undone() -> None:
    scene, version = scene_with_champion()
    first = scene.registry.by_number(MODEL, 1)
    assert first is not None
    both = {"specpilot-v1": first.config, "specpilot-v2": version.config}
    scene.production.declare(both, {"specpilot-v1": 1.0})
    scene.registry.set_tag(MODEL, version.version, STEP_TAG, FAILED_STEP)

    scene.promoter().settle(MODEL, scene.registry.by_alias(MODEL, CHAMPION))

    assert scene.serving() == ({"specpilot-v1"}, {"specpilot-v1": 1.0})
