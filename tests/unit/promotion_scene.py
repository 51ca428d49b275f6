"""Production with a registry, in memory, on which promotions are tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from orchestrator.core.promotion import Gate
from orchestrator.errors import TransientError
from orchestrator.fakes.production import FakeProduction
from orchestrator.fakes.tracker import FakeRegistry
from orchestrator.fakes.world import FakeClock
from orchestrator.ports import ProductionState, Version
from orchestrator.production_stage import PromotionSettings, app_name
from orchestrator.promote import Promoted, Promoter
from orchestrator.promotion_record import CHALLENGER, CHAMPION, PREVIOUS, STEP_TAG
from orchestrator.promotion_steps import Measure, Measurement

MODEL = "demo"
DEADLINE_S = 300.0
LONG = 8
"""Calls that a long failure lasts: more than are tried again."""


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

    def remove_tags(self, version: int, names: set[str]) -> None:
        """Remove tags as somebody with MLflow's page does."""
        found = self._versions[MODEL][version - 1]
        left = {name: text for name, text in found.tags.items() if name not in names}
        self._versions[MODEL][version - 1] = replace(found, tags=left)

    def _call(self, call: str, what: str) -> None:
        if self.refuses(call, what):
            raise TransientError("the registry does not answer")


class MuteProduction(FakeProduction):
    """Its challenger answers, and says nothing."""

    def complete(self, prompt: str, max_tokens: int, app: str | None) -> Mapping[str, object]:
        answer = dict(super().complete(prompt, max_tokens, app))
        silent = str(answer["system_fingerprint"]).endswith("v2")
        return answer | ({"text": "", "output_tokens": 0} if silent else {})


class Killed(BaseException):
    """A SIGKILL: every later call of the process is one, too."""


@dataclass
class Fuse:
    """Counts the calls of one process to the world outside, and blows at one of them."""

    at: int = -1
    fault: str = ""
    die: Callable[[], None] = lambda: None
    num_calls: int = 0
    is_dead: bool = False

    def before(self) -> None:
        if self.is_dead:
            raise Killed
        here = self.num_calls == self.at
        lasting = self.fault == "fail long" and self.at <= self.num_calls < self.at + LONG
        self.num_calls += 1
        if here and self.fault == "kill before":
            self.is_dead = True
            raise Killed
        if lasting or (here and self.fault == "fail before"):
            raise TransientError("the network")
        if here and self.fault == "die":
            self.die()

    def after(self) -> None:
        if self.num_calls - 1 != self.at:
            return
        if self.fault == "kill after":
            self.is_dead = True
            raise Killed
        if self.fault == "fail after":
            raise TransientError("the network, after the call was done")


class Wire:
    """A port whose calls go through a fuse."""

    def __init__(self, target: Any, fuse: Fuse) -> None:
        self._target = target
        self._fuse = fuse

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not callable(found):
            return found

        def call(*args: Any, **keywords: Any) -> Any:
            self._fuse.before()
            result = found(*args, **keywords)
            self._fuse.after()
            return result

        return call


@dataclass
class Scene:
    """Production with nothing or one champion, and a registered challenger."""

    production: FakeProduction = field(default_factory=FakeProduction)
    registry: RecordingRegistry = field(default_factory=RecordingRegistry)
    clock: FakeClock = field(default_factory=FakeClock)
    said: list[str] = field(default_factory=list)
    free_boards: Callable[[], int] | None = None
    canary_share: float = 0.1
    canary_requests: int | None = None
    canary_s: float = 30.0
    admit: Callable[[Version], object] = lambda _version: None

    def register(self, depth: int) -> Version:
        version = self.registry.create_version(MODEL, "run-1", {"depth": depth}, {})
        self.registry.set_alias(MODEL, CHALLENGER, version.version)
        return version

    def promote(self, version: Version, measure: Measure | None = None) -> Promoted:
        return self.promoter().promote(version, measure=measure)

    def promoter(self) -> Promoter:
        settings = PromotionSettings(
            name="specpilot",
            deadline_s=DEADLINE_S,
            verify_requests=3,
            verify_prompts=("a", "b"),
            verify_max_tokens=8,
            canary_share=self.canary_share,
            canary_s=self.canary_s,
            canary_requests=self.canary_requests,
            measure_s=45.0,
        )
        free = self.free_boards or (lambda: self.production.num_free)
        return Promoter(
            self.registry,
            self.production,
            self.clock,
            settings,
            self.said.append,
            free,
            self.admit,
        )

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
        return self.tag(version, STEP_TAG)

    def tag(self, version: Version, name: str) -> str | None:
        found = self.registry.by_number(MODEL, version.version)
        assert found is not None
        return found.tags.get(name)


def kept(throughput: float | None = 42.0) -> Measure:
    """Return a measurement that finds what was promised."""
    gate = Gate(name="promise", passed=True, reason="as promised")
    return lambda _version: Measurement(throughput=throughput, gate=gate)


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


def promote_and_die(scene: Scene, version: Version, step: str) -> None:
    """Promote in a process that is killed when it would record this step."""
    fuse = Fuse()

    def dies(call: str, what: str) -> bool:
        if (call, what) == ("tag", step):
            fuse.is_dead = True
            raise Killed
        return False

    scene.registry.refuses = dies
    registry: Any = Wire(scene.registry, fuse)
    production: Any = Wire(scene.production, fuse)
    with pytest.raises(Killed):
        replace(scene, registry=registry, production=production).promote(version)
    scene.registry.refuses = lambda _call, _what: False
