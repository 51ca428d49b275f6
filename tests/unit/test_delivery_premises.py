"""A version whose premises have changed is not promoted, and the dry run says so."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from core_samples import make_arm, make_boots
from promotion_scene import Scene

from orchestrator import delivery
from orchestrator.compose import engine_spec
from orchestrator.config import CONF_DIR, StudyConfig, load_config
from orchestrator.core.codec import to_plain
from orchestrator.core.takeover import PromotionStep, TakeOver
from orchestrator.delivery import Delivery, promise_tags
from orchestrator.errors import ConfigError, PromotionError
from orchestrator.events import Printer
from orchestrator.fakes.production import FakeProduction
from orchestrator.fakes.world import FakeClock
from orchestrator.incumbent import ARM_TAG, INCUMBENT_TAG, PREMISES_TAG
from orchestrator.ports import Version
from orchestrator.prepare import premises, prepare
from orchestrator.promotion_record import CHALLENGER, CHAMPION, RECORD_TAG, STEP_TAG

DEMO = CONF_DIR / "study" / "demo.yaml"
MODEL = "specpilot-demo"
ARM = make_arm()
OTHER_ARGS = "engine.args.max_num_seqs=4"


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep digests of this test alone; two boards are free."""
    monkeypatch.setenv("SPECPILOT_STATE_DIR", str(tmp_path / "state"))

    def joined(_config: StudyConfig) -> SimpleNamespace:
        return SimpleNamespace(num_trial_nodes=2)

    monkeypatch.setattr(delivery, "join_ray", joined)


@pytest.fixture
def inputs(target_folder: Path, draft_folder: Path, workload_file: Path) -> list[str]:
    return [
        f"target.path={target_folder}",
        f"draft.path={draft_folder}",
        f"load.workload={workload_file}",
    ]


def register(
    scene: Scene, config: StudyConfig, *, has_premises: bool = True, incumbent: str | None = None
) -> Version:
    """Register a version as a study of this configuration does."""
    held = premises(prepare(config, models_must_exist=True))
    boots = make_boots(ARM, [0.030, 0.031, 0.029], cells=config.cells())
    tags = promise_tags(config, ARM, boots)
    if has_premises:
        tags[ARM_TAG] = json.dumps(to_plain(ARM))
        tags[PREMISES_TAG] = json.dumps(held.to_dict())
    if incumbent is not None:
        tags[INCUMBENT_TAG] = incumbent
    spec = engine_spec(config, ARM, "specpilot").to_dict()
    return scene.registry.create_version(MODEL, "run", spec, tags)


def tools(scene: Scene, inputs: list[str], *overrides: str) -> Delivery:
    config = load_config(DEMO, [*inputs, "policy.allow_outage=true", *overrides])
    return Delivery(
        prepared=prepare(config, models_must_exist=True),
        registry=scene.registry,
        production=scene.production,
        printer=Printer(sink=StringIO(), clock=FakeClock(), started_s=0.0),
    )


def test_version_with_other_engine_arguments_is_refused_and_nothing_changes(
    inputs: list[str],
) -> None:
    scene = Scene()
    version = register(scene, load_config(DEMO, inputs))

    with pytest.raises(ConfigError) as caught:
        tools(scene, inputs, OTHER_ARGS).promote(version)

    assert caught.value.where == "version 1 of 'specpilot-demo'"
    assert "its premises do not hold: the digest of the engine arguments was" in str(caught.value)
    assert "stale: speed, kv, lossless, answers, promise" in str(caught.value)
    assert scene.production.declarations == []
    assert scene.registry.steps == []


def test_version_without_premises_is_refused(inputs: list[str]) -> None:
    scene = Scene()
    version = register(scene, load_config(DEMO, inputs), has_premises=False)

    with pytest.raises(ConfigError, match="are not shown to hold: it was registered without"):
        tools(scene, inputs).promote(version)

    assert scene.production.declarations == []


def test_dry_run_prints_the_gate_and_that_it_keeps_the_version_out(inputs: list[str]) -> None:
    scene = Scene()
    version = register(scene, load_config(DEMO, inputs))

    same = tools(scene, inputs).decision(version, kind="promote", allow_outage=False)
    other = tools(scene, inputs, OTHER_ARGS).decision(version, kind="promote", allow_outage=False)

    assert "  premises hold: what its evidence depends on is as it was" in same
    assert "decision: name it challenger" in same[-2]
    assert any(line.startswith("  premises do not hold: the digest of the eng") for line in other)
    assert other[-2].startswith("decision: it cannot begin: version 1 of 'specpilot-demo': its")


def test_promotion_that_was_cut_off_goes_back_when_its_premises_have_changed(
    inputs: list[str],
) -> None:
    """Else production would stay half way, and no `promote` could go on."""
    scene = Scene()
    config = load_config(DEMO, inputs)
    first, second = register(scene, config), register(scene, config)
    spec = {"specpilot-v1": first.config, "specpilot-v2": second.config}
    scene.production.declare(spec, {"specpilot-v1": 1.0})
    scene.production.state()
    record = TakeOver(
        version=2, champion=1, champion_served=True, previous=None, challenger=None,
        kind="promote", mode="beside", began_utc_s=0.0,
    )  # fmt: skip
    scene.registry.set_alias(MODEL, CHAMPION, 1)
    scene.registry.set_alias(MODEL, CHALLENGER, 2)
    scene.registry.set_tag(MODEL, 2, RECORD_TAG, json.dumps(to_plain(record)))
    scene.registry.set_tag(MODEL, 2, STEP_TAG, PromotionStep.BOOTED.value)

    with pytest.raises(ConfigError, match="its premises do not hold"):
        tools(scene, inputs, OTHER_ARGS).promote(second)

    assert scene.serving() == ({"specpilot-v1"}, {"specpilot-v1": 1.0})
    found = scene.registry.by_number(MODEL, 2)
    assert found is not None
    assert found.tags[STEP_TAG] == "failed"


def test_rollback_asks_for_no_premises(inputs: list[str]) -> None:
    """A person waits, and what served before is what is left."""
    scene = Scene()
    version = register(scene, load_config(DEMO, inputs))

    tools(scene, inputs, OTHER_ARGS).promote(version, kind="rollback")

    assert scene.serving() == ({"specpilot-v1"}, {"specpilot-v1": 1.0})


def test_promotion_of_what_still_stands_begins(inputs: list[str]) -> None:
    scene = Scene(production=FakeProduction(fails=lambda _: True))
    version = register(scene, load_config(DEMO, inputs))

    with pytest.raises(PromotionError, match="specpilot-v1 did not start"):
        tools(scene, inputs).promote(version)

    assert scene.registry.steps == ["challenger", "failed"]


def scene_with_champion(config: StudyConfig) -> Scene:
    """Version 1 serves as champion; nothing else starts."""
    scene = Scene(production=FakeProduction(fails=lambda app: app != "specpilot-v1"))
    first = register(scene, config)
    scene.production.declare({"specpilot-v1": first.config}, {"specpilot-v1": 1.0})
    scene.production.state()
    scene.registry.set_alias(MODEL, CHAMPION, 1)
    scene.production.declarations.clear()
    return scene


@pytest.mark.parametrize(("incumbent", "whom"), [("none", "no champion"), ("7", "version 7")])
def test_version_that_was_compared_with_another_champion_is_refused(
    inputs: list[str], incumbent: str, whom: str
) -> None:
    """It may be slower than the one that serves, whatever its gates say of the one before."""
    config = load_config(DEMO, inputs)
    scene = scene_with_champion(config)
    version = register(scene, config, incumbent=incumbent)

    with pytest.raises(ConfigError, match=f"compared it with {whom}, and version 1 serves"):
        tools(scene, inputs).promote(version)

    assert scene.production.declarations == []
    assert scene.registry.steps == []


@pytest.mark.parametrize(
    ("incumbent", "override"),
    [("1", "seed=1"), (None, "seed=1"), ("7", "policy.replace_incomparable_champion=true")],
)
def test_version_that_was_compared_with_the_champion_or_need_not_be_begins(
    inputs: list[str], incumbent: str | None, override: str
) -> None:
    config = load_config(DEMO, inputs)
    scene = scene_with_champion(config)
    version = register(scene, config, incumbent=incumbent)

    with pytest.raises(PromotionError, match="specpilot-v2 did not start"):
        tools(scene, inputs, override).promote(version)


def test_rollback_asks_nobody_what_a_version_was_compared_with(inputs: list[str]) -> None:
    config = load_config(DEMO, inputs)
    scene = scene_with_champion(config)
    version = register(scene, config, incumbent="7")

    with pytest.raises(PromotionError, match="specpilot-v2 did not start"):
        tools(scene, inputs).promote(version, kind="rollback")


@pytest.mark.parametrize("text", ["-1", "", "None", "1 or 2"])
def test_garbled_word_of_what_a_version_was_compared_with_is_told_as_that(
    inputs: list[str], text: str
) -> None:
    config = load_config(DEMO, inputs)
    scene = scene_with_champion(config)
    version = register(scene, config, incumbent=text)

    with pytest.raises(ConfigError, match=r"specpilot\.incumbent is no number of a version"):
        tools(scene, inputs).promote(version)

    assert scene.production.declarations == []
