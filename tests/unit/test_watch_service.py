"""What ``watch`` reads and writes beside its looks."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from core_samples import make_arm

from orchestrator import cli, compose, watch_service
from orchestrator.adapters.watch_file import WatchFile
from orchestrator.cli import parser
from orchestrator.config import StudyConfig, load_config
from orchestrator.core.codec import to_plain
from orchestrator.errors import ConfigError
from orchestrator.events import Printer
from orchestrator.fakes.tracker import FakeRegistry
from orchestrator.fakes.watched import FakeWatched
from orchestrator.fakes.world import FakeClock
from orchestrator.incumbent import ARM_TAG, PREMISES_TAG, comparable_champion
from orchestrator.prepare import Prepared, identity, premises, premises_by_build, prepare
from orchestrator.promotion_record import CHAMPION
from orchestrator.watch_service import WatchOptions, refusal, write_profile

DEMO = Path("conf/study/demo.yaml")


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    return prepare(load_config(DEMO), models_must_exist=True)


@pytest.fixture
def production() -> FakeWatched:
    production = FakeWatched("specpilot-v1", FakeClock())
    production.serve(60.0, streams=2)
    production.temperature = None
    production.serve(60.0, streams=1)
    return production


def printer() -> Printer:
    return Printer(sink=io.StringIO(), clock=FakeClock(), started_s=0.0)


@pytest.fixture(autouse=True)
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECPILOT_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def test_profile_is_what_a_study_reads(
    prepared: Prepared, production: FakeWatched, tmp_path: Path
) -> None:
    out = tmp_path / "weights.yaml"
    write_profile(prepared, production, out, printer())

    text = out.read_text()
    assert "# 9 requests in 120 s" in text
    study = tmp_path / "study.yaml"
    body = text.partition("objective:\n")[2]
    own = "  step_time: modelled\n"
    study.write_text(DEMO.read_text().replace(own, own + body))
    weights = {cell.key: share for cell, share in load_config(study).weights().items() if share}
    # A request without a temperature is answered at the target's default, which is 1.
    assert weights == pytest.approx({"c2_t1": 2 / 3, "c1_t1": 1 / 3}, abs=1e-4)


def test_profile_as_json_has_the_same_weights(
    prepared: Prepared, production: FakeWatched, tmp_path: Path
) -> None:
    out = tmp_path / "weights.json"
    write_profile(prepared, production, out, printer())

    assert json.loads(out.read_text()) == {
        "objective": {
            "weights": [
                {"streams": 1, "temperature": 1.0, "weight": 0.3333},
                {"streams": 2, "temperature": 1.0, "weight": 0.6667},
            ]
        }
    }


def test_profile_says_what_the_router_no_longer_knows(
    prepared: Prepared, production: FakeWatched, tmp_path: Path
) -> None:
    production.forget(4)
    write_profile(prepared, production, tmp_path / "w.yaml", printer())

    assert "5 older requests are no longer known" in (tmp_path / "w.yaml").read_text()


def test_profile_of_nothing_writes_nothing(prepared: Prepared, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no line says when its request ran"):
        write_profile(
            prepared, FakeWatched("specpilot-v1", FakeClock()), tmp_path / "w.yaml", printer()
        )
    assert not (tmp_path / "w.yaml").exists()


@pytest.mark.parametrize(
    ("every_s", "profile", "where"),
    [(0.5, None, "--every"), (301.0, None, "--every"), (60.0, Path("w.txt"), "--profile")],
)
def test_options_that_make_no_sense_are_refused(
    every_s: float, profile: Path | None, where: str
) -> None:
    with pytest.raises(ConfigError, match=where):
        WatchOptions(
            study=DEMO, overrides=(), command="", every_s=every_s, once=False, profile=profile
        )


@pytest.mark.parametrize("allowed", [False, True])
def test_study_for_another_engine_is_refused_with_the_command_of_premises(
    target_folder: Path,
    draft_folder: Path,
    workload_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    allowed: bool,
) -> None:
    inputs = [
        f"target.path={target_folder}",
        f"draft.path={draft_folder}",
        f"load.workload={workload_file}",
    ]
    registry, arm = FakeRegistry(), make_arm(7, "probabilistic", "block")
    held = premises(prepare(load_config(DEMO, inputs), models_must_exist=True), arm.engine_build)
    tags = {ARM_TAG: json.dumps(to_plain(arm)), PREMISES_TAG: json.dumps(held.to_dict())}
    version = registry.create_version("specpilot-demo", "run", {}, tags)
    registry.set_alias("specpilot-demo", CHAMPION, version.version)
    monkeypatch.setattr(compose, "registry", lambda _: registry)
    taken: list[WatchOptions] = []

    def take(_config: StudyConfig, options: WatchOptions) -> int:
        taken.append(options)
        return 0

    monkeypatch.setattr(watch_service, "watch", take)
    other = [*inputs, "engine.args.max_num_seqs=4"]
    if allowed:
        other.append("policy.replace_incomparable_champion=true")
    for typed in (inputs, other):
        assert cli.main(["watch", str(DEMO), *typed]) == 0

    assert refusal(version, taken[0]) is None
    reason = refusal(version, taken[1])
    if allowed:
        assert reason is None
        return
    by_build = premises_by_build(prepare(load_config(DEMO, other), models_must_exist=True))
    with pytest.raises(ConfigError, match="cannot be compared"):
        comparable_champion(registry, load_config(DEMO, other), by_build)
    assert cli.main(["premises", str(DEMO), *other]) == 3
    command = capsys.readouterr().out.splitlines()[-1].removeprefix("to ask again: ")
    assert command.endswith("policy.replace_incomparable_champion=true")
    assert reason is not None
    assert reason.startswith("version 1 cannot be compared")
    assert "a person has to decide" in reason
    assert reason.endswith(f": {command}")


def test_command_line_has_the_options() -> None:
    args = parser().parse_args(["watch", "s.yaml", "a.b=1", "--once", "--every", "30"])

    assert (args.command, args.once, args.every, args.profile) == ("watch", True, 30.0, None)
    assert args.overrides == ["a.b=1"]


def test_policy_of_drift_is_no_part_of_what_a_study_asks() -> None:
    config = load_config(DEMO)
    policy = replace(config.policy, on_drift="study", drift_tolerance=0.1)

    assert identity(replace(config, policy=policy)) == identity(config)
    with pytest.raises(ConfigError, match=r"policy\.drift_tolerance"):
        replace(config.policy, drift_tolerance=1.0)


def test_state_is_whole_or_not_there(state_dir: Path) -> None:
    said: list[str] = []
    with WatchFile("demo", said.append) as file:
        assert file.read() is None
        file.write({"a": 1})
        assert file.read() == {"a": 1}
        file.path.write_bytes(file.path.read_bytes()[:-1])
        assert file.read() is None
    assert "is damaged" in said[0]
    assert file.path.is_relative_to(state_dir)


def test_second_watcher_of_a_model_is_refused() -> None:
    with (
        WatchFile("demo", lambda _: None),
        pytest.raises(ConfigError, match="another watcher holds"),
        WatchFile("demo", lambda _: None),
    ):
        pass
    with WatchFile("demo", lambda _: None), WatchFile("other", lambda _: None):
        pass


def test_state_that_cannot_be_written_is_said_once(state_dir: Path) -> None:
    said: list[str] = []
    with WatchFile("demo", said.append) as file:
        file.path.with_suffix(".new").mkdir()
        file.write({})
        file.write({})
    assert len(said) == 1
    assert "the state cannot be written" in said[0]
