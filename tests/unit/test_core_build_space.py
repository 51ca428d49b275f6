from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core.build_space import build_all_arms
from orchestrator.core.space import (
    CAPABILITIES,
    Capability,
    DraftFacts,
    EngineTraits,
    SpaceSettings,
    build_arms,
)
from orchestrator.errors import ConfigError

NEW = EngineTraits(build="0.32.0", platform="cpu", model_runner="v2")
OLD = replace(NEW, build="0.28.0")
V1 = replace(OLD, model_runner="v1")
DRAFT = DraftFacts(block_size=8, architecture="DFlash2DraftModel")
SPACE = SpaceSettings(
    baseline=True,
    draft_sample_method=("greedy", "probabilistic"),
    rejection_sample_method=("standard", "block"),
    num_speculative_tokens=(5, 7),
)


@pytest.fixture
def block_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the older build not have block verification."""
    rules = CAPABILITIES["rejection_sample_method"]
    monkeypatch.setitem(rules, "block", Capability(runners=("v2",), since=(0, 32, 0)))


def test_build_all_arms_each_build_has_the_same_arms_the_first_one_first() -> None:
    arms, notes = build_all_arms(SPACE, [NEW, OLD], DRAFT, promotable=True)

    assert arms[:9] == build_arms(SPACE, NEW, DRAFT, promotable=True)
    assert arms[9:] == build_arms(SPACE, OLD, DRAFT, promotable=True)
    assert notes == ()


@pytest.mark.usefixtures("block_is_new")
def test_build_all_arms_rule_that_one_build_lacks_is_left_out_there_and_said() -> None:
    arms, notes = build_all_arms(SPACE, [NEW, OLD], DRAFT, promotable=True)

    assert {a.rejection_sample_method for a in arms if a.engine_build == "0.28.0"} == {
        *(None, "standard")
    }
    assert sum(arm.engine_build == "0.32.0" for arm in arms) == 9
    (note,) = notes
    assert "0.28.0 has no block on model runner v2" in note


@pytest.mark.usefixtures("block_is_new")
def test_build_all_arms_build_without_any_of_the_rules_keeps_its_baseline() -> None:
    space = replace(SPACE, rejection_sample_method=("block",))
    arms, _ = build_all_arms(space, [NEW, OLD], DRAFT, promotable=True)

    assert [arm.label for arm in arms if arm.engine_build == "0.28.0"] == ["no-speculation"]
    with pytest.raises(ConfigError, match=r"engine\.builds: vLLM 0\.28\.0 has no block"):
        build_all_arms(replace(space, baseline=False), [NEW, OLD], DRAFT, promotable=True)


def test_build_all_arms_build_that_cannot_run_the_draft_keeps_its_baseline() -> None:
    """A07: V1 drafts as DFlash1 there; V2 beside it does not make it right."""
    arms, (note,) = build_all_arms(SPACE, [NEW, V1], DRAFT, promotable=True)

    assert [arm.label for arm in arms if arm.engine_build == "0.28.0"] == ["no-speculation"]
    assert "0.28.0 has no DFlash2DraftModel on model runner v1" in note


def test_build_all_arms_value_that_no_build_honours_is_refused_as_for_one() -> None:
    """A05: leaving it out everywhere would answer another question than the one asked."""
    with pytest.raises(ConfigError, match="token by token"):
        build_all_arms(SPACE, [V1, replace(V1, build="0.32.0")], DRAFT, promotable=True)
    synthetic = replace(SPACE, rejection_sample_method=("synthetic",))
    with pytest.raises(ConfigError, match="never be promoted"):
        build_all_arms(synthetic, [NEW, OLD], DRAFT, promotable=True)
    with pytest.raises(ConfigError, match=r"0\.27\.1 is older"):
        build_all_arms(SPACE, [NEW, replace(NEW, build="0.27.1")], DRAFT, promotable=True)


def test_build_all_arms_of_one_build_are_its_arms() -> None:
    assert build_all_arms(SPACE, [NEW], DRAFT, promotable=True) == (
        build_arms(SPACE, NEW, DRAFT, promotable=True),
        (),
    )
    alone = replace(SPACE, num_speculative_tokens=())
    assert build_all_arms(alone, [V1], None, promotable=True)[0] == build_arms(
        alone, V1, None, promotable=True
    )
