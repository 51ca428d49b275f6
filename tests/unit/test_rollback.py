"""Where a rollback leads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator import commands, compose
from orchestrator.commands import rollback_target
from orchestrator.config import StudyConfig, load_config
from orchestrator.core.takeover import PromotionStep, TakeOver
from orchestrator.errors import ConfigError
from orchestrator.fakes.tracker import FakeRegistry
from orchestrator.promotion_record import CHAMPION, PREVIOUS, SINCE_TAG, STEP_TAG, Found

DEMO = Path("conf/study/demo.yaml")


@pytest.fixture
def config() -> StudyConfig:
    return load_config(DEMO, [])


@pytest.fixture
def registry(config: StudyConfig) -> FakeRegistry:
    """Return four versions: 1 and 2 have served, 2 is the champion, 4 served long ago."""
    registry, name = FakeRegistry(), config.tracking.registered_model
    for number in range(1, 5):
        tags = {SINCE_TAG: "2026-01-01"} if number < 3 else {}
        registry.create_version(name, "run", {"depth": number}, tags)
    registry.set_tag(name, 4, STEP_TAG, "retired")
    registry.set_alias(name, CHAMPION, 2)
    registry.set_alias(name, PREVIOUS, 1)
    return registry


def cut_off(registry: FakeRegistry, name: str, number: int, kind: str) -> Found:
    version = registry.by_number(name, number)
    assert version is not None
    record = TakeOver(
        version=number,
        champion=2,
        champion_served=True,
        previous=1,
        challenger=None,
        kind=kind,  # type: ignore[arg-type]
        mode="beside",
        began_utc_s=0.0,
    )
    return Found(version=version, record=record, step=PromotionStep.BOOTED)


def target(
    config: StudyConfig, registry: FakeRegistry, number: int | None, found: Found | None = None
) -> int | None:
    version = rollback_target(config, registry, found, number)
    return None if version is None else version.version


def test_rollback_leads_to_previous_or_to_a_named_version_that_has_served(
    config: StudyConfig, registry: FakeRegistry
) -> None:
    assert target(config, registry, None) == 1
    assert target(config, registry, 1) == 1
    assert target(config, registry, 4) == 4


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (2, "version 2 is the champion"),
        (3, "version 3 has never served; `promote --registered-version 3`"),
        (9, "has no version 9"),
    ],
)
def test_rollback_to_what_it_cannot_be_is_refused(
    config: StudyConfig, registry: FakeRegistry, number: int, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        target(config, registry, number)


def test_rollback_without_a_version_before_is_refused(
    config: StudyConfig, registry: FakeRegistry
) -> None:
    registry.delete_alias(config.tracking.registered_model, PREVIOUS)

    with pytest.raises(ConfigError, match="has no alias previous; name one that has served: --to"):
        target(config, registry, None)


def test_rollback_from_a_promotion_that_was_cut_off_only_undoes_it(
    config: StudyConfig, registry: FakeRegistry
) -> None:
    """What served still does, so there is no further to go back."""
    name = config.tracking.registered_model

    assert target(config, registry, None, cut_off(registry, name, 3, "promote")) is None
    assert target(config, registry, 1, cut_off(registry, name, 3, "promote")) == 1


def test_rollback_that_was_cut_off_is_gone_on_with(
    config: StudyConfig, registry: FakeRegistry
) -> None:
    name = config.tracking.registered_model

    assert target(config, registry, None, cut_off(registry, name, 1, "rollback")) == 1


def test_rollback_after_a_promotion_that_only_had_to_tidy_up_goes_to_previous(
    config: StudyConfig, registry: FakeRegistry
) -> None:
    name = config.tracking.registered_model

    assert target(config, registry, None, cut_off(registry, name, 2, "promote")) == 1


@pytest.mark.parametrize(
    "command", [lambda config: commands.rollback(config, None), commands.sync], ids=["back", "sync"]
)
def test_what_has_served_comes_back_without_what_the_study_file_names(
    command: Callable[[StudyConfig], object],
    registry: FakeRegistry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The draft of what serves may have been lost, and the version before has its own."""

    def found(_config: StudyConfig) -> FakeRegistry:
        return registry

    monkeypatch.setattr(compose, "registry", found)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    lost = ["target.path=/nowhere/a", "draft.path=/nowhere/b", "engine.python=/nowhere/python"]

    with pytest.raises(ConfigError, match="no running Ray answers"):
        command(load_config(DEMO, lost))
