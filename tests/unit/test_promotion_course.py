"""The dry run's decision is what the command does, wherever an earlier promotion was cut off."""

from __future__ import annotations

import pytest
from promotion_scene import MODEL, Scene, kept, scene_with_champion
from test_promote_faults import Fuse, World, num_calls, prepared

from orchestrator.core.takeover import Kind, PromotionStep
from orchestrator.errors import ConfigError, OrchestratorError
from orchestrator.fakes.production import FakeProduction
from orchestrator.ports import Version
from orchestrator.promotion_course import Course
from orchestrator.promotion_record import CHAMPION, NEXT_TAG, RECORD_TAG, STEP_TAG

CASES = ("first", "beside", "swap", "rollback")
KILLS = [(case, at) for case in CASES for at in range(num_calls(case))]


def carried_out(
    world: World, version: Version, kind: Kind, *, allow_outage: bool
) -> tuple[Course, OrchestratorError | None, list[str]]:
    """Decide and, without looking at the decision again, promote; return what was said, too."""
    scene = world.scene
    before = len(scene.production.declarations), scene.aliases()
    course = scene.promoter().course(version, kind=kind, allow_outage=allow_outage)
    assert (len(scene.production.declarations), scene.aliases()) == before, "it only reads"
    scene.said.clear()
    try:
        scene.promoter().promote(version, kind=kind, measure=kept(), allow_outage=allow_outage)
    except OrchestratorError as error:
        return course, error, scene.said
    return course, None, scene.said


def require_as_decided(
    scene: Scene, course: Course, error: OrchestratorError | None, said: list[str]
) -> None:
    text, version = "\n".join(said), course.version
    assert ("it was cut off after" in text) == (course.first == "back")
    assert ("is the champion; ending what was before it" in text) == (course.first == "finish")
    if course.refusal is not None:
        assert str(error) == str(course.refusal)
        return
    assert error is None
    assert ("going on after" in text) == (course.then == "go on")
    assert ("serves already" in text) == (course.then == "stand")
    assert ("bringing version" in text) == (course.then == "reapply")
    aliases = scene.aliases()
    assert aliases[CHAMPION] == version.version
    if course.outset is not None:
        book = scene.promoter()._book(MODEL)
        current = book.version(version.version)
        found = None if current is None else book.read(current)
        assert found is not None
        assert found.record.mode == course.outset.mode
        assert found.record.champion_served == course.outset.is_served
        assert ("outage" in text) == course.outset.has_outage


@pytest.mark.parametrize("allow_outage", [True, False])
@pytest.mark.parametrize("who", ["same", "champion", "other"])
def test_decision_is_what_happens_wherever_the_promotion_before_was_killed(
    who: str, *, allow_outage: bool
) -> None:
    seen = set()
    for case, at in KILLS:
        world, do, number = prepared(case)
        world.run(do, Fuse(at=at, fault="kill after"))
        scene = world.scene
        if who == "other":
            version: Version | None = scene.register(9)
        elif who == "champion":
            version = scene.registry.by_alias(MODEL, CHAMPION)
        else:
            version = scene.registry.by_number(MODEL, number)
        if version is None:
            continue
        kind: Kind = "rollback" if case == "rollback" and who == "same" else "promote"

        course, error, said = carried_out(world, version, kind, allow_outage=allow_outage)

        require_as_decided(scene, course, error, said)
        seen.add((course.first, course.then))
    assert len(seen) >= 3, "the kills lead to different decisions"


def test_champion_without_a_promise_stands_and_comes_back() -> None:
    """What serves needs no admission: there is nothing to hold it against any more."""

    def refuse(_version: Version) -> None:
        raise ConfigError("version 1", "no promise", "study")

    scene, _ = scene_with_champion()
    champion = scene.registry.by_alias(MODEL, CHAMPION)
    assert champion is not None
    scene.admit = refuse

    assert scene.promoter().course(champion, kind="promote", allow_outage=False).then == "stand"
    scene.production.declare({}, {})
    assert scene.promoter().course(champion, kind="promote", allow_outage=False).then == "reapply"
    scene.promote(champion)
    assert scene.serving() == ({"specpilot-v1"}, {"specpilot-v1": 1.0})


def test_version_that_is_not_admitted_is_refused_before_anything_is_put_right() -> None:
    world, do, _ = prepared("beside")
    world.run(do, Fuse(at=num_calls("beside") // 2, fault="kill after"))
    scene = world.scene
    other = scene.register(9)
    scene.registry.set_tag(MODEL, other.version, "specpilot.gate.kv", "failed")
    other = scene.registry.by_number(MODEL, other.version) or other
    begun = len(scene.production.declarations)

    course = scene.promoter().course(other, kind="promote", allow_outage=True)

    assert not course.settles
    with pytest.raises(ConfigError, match="gate kv failed"):
        course.require_allowed()
    with pytest.raises(ConfigError, match="gate kv failed"):
        scene.promote(other)
    assert len(scene.production.declarations) == begun


def test_refusal_for_want_of_a_board_lets_what_was_cut_off_be_put_right_first() -> None:
    scene, version = scene_with_champion(FakeProduction(capacity=1))
    registry = scene.registry
    book = scene.promoter()._book(MODEL)
    record = book.draft(version, kind="promote", mode="beside", champion_served=True)
    book.begin(record)
    other = scene.register(9)

    course = scene.promoter().course(other, kind="promote", allow_outage=False)

    assert (course.first, course.then) == ("back", "refuse")
    course.require_allowed()
    with pytest.raises(ConfigError, match="no board is free"):
        scene.promote(other)
    assert scene.step(version) == PromotionStep.FAILED
    assert registry.by_alias(MODEL, CHAMPION) is not None


@pytest.mark.parametrize("tag", [NEXT_TAG, RECORD_TAG, STEP_TAG])
@pytest.mark.parametrize("text", ["\N{SUPERSCRIPT TWO}", "-1", "9" * 5000, "[" * 9000, "{}", ""])
def test_garbled_tag_is_one_line_that_names_version_tag_and_remedy(tag: str, text: str) -> None:
    scene, version = scene_with_champion()
    number = 1 if tag == NEXT_TAG else 2
    scene.registry.set_tag(MODEL, number, RECORD_TAG, "{}")
    scene.registry.set_tag(MODEL, number, STEP_TAG, "booted")
    scene.registry.set_tag(MODEL, number, tag, text)
    version = scene.registry.by_number(MODEL, 2) or version

    with pytest.raises(ConfigError) as caught:
        scene.promoter().course(version, kind="promote", allow_outage=False)

    told = str(caught.value)
    assert f"version {number} of 'demo'" in told
    assert "tag specpilot.promotion" in told
    assert "remove" in told
    assert "\n" not in told
    assert len(told) < 500
