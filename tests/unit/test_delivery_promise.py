"""What a registered version promises, and what it may not be promoted without."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from core_samples import make_arm, make_boots

from orchestrator.config import StudyConfig, load_config
from orchestrator.core.cell_promises import CellPromises
from orchestrator.core.codec import from_plain
from orchestrator.delivery import heaviest, held_to, promise_tags, promotion_settings
from orchestrator.errors import ConfigError
from orchestrator.load.sanity import garbage_reason
from orchestrator.ports import Version

DEMO = Path("conf/study/demo.yaml")
ARM = make_arm()


@pytest.fixture
def config() -> StudyConfig:
    return load_config(DEMO, [])


def version(tags: Mapping[str, str]) -> Version:
    return Version(model_name="demo", version=3, config={}, tags=tags, run_id=None)


def test_registered_version_is_held_to_what_its_boots_showed(config: StudyConfig) -> None:
    boots = make_boots(ARM, [0.030, 0.031, 0.029], cells=config.cells())

    tags = promise_tags(config, ARM, boots)
    promise = held_to(version(tags))

    assert promise.cell == heaviest(config)
    assert promise.arm == ARM
    assert promise.is_modelled, "the demo's step times are"
    assert promise.acceptance is not None
    assert promise.acceptance.mean == pytest.approx(3.01, abs=0.01)
    assert tags["specpilot.boot_time_s"] == "40.0"
    cells = from_plain(CellPromises, json.loads(tags["specpilot.cells"]))
    assert [item.cell for item in cells.cells] == list(config.cells())
    assert sum(cells.weights.values()) == pytest.approx(1.0)


def test_heaviest_cell_is_the_closed_loop_of_most_streams(config: StudyConfig) -> None:
    assert heaviest(config).key == "c2_t1"
    measured = load_config(Path("conf/study/qwen38_gb10.yaml"), ["load.request_rates=[9]"])
    assert heaviest(measured).key == "c16_t1"


@pytest.mark.parametrize(
    ("tags", "says"),
    [
        ({}, "it was registered without a promise; register it by a study"),
        ({"specpilot.promise": "{}"}, "its tag specpilot.promise is no promise"),
        ({"specpilot.promise": "no JSON"}, "its tag specpilot.promise is no promise"),
    ],
)
def test_version_without_a_promise_cannot_be_promoted(tags: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        held_to(version(tags))

    assert caught.value.where == "version 3 of 'demo'"


def test_boots_without_a_spread_promise_nothing_that_can_be_held(config: StudyConfig) -> None:
    tags = promise_tags(config, ARM, make_boots(ARM, [0.03], cells=[heaviest(config)]))

    with pytest.raises(ConfigError, match="show no spread of acceptance"):
        held_to(version(tags))


def test_settings_of_a_promotion_come_from_the_study(config: StudyConfig) -> None:
    changed = load_config(
        DEMO, ["policy.canary_share=0.3", "policy.canary_requests=7", "production.drain_s=5"]
    )

    settings = promotion_settings(changed, ["a"])

    assert (settings.canary_share, settings.canary_s) == (0.3, 60.0)
    assert (settings.canary_requests, settings.drain_s) == (7, 5.0)
    assert settings.measure_s == 1.5 * (config.load.block_s + config.policy.soak_s)


LOOPED, LOOP_TOKENS = "\nSUBL = 42", 9
"""One round of what vLLM 0.32.0 said of the tiny target with a `repetition_penalty` of 0.01."""


@pytest.mark.parametrize(("limit", "asked"), [(16, 16), (64, 64), (512, 128)])
def test_verification_asks_for_answers_of_the_loads_length_up_to_a_limit(
    limit: int, asked: int
) -> None:
    settings = promotion_settings(load_config(DEMO, [f"load.max_tokens={limit}"]), ["a"])

    assert settings.verify_max_tokens == asked


def test_verifications_answers_are_long_enough_to_tell_a_loop(config: StudyConfig) -> None:
    settings = promotion_settings(config, ["a"])

    answer = LOOPED * (settings.verify_max_tokens // LOOP_TOKENS)

    assert garbage_reason([answer] * settings.verify_requests) is not None
