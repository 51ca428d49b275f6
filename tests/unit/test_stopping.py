"""A command that somebody ends, by Ctrl-C or SIGTERM."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from core_samples import BASELINE, make_arm
from ray.tune.search import Searcher
from study_stage import Cluster, make_plan

from orchestrator import commands
from orchestrator.cluster import join_ray
from orchestrator.config import CONF_DIR, load_config
from orchestrator.core.codec import from_plain
from orchestrator.core.proof_gates import ProofDemands
from orchestrator.core.types import Arm
from orchestrator.errors import ConfigError, TransientError
from orchestrator.events import Pace, Printer
from orchestrator.fakes.world import FakeClock
from orchestrator.race_searcher import RaceSearcher
from orchestrator.stopping import BLOCK_S, SIGNALS, Stop, within
from orchestrator.study_progress import Progress, StudyStopper


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_ends_what_is_done_at_once(number: int) -> None:
    before = [signal.getsignal(item) for item in SIGNALS]
    with pytest.raises(KeyboardInterrupt), Stop(FakeClock()):
        os.kill(os.getpid(), number)

    assert [signal.getsignal(item) for item in SIGNALS] == before


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("second", SIGNALS)
def test_first_signal_waits_for_blocks_and_the_second_does_not(number: int, second: int) -> None:
    clock = FakeClock()
    with Stop(clock) as stop:
        with stop.blocks_first():
            assert not stop.is_asked
            os.kill(os.getpid(), number)
            assert stop.is_asked
            assert not stop.is_late
            clock.sleep(BLOCK_S)
            assert stop.is_late
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), second)
        with stop.ignored():
            for item in SIGNALS:
                os.kill(os.getpid(), item)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)


def test_sigterm_stays_ours_when_ray_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_options: object) -> None:
        signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(number))
        raise RuntimeError("no Ray")

    monkeypatch.setenv("RAY_ADDRESS", "auto")
    monkeypatch.setattr("ray.init", init)
    with Stop(FakeClock()) as stop, stop.blocks_first():
        with pytest.raises(ConfigError, match="no running Ray"):
            join_ray(load_config(CONF_DIR / "study" / "demo.yaml"))
        os.kill(os.getpid(), signal.SIGTERM)

        assert stop.is_asked


def test_study_that_is_refused_for_what_serves_starts_no_serve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing: Any = None
    prepared: Any = SimpleNamespace(config=None)
    driver = commands.Driver(printer=nothing, command="", stop=Stop(FakeClock()))
    refusal = ConfigError("policy", "cannot be compared", "study it")
    monkeypatch.setattr(commands, "one_study_at_a_time", nullcontext)
    monkeypatch.setattr(commands, "_asked_now", lambda *_args: raising(refusal))
    monkeypatch.setattr(commands, "start_serve", lambda _config: raising(AssertionError()))

    with pytest.raises(ConfigError, match="cannot be compared"):
        commands._conduct(prepared, nothing, nothing, None, driver)


def test_call_that_hangs_is_left_behind() -> None:
    for_ever, done = threading.Event(), list[int]()

    within(30.0, lambda: done.append(1))
    with pytest.raises(TransientError, match=r"no answer within 0\.01 s"):
        within(0.01, for_ever.wait)
    with pytest.raises(ConfigError, match="a: b; c"):
        within(30.0, lambda: raising(ConfigError("a", "b", "c")))

    assert done == [1]
    for_ever.set()


def raising(error: Exception) -> None:
    raise error


class Scene:
    """A study that measures two boots and boots a third, and is asked to end."""

    def __init__(self) -> None:
        self.clock, self.sink = FakeClock(), io.StringIO()
        self.stop = Stop(self.clock)
        self.progress = Progress(
            printer=Printer(sink=self.sink, clock=self.clock, started_s=0.0),
            pace=Pace(num_expected=2, num_parallel=1, guess_boot_s=60.0, fixed_s=30.0),
            table=lambda _boots: [],
        )
        self.stopper = StudyStopper(self.stop, self.progress)
        for trial_id in ("a", "b", "c"):
            self.progress.on_issue(trial_id, f"arm {trial_id}")
        for trial_id in ("a", "b"):
            self.progress.on_trial_start(1, [], trial_named(trial_id))

    def ask(self) -> None:
        with self.stop.blocks_first():
            self.stop.hear(signal.SIGINT, None)

    def said(self) -> str:
        return self.sink.getvalue()


def trial_named(trial_id: str) -> Any:
    return SimpleNamespace(trial_id=trial_id)


def test_study_that_is_asked_to_end_waits_for_blocks_and_not_for_boots() -> None:
    scene = Scene()
    assert not scene.stopper.stop_all()
    assert not scene.stopper("a", {})

    scene.ask()

    assert not scene.stopper.stop_all()
    assert f"after their blocks, in {BLOCK_S:g} s at most" in scene.said()
    assert scene.stopper("a", {})
    scene.progress.on_trial_complete(1, [], trial_named("a"))
    assert not scene.stopper.stop_all()
    scene.progress.on_trial_error(1, [], trial_named("b"))
    assert scene.stopper.stop_all()
    assert scene.said().count("stopping:") == 1
    assert "cut off" not in scene.said()


def test_block_that_takes_too_long_is_cut_off_and_told() -> None:
    scene = Scene()
    scene.ask()
    scene.progress.on_trial_complete(1, [], trial_named("a"))
    assert not scene.stopper.stop_all()

    scene.clock.sleep(BLOCK_S)

    assert scene.stopper.stop_all()
    assert "arm b: its block is cut off" in scene.said()
    assert "arm a: its block is cut off" not in scene.said()


@pytest.mark.parametrize("is_proof", [False, True])
def test_boot_that_ends_with_a_stopped_study_is_cut_and_keeps_its_blocks(is_proof: bool) -> None:
    told: list[str] = []
    stopping = [False]
    searcher = RaceSearcher(
        replace(make_plan((BASELINE, make_arm())), demands=ProofDemands()),
        lambda _id, _name: None,
        keep=lambda _race, entries: told.extend(e.block.block_id for e in entries if e.block),
        is_stopping=lambda: stopping[0],
    )
    cluster, config, number = Cluster({}), None, 0
    while not (isinstance(config, dict) and config["is_proof"] == is_proof):
        config = searcher.suggest(f"t{number}")
        number += 1
        if isinstance(config, dict) and config["is_proof"] != is_proof:
            searcher.on_trial_complete(f"t{number - 1}", cluster.boot(f"t{number - 1}", config))
    results: list[dict[str, Any]] = []
    cluster.boot(f"t{number - 1}", config, results.append)
    stopping[0] = True

    assert searcher.suggest("later") == Searcher.FINISHED
    searcher.on_trial_complete(f"t{number - 1}", results[0])

    state = json.loads(json.dumps(searcher.state()))
    arm = from_plain(Arm, config["arm"])
    saved = state["proofs"][arm.engine_build] if is_proof else state
    assert [from_plain(Arm, item) for item in saved["cut" if is_proof else "stopped"]] == [arm]
    assert saved["lost"] == []
    assert searcher.stop_reason == ""
    first = [e["block"]["block_id"] for e in json.loads(results[0]["told"]) if e["block"]]
    assert len(first) == (0 if is_proof else 1)
    assert set(first) <= set(told)


def test_arm_whose_boots_somebody_keeps_ending_stays_in_the_race() -> None:
    """An arm that never came up is only suspected where its driver died with it."""
    plan = make_plan((BASELINE, make_arm()))
    state: dict[str, Any] | None = None
    issued: list[tuple[str, int]] = []
    for number in range(8):
        searcher = RaceSearcher(plan, lambda _id, _name: None)
        if state is not None:
            searcher.set_out_from(state)
        config = searcher.suggest(f"t{number}")
        assert isinstance(config, dict)
        issued.append((from_plain(Arm, config["arm"]).label, config["replicate"]))
        searcher.end_running()
        state = json.loads(json.dumps(searcher.state()))

    assert len(set(issued)) == 8, "a number was used twice"
    assert state is not None
    assert (state["cut"], state["lost"]) == ([], [])
