"""Promotions in a world that somebody else changes: versions deleted, engines that do not come."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from promotion_scene import (
    MODEL,
    RecordingRegistry,
    Scene,
    kept,
    promote_and_die,
    scene_with_champion,
)

from orchestrator.errors import ConfigError, PromotionError, TransientError
from orchestrator.fakes.production import FakeProduction
from orchestrator.ports import ProductionState, Served, Version
from orchestrator.promotion_record import CHALLENGER, CHAMPION, PREVIOUS, RECORD_TAG, STEP_TAG
from orchestrator.promotion_steps import Measure, Measurement


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


def version(scene: Scene, number: int) -> Version:
    found = scene.registry.by_number(MODEL, number)
    assert found is not None
    return found


@pytest.mark.parametrize("deleted", [{1}, {3}, {1, 3}])
def test_promotion_that_goes_back_does_not_wait_for_a_version_that_was_deleted(
    deleted: set[int],
) -> None:
    registry, scene = pruned_scene()
    promote_and_die(scene, version(scene, 4), "booted")
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
    promote_and_die(scene, version(scene, 4), "aliased")
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
    promote_and_die(scene, version(scene, 4), step)
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


class RestartedController(FakeProduction):
    """Its engines answer; for some looks Serve does not call them RUNNING.

    So it is when its controller was restarted, and when health checks came late.
    """

    num_looks = 0
    status = "DEPLOYING"

    def state(self) -> ProductionState:
        found = super().state()
        self.num_looks -= 1
        if self.num_looks < 0:
            return found
        return ProductionState(
            weights=found.weights,
            engines=dict.fromkeys(found.engines, self.status),
            router_status="DEPLOYING",
            messages=dict.fromkeys(found.engines, "recovering"),
        )


@pytest.mark.parametrize("status", ["DEPLOYING", "UNHEALTHY"])
def test_champion_that_answers_is_not_ended_because_serve_does_not_call_it_running(
    status: str,
) -> None:
    production = RestartedController(capacity=1)
    scene, challenger = scene_with_champion(production)
    declared = len(production.declarations)
    production.num_looks, production.status = 20, status

    with pytest.raises(ConfigError, match="no board is free beside the one that serves"):
        scene.promote(challenger)

    assert len(production.declarations) == declared


def test_one_answer_that_is_lost_does_not_end_a_champion_that_serve_does_not_call_running() -> None:
    class Stumbling(RestartedController):
        num_lost = 0

        def complete(self, prompt: str, max_tokens: int, app: str | None) -> Mapping[str, object]:
            self.num_lost -= 1
            if self.num_lost >= 0:
                raise TransientError("the network")
            return super().complete(prompt, max_tokens, app)

    production = Stumbling(capacity=1)
    scene, challenger = scene_with_champion(production)
    production.num_looks, production.num_lost = 20, 1

    with pytest.raises(ConfigError, match="no board is free beside the one that serves"):
        scene.promote(challenger)


def test_champion_that_answers_serves_until_the_challenger_does_whatever_serve_calls_it() -> None:
    production = RestartedController(capacity=2)
    scene, challenger = scene_with_champion(production)
    declared = len(production.declarations)
    production.num_looks = 12

    done = scene.promote(challenger)

    assert done.outage_s is None
    assert all(weights for _, weights in production.declarations[declared:])
    assert scene.serving() == ({"specpilot-v2"}, {"specpilot-v2": 1.0})


def champion_lost_meanwhile(
    capacity: int, lost: Callable[[Mapping[str, object]], bool]
) -> tuple[Scene, Version, list[bool]]:
    """Return a scene whose champion is lost once the list holds something."""
    is_lost: list[bool] = []

    def fails(spec: Mapping[str, object]) -> bool:
        return bool(is_lost) and lost(spec)

    scene, challenger = scene_with_champion(FakeProduction(capacity=capacity, fails=fails))
    return scene, challenger, is_lost


@pytest.mark.parametrize("capacity", [1, 2])
def test_champion_that_does_not_come_back_keeps_no_other_version_out(capacity: int) -> None:
    """Its folder may be gone: then another version is all that can serve."""
    scene, bad, is_lost = champion_lost_meanwhile(capacity, lambda spec: spec["depth"] in (3, 7))

    def measure(_on: Version) -> Measurement:
        is_lost.append(True)
        raise PromotionError("3 requests failed")

    with pytest.raises(PromotionError, match="production could not be put back: version 1 is"):
        scene.promoter().promote(bad, measure=measure, allow_outage=True)
    assert scene.serving() == ({"specpilot-v1"}, {"specpilot-v1": 1.0})
    assert scene.step(bad) == "failed"
    with pytest.raises(PromotionError, match="version 1 of demo: specpilot-v1 did not start"):
        scene.promoter().sync(MODEL)

    good = scene.register(5)
    scene.promoter().promote(good, measure=kept(), allow_outage=True)

    assert scene.serving() == ({"specpilot-v3"}, {"specpilot-v3": 1.0})
    assert scene.aliases() == {CHAMPION: 3, CHALLENGER: None, PREVIOUS: 1}


def test_old_version_without_answers_and_new_one_without_an_end_are_told_as_one_fault() -> None:
    is_lost: list[bool] = []

    class Lingering(FakeProduction):
        """Its second version does not end."""

        def state(self) -> ProductionState:
            found = super().state()
            lingers = {"specpilot-v2": "RUNNING"} if is_lost else {}
            return replace(found, engines={**found.engines, **lingers})

    def measure(_on: Version) -> Measurement:
        is_lost.append(True)
        raise PromotionError("3 requests failed")

    scene, bad = scene_with_champion(
        Lingering(fails=lambda spec: bool(is_lost) and spec["depth"] == 3)
    )

    with pytest.raises(PromotionError) as caught:
        scene.promote(bad, measure)

    text = str(caught.value)
    assert text.count("could not be put back") == 1
    assert "version 1 is declared alone and does not answer: specpilot-v1 did not start" in text
    assert text.endswith("; specpilot-v2 did not end in 300 s")
    assert text.endswith(scene.said[-1])
    assert scene.step(bad) == "verified"  # its record is open: the next command tries again


def test_alias_that_was_moved_by_hand_is_told_as_that_and_what_serves_is_left_alone() -> None:
    scene, other = scene_with_champion()
    scene.registry.set_alias(MODEL, CHAMPION, other.version)
    before = scene.serving()

    for command in (
        lambda: scene.promoter().sync(MODEL),
        lambda: scene.promote(version(scene, 1)),
    ):
        with pytest.raises(ConfigError) as caught:
            command()
        error = caught.value
        assert error.problem.endswith("has promoted a version 1 that is not its champion")
        assert "if the alias was moved by hand, give it back" in error.remedy
        assert "production.route" not in str(error)

    assert scene.serving() == before
    scene.registry.set_alias(MODEL, CHAMPION, 1)
    scene.promote(other)
    assert scene.serving() == ({"specpilot-v2"}, {"specpilot-v2": 1.0})


@pytest.mark.parametrize("step", ["verified", "shifted", "drained"])
def test_promotion_whose_tags_somebody_removed_is_ended_as_the_remedy_says(step: str) -> None:
    _, scene = pruned_scene()
    promote_and_die(scene, version(scene, 4), step)
    scene.registry.set_tag(MODEL, 4, STEP_TAG, "half way")
    with pytest.raises(ConfigError, match=r"remove specpilot.promotion and .*, then `sync`"):
        scene.promoter().sync(MODEL)

    scene.registry.remove_tags(4, {RECORD_TAG, STEP_TAG})
    scene.promoter().sync(MODEL)

    assert scene.serving() == ({"specpilot-v2"}, {"specpilot-v2": 1.0})


def meanwhile(scene: Scene, at: str, do: Callable[[], None]) -> Measure:
    """Let another process do something once, while the promotion measures or drains."""
    served, is_done = scene.production.served, list[bool]()

    def once() -> None:
        if not is_done:
            is_done.append(True)
            do()

    def look() -> Mapping[str, Served]:
        if at == "drain" and scene.step(version(scene, 2)) == "shifted":
            once()
        return served()

    def measure(on: Version) -> Measurement:
        if at == "measure":
            once()
        return kept()(on)

    scene.production.served = look  # type: ignore[method-assign]
    return measure


@pytest.mark.parametrize("at", ["measure", "drain"])
def test_promoter_that_comes_back_after_another_has_ended_its_promotion_touches_nothing(
    at: str,
) -> None:
    """Its claim on the cluster was lost, and it was stopped for a while."""
    scene, challenger = scene_with_champion()
    measure = meanwhile(scene, at, lambda: scene.promoter().settle(MODEL))

    with pytest.raises(PromotionError, match="another command has ended it meanwhile"):
        scene.promote(challenger, measure)

    assert scene.serving() == ({"specpilot-v1"}, {"specpilot-v1": 1.0})
    assert scene.aliases()[CHAMPION] == 1
    assert scene.step(challenger) == "failed"


@pytest.mark.parametrize("at", ["measure", "drain"])
def test_promoter_that_comes_back_after_another_version_was_promoted_touches_nothing(
    at: str,
) -> None:
    scene, challenger = scene_with_champion()
    third = scene.register(5)

    def promote_third() -> None:
        scene.promote(third)

    measure = meanwhile(scene, at, promote_third)

    with pytest.raises(PromotionError, match="another command has ended it meanwhile"):
        scene.promote(challenger, measure)

    assert scene.serving() == ({"specpilot-v3"}, {"specpilot-v3": 1.0})
    assert scene.aliases() == {CHAMPION: 3, CHALLENGER: None, PREVIOUS: 1}


def test_promoter_that_comes_back_as_champion_of_the_past_does_not_end_the_next_one() -> None:
    scene, challenger = scene_with_champion()
    third = scene.register(5)
    crown, is_done = scene.registry.set_alias, list[bool]()

    def set_alias(model_name: str, alias: str, number: int) -> None:
        crown(model_name, alias, number)
        if (alias, number) == (CHAMPION, challenger.version) and not is_done:
            is_done.append(True)
            scene.promote(third)

    scene.registry.set_alias = set_alias  # type: ignore[method-assign]

    scene.promote(challenger)

    assert any("another command has gone on since" in text for text in scene.said)
    assert scene.serving() == ({"specpilot-v3"}, {"specpilot-v3": 1.0})
    assert scene.aliases() == {CHAMPION: 3, CHALLENGER: None, PREVIOUS: 2}
