"""Promotions in a world that somebody else changes: versions deleted, engines that do not come."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from promotion_scene import (
    MODEL,
    Fuse,
    Killed,
    RecordingRegistry,
    Scene,
    Wire,
    kept,
    scene_with_champion,
)

from orchestrator.errors import ConfigError, PromotionError
from orchestrator.fakes.production import FakeProduction
from orchestrator.ports import ProductionState, Version
from orchestrator.promotion_record import CHALLENGER, CHAMPION, PREVIOUS


class PrunedRegistry(RecordingRegistry):
    """Versions can be deleted, as in MLflow, whose aliases go with them."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted: set[int] = set()

    def by_number(self, model_name: str, version: int) -> Version | None:
        return None if version in self.deleted else super().by_number(model_name, version)


def pruned_scene() -> tuple[PrunedRegistry, Scene]:
    """Return a scene in which version 2 serves, 1 did before, 3 waits and 4 is to be promoted."""
    registry = PrunedRegistry()
    scene = Scene(registry=registry)
    for depth in (3, 4):
        scene.promote(scene.register(depth))
    scene.register(5)
    scene.registry.create_version(MODEL, "run-1", {"depth": 6}, {})
    return registry, scene


def promote_and_die(scene: Scene, number: int, at: tuple[str, str]) -> None:
    """Kill the promotion of a version at one call to the registry."""
    fuse = Fuse()

    def dies(call: str, what: str) -> bool:
        if (call, what) == at:
            fuse.is_dead = True
            raise Killed
        return False

    scene.registry.refuses = dies
    killed = Scene(
        production=Wire(scene.production, fuse),  # type: ignore[arg-type]
        registry=Wire(scene.registry, fuse),  # type: ignore[arg-type]
        clock=scene.clock,
        free_boards=lambda: scene.production.num_free,
    )
    with pytest.raises(Killed):
        killed.promote(version(scene, number))
    scene.registry.refuses = lambda _call, _what: False


def version(scene: Scene, number: int) -> Version:
    found = scene.registry.by_number(MODEL, number)
    assert found is not None
    return found


@pytest.mark.parametrize("deleted", [{1}, {3}, {1, 3}])
def test_promotion_that_goes_back_does_not_wait_for_a_version_that_was_deleted(
    deleted: set[int],
) -> None:
    registry, scene = pruned_scene()
    promote_and_die(scene, 4, ("tag", "booted"))
    registry.deleted |= deleted

    scene.promoter().settle(MODEL)

    assert scene.step(version(scene, 4)) == "failed"
    assert scene.serving() == ({"specpilot-v2"}, {"specpilot-v2": 1.0})
    assert scene.aliases() == {
        CHAMPION: 2,
        CHALLENGER: None if 3 in deleted else 3,
        PREVIOUS: None if 1 in deleted else 1,
    }


@pytest.mark.parametrize("deleted", [{2}, {3}, {2, 3}])
def test_promotion_that_is_finished_does_not_wait_for_a_version_that_was_deleted(
    deleted: set[int],
) -> None:
    registry, scene = pruned_scene()
    promote_and_die(scene, 4, ("tag", "aliased"))
    registry.deleted |= deleted

    scene.promoter().settle(MODEL)

    assert scene.step(version(scene, 4)) == "retired"
    assert scene.serving() == ({"specpilot-v4"}, {"specpilot-v4": 1.0})
    assert scene.aliases() == {
        CHAMPION: 4,
        CHALLENGER: None if 3 in deleted else 3,
        PREVIOUS: None if 2 in deleted else 2,
    }


@pytest.mark.parametrize("step", ["booted", "shifted"])
def test_production_of_a_champion_that_was_deleted_is_left_alone(step: str) -> None:
    """Whoever deletes the alias or the version of what serves has not said what should."""
    registry, scene = pruned_scene()
    promote_and_die(scene, 4, ("tag", step))
    registry.deleted.add(2)
    before = scene.serving()

    for command in (
        lambda: scene.promoter().settle(MODEL),
        lambda: scene.promoter().sync(MODEL),
        lambda: scene.promote(version(scene, 4)),
    ):
        with pytest.raises(ConfigError, match="'demo' has no champion, which was version 2"):
            command()

    assert scene.serving() == before
    scene.registry.set_alias(MODEL, CHAMPION, 4)
    scene.promoter().sync(MODEL)
    assert scene.serving() == ({"specpilot-v4"}, {"specpilot-v4": 1.0})
