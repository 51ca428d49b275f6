"""The champion brought back from the registry alone."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from promotion_scene import (
    MODEL,
    Fuse,
    Killed,
    MuteProduction,
    Scene,
    Wire,
    promote_and_die,
    scene_with_champion,
)

from orchestrator import commands, compose
from orchestrator.config import StudyConfig, load_config
from orchestrator.errors import ConfigError, OrchestratorError, PromotionError
from orchestrator.fakes.production import FakeProduction
from orchestrator.fakes.tracker import FakeRegistry
from orchestrator.promotion_record import CHALLENGER, CHAMPION, PREVIOUS

DEMO = Path("conf/study/demo.yaml")


def broken_at_depth_3() -> FakeProduction:
    return FakeProduction(is_broken=lambda spec: spec["depth"] == 3)


def test_sync_declares_a_lost_champion_alone_and_sees_that_it_answers() -> None:
    scene, _ = scene_with_champion(FakeProduction(polls_to_start=3))
    before = scene.aliases()
    scene.production.lose()
    assert scene.production.state().router_status is None

    scene.promoter().sync(MODEL)

    assert scene.serving() == ({"specpilot-v1"}, {"specpilot-v1": 1.0})
    assert scene.production.complete("a", 1, None)["system_fingerprint"] == "specpilot-v1"
    assert scene.aliases() == before
    assert scene.said[-2:] == ["bringing version 1 back", "version 1 serves again"]


def test_sync_of_what_serves_says_so_and_declares_nothing() -> None:
    scene, _ = scene_with_champion()
    declared = len(scene.production.declarations)

    scene.promoter().sync(MODEL)
    scene.promoter().sync(MODEL)

    assert len(scene.production.declarations) == declared
    assert scene.said[-1] == "version 1 is the champion and serves already"


def test_sync_again_after_a_loss_has_nothing_left_to_do() -> None:
    scene, _ = scene_with_champion()
    scene.production.lose()
    scene.promoter().sync(MODEL)
    declared = len(scene.production.declarations)

    scene.promoter().sync(MODEL)

    assert len(scene.production.declarations) == declared


def test_sync_of_an_engine_that_runs_without_traffic_gives_it_all() -> None:
    scene, _ = scene_with_champion()
    scene.production.declare({"specpilot-v1": {"depth": 3}}, {})

    scene.promoter().sync(MODEL)

    assert scene.serving() == ({"specpilot-v1"}, {"specpilot-v1": 1.0})


def test_sync_of_what_runs_and_does_not_answer_is_no_success() -> None:
    production = broken_at_depth_3()
    scene = Scene(production=production)
    version = scene.register(3)
    scene.registry.set_alias(MODEL, CHAMPION, version.version)
    production.declare({"specpilot-v1": version.config}, {"specpilot-v1": 1.0})
    production.state()

    with pytest.raises(PromotionError, match="version 1 of demo is up and does not answer"):
        scene.promoter().sync(MODEL)


@pytest.mark.parametrize(
    "production", [FakeProduction(fails=lambda _: True), broken_at_depth_3(), MuteProduction()]
)
def test_sync_of_a_champion_that_does_not_come_back_fails(production: FakeProduction) -> None:
    scene = Scene(production=production)
    for _ in range(2):
        version = scene.register(3)
    scene.registry.set_alias(MODEL, CHAMPION, version.version)
    before = scene.aliases()

    with pytest.raises(PromotionError, match="version 2 of demo"):
        scene.promoter().sync(MODEL)

    assert scene.aliases() == before


@pytest.mark.parametrize("step", ["booted", "verified", "shifted", "drained"])
def test_sync_after_a_lost_head_ends_a_promotion_that_was_cut_off_first(step: str) -> None:
    scene, version = scene_with_champion()
    promote_and_die(scene, version, step)
    scene.production.lose()

    scene.promoter().sync(MODEL)

    assert scene.serving() == ({"specpilot-v1"}, {"specpilot-v1": 1.0})
    assert scene.aliases() == {CHAMPION: 1, CHALLENGER: 2, PREVIOUS: None}
    assert scene.step(version) == "failed"


def test_sync_past_the_point_of_no_return_brings_the_new_champion() -> None:
    scene, version = scene_with_champion()
    promote_and_die(scene, version, "aliased")
    scene.production.lose()

    scene.promoter().sync(MODEL)

    assert scene.serving() == ({"specpilot-v2"}, {"specpilot-v2": 1.0})
    assert scene.aliases() == {CHAMPION: 2, CHALLENGER: None, PREVIOUS: 1}
    assert scene.step(version) == "retired"


def test_sync_without_a_champion_is_refused() -> None:
    scene = Scene()
    scene.register(3)

    with pytest.raises(ConfigError, match="'demo' has no champion; promote a version first"):
        scene.promoter().sync(MODEL)

    assert scene.production.declarations == []


def test_sync_of_production_that_is_not_this_models_is_refused() -> None:
    scene, _ = scene_with_champion()
    scene.production.declare({"specpilot-v9": {"depth": 1}}, {"specpilot-v9": 1.0})

    with pytest.raises(ConfigError, match="serves specpilot-v9, which is no version"):
        scene.promoter().sync(MODEL)


def test_command_without_a_champion_is_refused_before_anything_is_asked_of_ray(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def registry(_config: StudyConfig) -> FakeRegistry:
        return FakeRegistry()

    monkeypatch.setattr(compose, "registry", registry)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")

    with pytest.raises(ConfigError, match="'specpilot-demo' has no alias champion") as caught:
        commands.sync(load_config(DEMO, []))

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("fault", ["kill before", "kill after", "fail long"])
def test_sync_that_was_ended_anywhere_is_done_by_the_next(fault: str) -> None:
    for at in range(60):
        scene, _ = scene_with_champion()
        scene.production.lose()
        fuse = Fuse(at=at, fault=fault)
        registry: Any = Wire(scene.registry, fuse)
        production: Any = Wire(scene.production, fuse)
        with contextlib.suppress(Killed, OrchestratorError):
            replace(scene, registry=registry, production=production).promoter().sync(MODEL)

        scene.promoter().sync(MODEL)

        assert scene.serving() == ({"specpilot-v1"}, {"specpilot-v1": 1.0})
        if fuse.num_calls <= at:
            return
    pytest.fail("sync takes more calls than were tried")
