"""Whatever stands in a tag of the registry, a command ends in one line and never in a traceback."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from core_samples import CELL, make_arm
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from promotion_scene import MODEL, scene_with_champion

from orchestrator.config import StudyConfig, load_config
from orchestrator.core.codec import to_plain
from orchestrator.core.premises import Premises
from orchestrator.core.promise import Expected, Promise
from orchestrator.core.takeover import PromotionStep, TakeOver
from orchestrator.delivery import EVIDENCE_TAG, admit, read_promise
from orchestrator.errors import ConfigError, OrchestratorError
from orchestrator.fakes.tracker import FakeRegistry
from orchestrator.incumbent import ARM_TAG, PREMISES_TAG, comparable_champion, incumbent_arm
from orchestrator.ports import ProductionState, Version
from orchestrator.promotion_record import (
    BOOT_TIME_TAG,
    CHAMPION,
    NEXT_TAG,
    OUTAGE_BEGAN_TAG,
    OUTAGE_TAG,
    PREVIOUS,
    PROMISE_TAG,
    RECORD_TAG,
    SINCE_TAG,
    STEP_TAG,
)
from orchestrator.promotion_report import format_status, promise_line
from serve_apps.engine.spec import EngineSpec

PROMISE = Promise(
    arm=make_arm(),
    cell=CELL,
    confidence=0.95,
    is_modelled=False,
    step_time=Expected(mean=0.08, variance=1e-6, weight=3, degrees_of_freedom=5),
    acceptance=Expected(mean=3.0, variance=1e-4, weight=900, degrees_of_freedom=8),
)
RECORD = TakeOver(
    version=2, champion=1, champion_served=True, previous=None, challenger=2,
    kind="promote", mode="beside", began_utc_s=0.0,
)  # fmt: skip
PREMISES = Premises(
    engine_build="0.32.0", engine_args_digest="a", target_digest="t", draft_digest="d",
    node_kind="gb10", workload_digest="w", sampling={"top_p": 1.0}, step_time="measured",
    board_model=None, specpilot_version="1",
)  # fmt: skip
SOUND = {
    EVIDENCE_TAG: to_plain(PROMISE),
    ARM_TAG: to_plain(make_arm()),
    PREMISES_TAG: PREMISES.to_dict(),
    RECORD_TAG: to_plain(RECORD),
}
TAGS = [
    *SOUND, STEP_TAG, NEXT_TAG, BOOT_TIME_TAG, SINCE_TAG, OUTAGE_TAG, OUTAGE_BEGAN_TAG, PROMISE_TAG,
]  # fmt: skip
SPEC = EngineSpec(model="m", served_model_name="s", log_path="/l").to_dict()


@cache
def study(model: str) -> StudyConfig:
    return load_config(Path("conf/study/demo.yaml"), [f"tracking.registered_model={model}"])


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@st.composite
def damaged(draw: st.DrawFn, sound: Any) -> str:
    """Return a record with something else in one place."""
    plain = json.loads(json.dumps(sound))
    holder = plain
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = draw(st.sampled_from(keys))
        if not isinstance(holder[key], dict | list) or not holder[key] or draw(st.booleans()):
            break
        holder = holder[key]
    holder[key] = draw(anything)
    return json.dumps(plain)


@st.composite
def tagged(draw: st.DrawFn) -> tuple[str, str]:
    tag = draw(st.sampled_from(TAGS))
    texts = st.text(max_size=20) | anything.map(json.dumps) | st.sampled_from(list(PromotionStep))
    if tag in SOUND:
        texts |= damaged(SOUND[tag])
    return tag, draw(texts)


def use(tag: str, text: str, number: int) -> None:
    """Do with the versions all that commands do; a fault may be told by one kind of error only."""
    scene, _ = scene_with_champion()
    version = scene.registry.create_version(MODEL, "run", SPEC, {})
    scene.registry.set_tag(MODEL, 1, ARM_TAG, json.dumps(SOUND[ARM_TAG]))
    scene.registry.set_tag(MODEL, 1, PREMISES_TAG, json.dumps(SOUND[PREMISES_TAG]))
    scene.registry.set_tag(MODEL, 2, RECORD_TAG, json.dumps(SOUND[RECORD_TAG]))
    scene.registry.set_tag(MODEL, 2, STEP_TAG, "failed")
    scene.registry.set_tag(MODEL, number, tag, text)
    scene.admit = admit
    config = study(MODEL)

    def held() -> Version:
        found = scene.registry.by_number(MODEL, number)
        assert found is not None
        return found

    def status() -> object:
        holders = {CHAMPION: scene.registry.by_alias(MODEL, CHAMPION), PREVIOUS: held()}
        nothing = ProductionState(weights={}, engines={}, router_status=None, messages={})
        return format_status(holders, nothing, "")

    builds = dict.fromkeys(config.engine.build_names, PREMISES)
    uses = [
        lambda: promise_line(read_promise(held())),
        lambda: incumbent_arm(held()),
        lambda: comparable_champion(scene.registry, config, builds),
        lambda: scene.promoter().outage_words(held(), "promote"),
        lambda: scene.promoter().course(held(), kind="promote", allow_outage=True),
        lambda: scene.promoter().promote(held(), kind="rollback", allow_outage=True),
        lambda: scene.promote(version),
        status,
    ]
    for each in uses:
        with suppress(OrchestratorError):
            each()


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(tagged(), st.sampled_from([1, 2]))
@example((NEXT_TAG, "\N{SUPERSCRIPT TWO}"), 1)
@example((NEXT_TAG, "9" * 5000), 1)
@example((RECORD_TAG, "[" * 100_000), 2)
@example((BOOT_TIME_TAG, "soon"), 2)
@example((EVIDENCE_TAG, json.dumps(to_plain(PROMISE) | {"confidence": 1.0})), 2)
@example((PREMISES_TAG, json.dumps(PREMISES.to_dict() | {"sampling": None})), 1)
@example((ARM_TAG, "3"), 1)
@example((OUTAGE_BEGAN_TAG, "nan"), 2)
def test_whatever_stands_in_a_tag_is_an_error_of_ours_or_none(
    garbled: tuple[str, str], number: int
) -> None:
    use(*garbled, number)


@pytest.mark.parametrize(
    ("tag", "text"),
    [(EVIDENCE_TAG, "[]"), (ARM_TAG, "x"), (PREMISES_TAG, "{}"), (EVIDENCE_TAG, '{"arm": NaN}')],
)
def test_garbled_tag_is_named_with_version_and_remedy(tag: str, text: str) -> None:
    registry = FakeRegistry()
    sound = {ARM_TAG: json.dumps(SOUND[ARM_TAG]), PREMISES_TAG: json.dumps(SOUND[PREMISES_TAG])}
    version = registry.create_version("specpilot-demo", "run", SPEC, sound | {tag: text})
    registry.set_alias("specpilot-demo", CHAMPION, version.version)
    config = study("specpilot-demo")
    builds = dict.fromkeys(config.engine.build_names, PREMISES)

    def read() -> None:
        read_promise(version)
        comparable_champion(registry, config, builds)

    with pytest.raises(ConfigError) as caught:
        read()

    assert str(caught.value).startswith(f"version 1 of 'specpilot-demo': its tag {tag} is no ")
    assert "; register it again" in str(caught.value) or "; put back" in str(caught.value)


def test_boot_time_that_cannot_be_read_keeps_no_version_from_serving() -> None:
    """It is a figure that is said beforehand."""
    scene, version = scene_with_champion()
    scene.registry.set_tag(MODEL, 2, BOOT_TIME_TAG, "soon")
    version = scene.registry.by_number(MODEL, 2) or version

    words = scene.promoter().outage_words(version, "promote")

    assert words.startswith("an outage of unknown length: version 2 of 'demo'")
    assert BOOT_TIME_TAG in words


@pytest.mark.parametrize("config", [{}, {"depth": 7}, SPEC | {"boot_timeout_s": "x"}])
def test_version_whose_configuration_starts_no_engine_is_not_admitted(
    config: dict[str, object],
) -> None:
    tags = {EVIDENCE_TAG: json.dumps(SOUND[EVIDENCE_TAG])}
    version = Version(model_name="m", version=3, config=config, tags=tags, run_id="r")

    with pytest.raises(ConfigError, match=r"version 3 of 'm': its config\.json starts no engine"):
        admit(version)
