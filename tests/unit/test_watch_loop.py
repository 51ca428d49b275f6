"""The service around a watcher: signals, and the study that asks again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from watch_scene import Scene

from orchestrator.errors import ConfigError
from orchestrator.watch_loop import LoopSettings, WatchLoop, weights_override

ENDS = (sys.executable, "-c", "raise SystemExit(3)")
WAITS = """
import pathlib, signal, sys
try:
    pathlib.Path(sys.argv[1]).touch()
    signal.pause()
except KeyboardInterrupt:
    raise SystemExit(7)
"""


class Harness:
    """A loop without waits that is sent a signal when a condition holds."""

    def __init__(
        self,
        scene: Scene,
        command: tuple[str, ...] | None,
        *,
        once: bool = False,
        every_s: float = 0.0,
    ) -> None:
        self.scene = scene
        self.states: list[Mapping[str, Any]] = []
        self.stop_when: Callable[[], bool] = lambda: False
        self.num_looks = 0
        settings = LoopSettings(every_s=every_s, once=once, study_command=command)
        self.loop = WatchLoop(scene.watcher, settings, self.keep, scene.said.append)

    def keep(self, state: Mapping[str, Any]) -> None:
        self.states.append(state)
        self.num_looks += 1
        self.scene.clock.sleep(60.0)
        if self.stop_when():
            self.stop_when = lambda: False
            os.kill(os.getpid(), signal.SIGTERM)

    def run(self) -> None:
        asyncio.run(self.loop.run())


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_once_takes_one_look_and_starts_no_study(scene: Scene) -> None:
    scene.change_premise()
    harness = Harness(scene, ENDS, once=True)
    harness.run()

    assert len(scene.watcher.open) == 1
    assert scene.watcher.open[0].study == ""
    assert harness.states[-1]["open"]


def test_signal_ends_the_service_with_its_state_kept(scene: Scene) -> None:
    harness = Harness(scene, None)
    harness.stop_when = lambda: harness.num_looks == 3
    harness.run()

    assert scene.said[-1] == "stopped"
    assert harness.states[-1] == scene.watcher.state()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_finding_starts_one_study_and_hears_of_its_end(scene: Scene) -> None:
    scene.change_premise()
    harness = Harness(scene, ENDS)
    looks_after: list[int] = []

    def has_looked_again() -> bool:
        if any("ended with status" in text for text in scene.said):
            looks_after.append(harness.num_looks)
        return len(looks_after) == 3

    harness.stop_when = has_looked_again
    harness.run()

    assert sum("started: " in text for text in scene.said) == 1
    assert scene.watcher.open[0].study == "ended with status 3, nothing was promoted"
    (told,) = scene.findings.kept.values()
    assert told.study == "ended with status 3, nothing was promoted"


def test_end_of_a_study_between_the_last_look_and_the_signal_is_kept(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.change_premise()
    harness = Harness(scene, ENDS, every_s=3600.0)
    started: list[asyncio.subprocess.Process] = []
    start = asyncio.create_subprocess_exec

    async def seen(*typed: str, **options: Any) -> asyncio.subprocess.Process:
        started.append(await start(*typed, **options))
        return started[0]

    async def signal_after_its_end() -> None:
        service = asyncio.create_task(harness.loop.run())
        while not started:
            await asyncio.sleep(0.01)
        await started[0].wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await service

    monkeypatch.setattr(asyncio, "create_subprocess_exec", seen)
    asyncio.run(signal_after_its_end())

    assert scene.watcher.open[0].study == "ended with status 3, nothing was promoted"
    (untold,) = harness.states[-1]["untold"].values()
    assert untold["study"] == scene.watcher.open[0].study


def test_study_under_way_is_interrupted_with_the_watcher(scene: Scene, tmp_path: Path) -> None:
    scene.change_premise()
    is_up = tmp_path / "up"
    harness = Harness(scene, (sys.executable, "-c", WAITS, str(is_up)))
    harness.stop_when = is_up.exists
    harness.run()

    assert scene.watcher.open[0].study == "was ended with the watcher, status 7"


def test_study_that_would_be_refused_is_not_started_and_the_finding_says_who_decides(
    scene: Scene,
) -> None:
    scene.change_premise()
    scene.refusal = "cannot be compared: type this"
    harness = Harness(scene, ENDS)
    harness.stop_when = lambda: harness.num_looks == 4
    harness.run()

    (told,) = scene.findings.kept.values()
    assert told.study == "was not started: version 1 cannot be compared: type this"
    assert sum("was not started" in text for text in scene.said) == 1
    assert not any("started: -c" in text for text in scene.said)


def test_study_is_started_for_a_finding_once_it_is_no_longer_refused(scene: Scene) -> None:
    scene.change_premise()
    scene.refusal = "cannot be compared"
    harness = Harness(scene, ENDS)

    def has_ended() -> bool:
        scene.refusal = None if harness.num_looks > 2 else scene.refusal
        has_begun = any("again started: " in text for text in scene.said)
        if harness.num_looks > 5 and not has_begun:
            return True
        return any("ended with status" in text for text in scene.said)

    harness.stop_when = has_ended
    harness.run()

    assert scene.watcher.open[0].study == "ended with status 3, nothing was promoted"


def test_nothing_is_started_while_nobody_can_tell_whether_it_would_be_refused(
    scene: Scene,
) -> None:
    scene.change_premise()
    scene.refusal = ConfigError("target.path", "is gone", "put it back")
    harness = Harness(scene, ENDS)
    harness.stop_when = lambda: harness.num_looks == 4
    harness.run()

    assert scene.watcher.open[0].study == ""
    about = [text for text in scene.said if text.startswith("the study that asks again")]
    assert about == [
        "the study that asks again: target.path: is gone; put it back; it goes on without"
    ]


def test_report_starts_nothing(scene: Scene) -> None:
    scene.change_premise()
    harness = Harness(scene, None)
    harness.stop_when = lambda: harness.num_looks == 4
    harness.run()

    assert scene.watcher.open[0].study == ""


def test_weights_of_the_traffic_are_a_setting_of_a_study() -> None:
    text = weights_override({(4, 1.0): 0.25, (1, 0.7): 0.75})

    found = OmegaConf.to_container(OmegaConf.from_dotlist([text]))
    assert found == {
        "objective": {
            "weights": [
                {"streams": 1, "temperature": 0.7, "weight": 0.75},
                {"streams": 4, "temperature": 1, "weight": 0.25},
            ]
        }
    }
