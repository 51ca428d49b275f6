"""One watcher on production in memory."""

from __future__ import annotations

import json

import pytest
from watch_scene import MODEL, PROMISES, Scene

from orchestrator.core.codec import to_plain
from orchestrator.core.edetector import CLOSED
from orchestrator.watch_evidence import Evidence
from orchestrator.watch_monitor import Change, Monitor

CELLS = json.dumps(to_plain(PROMISES))


@pytest.fixture
def scene() -> Scene:
    return Scene()


def kinds(scene: Scene) -> list[str]:
    return [item.kind for item in scene.watcher.open]


def test_production_that_keeps_its_promises_has_no_finding(scene: Scene) -> None:
    scene.minutes(600, every=4)

    assert scene.watcher.open == ()
    assert scene.findings.kept == {}
    assert scene.said == ["watching version 1"]


def test_slower_steps_are_one_finding_that_closes_when_they_are_gone(scene: Scene) -> None:
    scene.production.step_s = 0.06
    minutes = scene.until("step_time", is_open=True, most=500)
    assert minutes > 18 * 20, "not before some 18 batches"
    scene.minutes(40)

    assert kinds(scene) == ["step_time"]
    assert len(scene.findings.kept) == 1
    finding = scene.watcher.open[0]
    assert "+20.0% from the verdict's, above its interval" in finding.sentence
    assert finding.closed_utc_s is None

    scene.production.step_s = 0.05
    scene.until("step_time", is_open=False, most=500)

    (kept,) = scene.findings.kept.values()
    assert kept.closed_utc_s is not None
    assert "within" in kept.closed_because


def test_lower_acceptance_is_found_beside_the_steps(scene: Scene) -> None:
    scene.production.length = 2.4
    scene.until("acceptance", is_open=True, most=500)

    assert kinds(scene) == ["acceptance"]
    assert "below its interval" in scene.watcher.open[0].sentence


def test_tokens_by_cell_are_counted_to_whole_days(scene: Scene) -> None:
    scene.minutes(15, streams=4)
    scene.minutes(15, streams=8)

    mix = scene.watcher.state()["monitor"]["mix"]
    assert mix["seconds"] == [19 * 60.0], "ten minutes wait for requests to end, one has no start"
    assert mix["tokens"] == [pytest.approx([14 * 14_400.0, 5 * 28_800.0])]
    assert mix["requests"] == [14 * 12.0 + 5 * 24.0]
    assert scene.watcher.shares is None


def test_other_mix_is_found_and_closed_in_words() -> None:
    monitor = Monitor(PROMISES, tolerance=0.03)

    def days(num: int, tokens: dict[tuple[int, float], float]) -> list[Change]:
        seen = Evidence(tokens=tokens, num_requests=9000)
        return [change for _ in range(num) for change in monitor.update(seen, 86_400.0)]

    assert days(30, {(4, 1.0): 4e6, (8, 1.0): 5e6}) == []
    (opened,) = days(30, {(4, 1.0): 1e6})
    assert (opened.kind, opened.is_open) == ("traffic", True)
    assert "50% of a day's output tokens lie in other cells" in opened.sentence
    assert "c4_t1 50% -> 100%, c8_t1 50% -> 0%" in opened.sentence
    assert monitor.shares == {(4, 1.0): 1.0, (8, 1.0): 0.0}

    (closed,) = days(30, {(4, 1.0): 1e6, (8, 1.0): 1e6})
    assert not closed.is_open


def test_engine_that_restarts_is_no_drift_and_its_interval_is_left_out(scene: Scene) -> None:
    scene.minutes(15)
    scene.production.restart_engine()
    scene.minutes(15)

    assert sum("the interval is left out" in text for text in scene.said) == 1
    assert scene.watcher.open == ()


def test_what_does_not_answer_is_said_once_and_is_no_evidence(scene: Scene) -> None:
    scene.production.step_s = 0.06
    scene.minutes(40)
    before = scene.watcher.state()["monitor"]
    scene.production.silent = True
    scene.minutes(30)
    assert scene.watcher.state()["monitor"] == before
    scene.production.silent = False
    scene.minutes(1)

    about = [text for text in scene.said if text.startswith("production:")]
    assert about == ["production: nothing answers; it goes on without", "production: back"]


def test_router_that_began_anew_leaves_a_gap(scene: Scene) -> None:
    scene.minutes(30)
    before = scene.watcher.state()["monitor"]
    scene.production.restart_router()
    scene.minutes(10)
    assert scene.watcher.state()["monitor"] == before, "nothing of what waited is judged"

    scene.minutes(2)
    assert scene.watcher.state()["monitor"] != before


def test_router_that_began_anew_while_no_watcher_looked_leaves_a_gap(scene: Scene) -> None:
    scene.minutes(30)
    before = scene.watcher.state()["monitor"]
    scene.production.serve(30.0, streams=4)
    scene.production.restart_router()
    scene.production.serve(30.0, streams=4)
    scene.again()
    scene.watcher.look()
    scene.minutes(10)
    assert scene.watcher.state()["monitor"] == before, "it has half of a minute's requests"

    scene.minutes(1)
    assert scene.watcher.state()["monitor"] != before


def test_router_that_forgets_leaves_a_gap(scene: Scene) -> None:
    for _ in range(150):
        scene.production.serve(240.0, streams=4)
        scene.production.forget(7)
        scene.watcher.look()

    assert scene.watcher.open == ()
    assert scene.watcher.state()["monitor"]["step_time"]["sums"][4] == [0.0]


def test_shifting_traffic_is_compared_with_nothing(scene: Scene) -> None:
    scene.production.step_s = 0.08
    scene.production.weights = {"specpilot-v1": 0.9, "specpilot-v2": 0.1}
    scene.minutes(600, every=4)

    assert scene.watcher.open == ()
    assert "specpilot-v1: it does not carry all of the traffic; it goes on without" in scene.said


def test_tracker_that_is_away_gets_the_finding_later(scene: Scene) -> None:
    scene.findings.silent = True
    scene.change_premise()
    scene.minutes(5)
    assert scene.findings.kept == {}
    scene.again()
    scene.findings.silent = False
    scene.minutes(1)

    (finding,) = scene.findings.kept.values()
    assert finding.sentence == "the draft model's digest was d and is e"
    assert sum(text.startswith("MLflow: ") for text in scene.said) == 1


def test_changed_premise_is_a_finding_until_it_holds_again(scene: Scene) -> None:
    held = scene.premises
    scene.change_premise()
    scene.minutes(3)
    assert kinds(scene) == ["premise"]

    scene.premises = held
    scene.minutes(1)

    (finding,) = scene.findings.kept.values()
    assert finding.closed_because == "it is no longer so"
    assert list(scene.findings.kept) == [(MODEL, finding.finding_id)]


def test_premise_that_changes_once_more_is_another_finding(scene: Scene) -> None:
    """The first one is over, and not because the premise holds again."""
    scene.change_premise("e")
    scene.minutes(1)
    scene.change_premise("f")
    scene.minutes(1)

    first, second = scene.findings.kept.values()
    assert first.closed_because == "it is no longer so"
    assert second.sentence == "the draft model's digest was d and is f"
    assert second.closed_utc_s is None


def test_another_version_begins_anew(scene: Scene) -> None:
    scene.change_premise()
    scene.minutes(2)
    assert scene.crown(None) == 2
    scene.minutes(1)

    closed = [item for item in scene.findings.kept.values() if item.closed_utc_s is not None]
    assert [item.closed_because for item in closed] == ["version 2 serves now"]
    assert [(item.kind, item.version) for item in scene.watcher.open] == [("premise", 2)]
    assert any("registered without specpilot.cells" in text for text in scene.said)


@pytest.mark.parametrize(
    ("garbled", "says"),
    [
        (CELLS.replace('"mean": 3.0', '"mean": 0'), "mean 0 is not"),
        (CELLS.replace('"mean": 0.05', '"mean": NaN'), "NaN is no number"),
        (CELLS.replace('"mean": 0.05', '"mean": 1e308'), "mean 1e+308 is not"),
        (CELLS.replace('"factor": 1.02', '"factor": 1e400'), "factor inf is no number"),
        (CELLS.replace('"factor": 1.02', '"factor": 0.5'), "factor 0.5 is no number"),
        (CELLS.replace('"weight": 0.5', '"weight": -1'), "weight -1 is no number"),
        (CELLS.replace('"streams": 8', '"streams": 0'), "streams are not 1 to"),
        (CELLS.replace('"temperature": 1.0', '"temperature": 1e400'), "temperature is no number"),
        ("[" * 100_000, "brackets are too deep"),
        ("{}", "field 'arm' is missing"),
    ],
)
def test_tag_that_somebody_garbled_is_said_and_the_premises_are_watched(
    scene: Scene, garbled: str, says: str
) -> None:
    scene.crown(garbled)
    scene.change_premise()
    scene.minutes(30)

    (said,) = [text for text in scene.said if "specpilot.cells" in text]
    assert said.startswith("version 2 of 'demo': its tag specpilot.cells is no promise of cells")
    assert says in said
    assert said.endswith("only its premises are watched")
    assert kinds(scene) == ["premise"]


def test_watcher_that_is_ended_every_minute_knows_the_same(scene: Scene) -> None:
    other = Scene()
    for watched in (scene, other):
        watched.production.step_s = 0.06
    scene.minutes(60)
    for _ in range(60):
        other.minutes(1)
        other.again()

    scene.minutes(1)
    other.minutes(1)
    assert other.watcher.state() == scene.watcher.state()


def test_finding_survives_the_watcher_and_is_not_opened_twice(scene: Scene) -> None:
    scene.production.step_s = 0.06
    scene.until("step_time", is_open=True, most=500)
    scene.again()
    scene.minutes(30)

    assert kinds(scene) == ["step_time"]
    assert len(scene.findings.kept) == 1
    assert "watching version 1, with the evidence so far" in scene.said


def test_no_champion_is_said_once_and_watched_when_it_comes(scene: Scene) -> None:
    scene.registry.delete_alias(MODEL, "champion")
    scene.minutes(3)
    assert scene.said == ["'demo': it has no champion to watch; it goes on without"]

    scene.registry.set_alias(MODEL, "champion", 1)
    scene.minutes(1)
    assert "watching version 1" in scene.said


def test_state_of_something_else_is_refused(scene: Scene) -> None:
    with pytest.raises(ValueError, match="no state of a watcher"):
        scene.watcher.restore({"open": {}})


def test_state_that_is_damaged_at_its_end_leaves_nothing_of_it(scene: Scene) -> None:
    scene.change_premise()
    scene.minutes(15)
    state = scene.watcher.state()
    fresh = scene.new_watcher()
    nothing = fresh.state()

    for key, value in (("intervals", {}), ("intervals", None), ("untold", []), ("open", {"a": 1})):
        with pytest.raises(ValueError, match=r"watcher|record|missing"):
            fresh.restore({**state, key: value})
        assert fresh.state() == nothing


def test_evidence_that_is_damaged_is_dropped_whole_with_its_findings(scene: Scene) -> None:
    scene.production.length = 2.4
    scene.until("acceptance", is_open=True, most=500)
    state = json.loads(json.dumps(scene.watcher.state()))
    state["monitor"]["step_time"]["recent"] = [[0.0]]
    scene.watcher = scene.new_watcher()
    scene.watcher.restore(state)
    scene.minutes(1)

    assert scene.watcher.open == ()
    assert "the evidence so far is dropped: recent of shape (1, 1) and not (3, 1)" in scene.said
    found = scene.watcher.state()["monitor"]
    assert found["acceptance"]["detector"]["open"] == [CLOSED]
    scene.until("acceptance", is_open=True, most=500)
    assert len(scene.findings.kept) == 2, "what lasts is found again"


def test_study_that_was_started_is_written_on_its_finding(scene: Scene) -> None:
    scene.change_premise()
    scene.minutes(1)
    scene.watcher.note_study(scene.watcher.open[0].finding_id, "started: x")
    scene.minutes(1)

    (finding,) = scene.findings.kept.values()
    assert finding.study == "started: x"
