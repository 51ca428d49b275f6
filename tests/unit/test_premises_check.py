"""What is registered beside the study file and this machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from core_samples import make_arm

from orchestrator import cli, commands, compose
from orchestrator.config import CONF_DIR, StudyConfig, load_config
from orchestrator.core.codec import to_plain
from orchestrator.core.types import Arm
from orchestrator.errors import ConfigError, MeasurementError
from orchestrator.fakes.production import FakeProduction
from orchestrator.fakes.tracker import FakeRegistry
from orchestrator.incumbent import ARM_TAG, PREMISES_TAG, comparable_champion, held_premises
from orchestrator.ports import Version
from orchestrator.premises_check import Checked, check, gate, stale_premises
from orchestrator.premises_report import format_check, format_short
from orchestrator.prepare import premises, premises_by_build, prepare, world
from orchestrator.promotion_record import CHALLENGER, CHAMPION, PREVIOUS

DEMO = CONF_DIR / "study" / "demo.yaml"
MODEL = "specpilot-demo"
ARM = make_arm(7, "probabilistic", "block")
OTHER_ARGS = "engine.args.max_num_seqs=4"

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep digests of this test alone; nobody's Ray is found."""
    monkeypatch.setenv("SPECPILOT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")


@pytest.fixture
def inputs(target_folder: Path, draft_folder: Path, workload_file: Path) -> list[str]:
    return [
        f"target.path={target_folder}",
        f"draft.path={draft_folder}",
        f"load.workload={workload_file}",
    ]


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> FakeRegistry:
    """Return the registry that the commands find."""
    found = FakeRegistry()

    def wired(_config: StudyConfig) -> FakeRegistry:
        return found

    monkeypatch.setattr(compose, "registry", wired)
    return found


def tags_of(config: StudyConfig, arm: Arm = ARM) -> dict[str, str]:
    """Return what a study of this configuration writes to the version that it registers."""
    held = premises(prepare(config, models_must_exist=True), arm.engine_build)
    return {ARM_TAG: json.dumps(to_plain(arm)), PREMISES_TAG: json.dumps(held.to_dict())}


def registered(
    registry: FakeRegistry, inputs: list[str], *overrides: str, alias: str = CHAMPION
) -> Version:
    config = load_config(DEMO, [*inputs, *overrides])
    version = registry.create_version(MODEL, "run", {}, tags_of(config))
    registry.set_alias(MODEL, alias, version.version)
    return version


def checked(version: Version, inputs: list[str], *overrides: str) -> Checked:
    config = load_config(DEMO, [*inputs, *overrides])
    return check(version, prepare(config, models_must_exist=False))


def of_state(found: Checked, state: str) -> set[str]:
    return {item.conclusion.value for item in found.judged if item.state == state}


def test_version_of_an_unchanged_study_stands(registry: FakeRegistry, inputs: list[str]) -> None:
    version = registered(registry, inputs)

    found = checked(version, inputs, "load.block_s=99", "production.drain_s=1")

    assert found.state == "stands"
    assert {item.state for item in found.compared} == {"holds"}
    assert format_short(CHAMPION, found) == ["premises of the champion: all hold"]


def test_changed_weights_are_seen_on_this_machine(
    registry: FakeRegistry, inputs: list[str], target_folder: Path
) -> None:
    version = registered(registry, inputs)
    (target_folder / "model.safetensors").write_bytes(b"other weights")

    found = checked(version, inputs)

    assert [item.name for item in found.compared if item.state == "changed"] == ["target_digest"]
    assert of_state(found, "stands") == set()
    assert found.is_incomparable


def test_changed_workload_leaves_capacity_and_proof(
    registry: FakeRegistry, inputs: list[str], workload_file: Path
) -> None:
    version = registered(registry, inputs)
    workload_file.write_text('{"prompt": "another"}\n')

    found = checked(version, inputs)

    assert of_state(found, "stands") == {"kv", "lossless", "answers", "outage"}
    (sentence,) = stale_premises(found)
    assert sentence.endswith("; stale: speed, draft_rule, rejection_rule, promise")
    assert not found.is_incomparable
    assert [line.split(" is stale: ")[0] for line in format_short(CHAMPION, found)] == [
        "premises of the champion: not all hold; `premises` says more",
        *("  speed", "  draft_rule", "  rejection_rule", "  promise"),
    ]


def test_study_with_another_draft_rule_marks_the_depth_and_not_the_cache(
    registry: FakeRegistry, inputs: list[str]
) -> None:
    found = checked(registered(registry, inputs), inputs, "search.draft_sample_method=[greedy]")

    assert {"speed", "promise"} <= of_state(found, "stale")
    assert {"kv", "draft_rule", "outage"} == of_state(found, "stands")
    text = "\n".join(format_check(CHAMPION, found))
    assert "CHANGED    the draft rule was probabilistic and is greedy" in text
    assert "holds      the depth is 7" in text
    assert "stands     kv: how many tokens" in text
    assert "the draft rule: the best depth moves with the draft rule" in text


def test_models_that_are_not_here_cannot_be_checked_and_are_not_said_to_hold(
    registry: FakeRegistry, inputs: list[str], tmp_path: Path
) -> None:
    version = registered(registry, inputs)

    found = checked(version, inputs, f"target.path={tmp_path}/gone")

    assert found.state == "unknown"
    assert of_state(found, "unknown") == {item.conclusion.value for item in found.judged}
    said = "\n".join(format_short(CHAMPION, found))
    assert "not all can be checked here" in said
    assert f"'{tmp_path}/gone' is not on this machine" in said


def test_default_sampling_without_the_target_cannot_be_checked(
    inputs: list[str], tmp_path: Path
) -> None:
    default = ["load.sampling=client_default", "load.temperatures=[1.0]"]
    takes = "engine.args.generation_config=auto"
    here = prepare(load_config(DEMO, [*inputs, *default, takes]), models_must_exist=False)
    gone = f"target.path={tmp_path}/gone"
    away = prepare(load_config(DEMO, [*inputs, *default, takes, gone]), models_must_exist=False)

    assert "sampling" in world(here, "0.32.0").values
    assert "sampling" in world(away, "0.32.0").unknown
    with pytest.raises(ConfigError, match="premise sampling"):
        premises(away)


def test_version_of_another_build_of_the_study_is_held_against_that_build(
    registry: FakeRegistry, inputs: list[str]
) -> None:
    builds = "engine.builds=[{build: 0.31.0, env: {SOME: other}}]"
    config = load_config(DEMO, [*inputs, builds])
    arm = Arm(
        engine_build="0.31.0",
        num_speculative_tokens=7,
        draft_sample_method="greedy",
        rejection_sample_method="block",
    )
    version = registry.create_version(MODEL, "run", {}, tags_of(config, arm))

    assert checked(version, inputs, builds).state == "stands"
    gone = checked(version, inputs)
    assert "the engine build was 0.31.0 and is 0.32.0" in [i.sentence for i in gone.compared]


@pytest.mark.parametrize(
    ("tags", "says"),
    [
        ({}, "it was not registered by a study"),
        ({ARM_TAG: '{"depth": 7}'}, "its tag specpilot.arm is no arm"),
        ({PREMISES_TAG: "no JSON"}, "its tag specpilot.premises is no premises"),
        ({PREMISES_TAG: '{"driver": "580"}'}, "unknown field 'driver'"),
    ],
)
def test_version_that_does_not_say_what_it_stands_on_is_named(
    registry: FakeRegistry, inputs: list[str], tags: dict[str, str], says: str
) -> None:
    version = registry.create_version(MODEL, "run", {}, tags)

    found = checked(version, inputs)

    assert found.state == "unknown"
    assert found.fault is not None
    assert says in found.fault
    with pytest.raises(MeasurementError, match="version 1: "):
        stale_premises(found)
    assert says in format_check(CHAMPION, found)[1]
    assert says in format_short(CHAMPION, found)[0]


def test_champion_with_premises_that_nobody_can_read_may_be_replaced(
    registry: FakeRegistry, inputs: list[str]
) -> None:
    version = registry.create_version(MODEL, "run", {}, {PREMISES_TAG: "{}", ARM_TAG: "{}"})
    registry.set_alias(MODEL, CHAMPION, version.version)
    config = load_config(DEMO, inputs)
    allowed = load_config(DEMO, [*inputs, "policy.replace_incomparable_champion=true"])
    by_build = premises_by_build(prepare(config, models_must_exist=True))

    with pytest.raises(ConfigError, match="version 1"):
        held_premises(version)
    with pytest.raises(ConfigError, match=r"its tag specpilot\.premises is no premises"):
        comparable_champion(registry, config, by_build)
    assert comparable_champion(registry, allowed, by_build) is None


def test_gate_of_a_registered_version_asks_study_file_and_machine(
    registry: FakeRegistry, inputs: list[str]
) -> None:
    version = registered(registry, inputs)
    same = prepare(load_config(DEMO, inputs), models_must_exist=True)
    other = prepare(load_config(DEMO, [*inputs, OTHER_ARGS]), models_must_exist=True)
    narrow = prepare(
        load_config(DEMO, [*inputs, "search.draft_sample_method=[greedy]"]), models_must_exist=True
    )

    assert gate(version, same).passed is True
    assert "the digest of the engine arguments was" in gate(version, other).reason
    assert gate(version, narrow).passed is True, "what is promoted has its own draft rule"
    unknown = registry.create_version(MODEL, "run", {}, {})
    assert gate(unknown, same).blocks


def test_command_lists_all_and_is_0_where_everything_stands(
    registry: FakeRegistry, inputs: list[str], capsys: Captured
) -> None:
    registered(registry, inputs)

    assert cli.main(["premises", str(DEMO), *inputs]) == 0

    said = capsys.readouterr().out
    assert said.startswith("champion: version 1 of specpilot-demo")
    assert said.count("    holds      ") == 14
    assert said.count("    stands     ") == 8
    assert "to ask again" not in said


def test_command_is_3_where_something_is_stale_and_says_how_to_ask_again(
    registry: FakeRegistry, inputs: list[str], workload_file: Path, capsys: Captured
) -> None:
    registered(registry, inputs)
    workload_file.write_text('{"prompt": "another"}\n')

    assert cli.main(["premises", str(DEMO), *inputs]) == 3

    typed = " ".join([str(DEMO), *inputs])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"to ask again: python -m orchestrator study {typed}"


def test_command_says_what_a_study_needs_to_replace_a_champion_of_another_engine(
    registry: FakeRegistry, inputs: list[str], capsys: Captured
) -> None:
    """Without it the study that is proposed would be refused."""
    registered(registry, inputs)

    assert cli.main(["premises", str(DEMO), *inputs, OTHER_ARGS]) == 3
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith(f" {OTHER_ARGS} policy.replace_incomparable_champion=true")

    given = "policy.replace_incomparable_champion=true"
    assert cli.main(["premises", str(DEMO), *inputs, OTHER_ARGS, given]) == 3
    assert capsys.readouterr().out.splitlines()[-1].count(given) == 1


@pytest.mark.parametrize(("alias", "status"), [(CHALLENGER, 3), (PREVIOUS, 0)])
def test_command_counts_what_waits_and_not_what_served_before(
    registry: FakeRegistry, inputs: list[str], capsys: Captured, alias: str, status: int
) -> None:
    registered(registry, inputs)
    registered(registry, inputs, OTHER_ARGS, alias=alias)

    assert cli.main(["premises", str(DEMO), *inputs]) == status
    assert f"\n{alias}: version 2" in capsys.readouterr().out


def test_command_is_1_where_it_cannot_tell(
    registry: FakeRegistry, inputs: list[str], tmp_path: Path, capsys: Captured
) -> None:
    registered(registry, inputs)

    assert cli.main(["premises", str(DEMO), *inputs, f"target.path={tmp_path}/gone"]) == 1
    said = capsys.readouterr().out
    assert "unchecked  the target model's digest" in said
    assert "to ask again" not in said


def test_command_proposes_a_study_for_a_champion_that_says_nothing(
    registry: FakeRegistry, inputs: list[str], capsys: Captured
) -> None:
    version = registry.create_version(MODEL, "run", {}, {})
    registry.set_alias(MODEL, CHAMPION, version.version)

    assert cli.main(["premises", str(DEMO), *inputs]) == 1

    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith(" policy.replace_incomparable_champion=true")


@pytest.mark.usefixtures("registry")
def test_command_without_anything_registered_is_one_line_and_status_2(
    inputs: list[str], capsys: Captured
) -> None:
    assert cli.main(["premises", str(DEMO), *inputs]) == 2

    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == (
        "error: tracking.registered_model: 'specpilot-demo' has no champion, challenger, previous; "
        "run a study that finds a winner\n"
    )


@pytest.fixture
def status(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], int]:
    """Return the command on a production in memory."""

    def joined(_config: StudyConfig) -> SimpleNamespace:
        return SimpleNamespace(dashboard_url="")

    def production(_config: StudyConfig, _url: str) -> FakeProduction:
        return FakeProduction()

    monkeypatch.setattr(commands, "join_ray", joined)
    monkeypatch.setattr(compose, "production", production)
    return lambda typed: cli.main(["status", str(DEMO), *typed])


def test_status_says_in_short_whether_the_premises_hold(
    registry: FakeRegistry,
    inputs: list[str],
    capsys: Captured,
    status: Callable[[list[str]], int],
) -> None:
    registered(registry, inputs)
    registered(registry, inputs, "load.top_p=0.5", alias=CHALLENGER)

    assert status(inputs) == 0

    lines = capsys.readouterr().out.splitlines()
    assert "production: nothing is declared" in lines
    assert "premises of the champion: all hold" in lines
    assert "  speed is stale: the sampling changed" in lines


def test_status_tells_what_serves_though_the_premises_cannot_be_read(
    registry: FakeRegistry,
    inputs: list[str],
    workload_file: Path,
    capsys: Captured,
    status: Callable[[list[str]], int],
) -> None:
    registered(registry, inputs)
    workload_file.unlink()

    assert status(inputs) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("champion: version 1")
    assert lines[-1].startswith("premises: not checked: ")
