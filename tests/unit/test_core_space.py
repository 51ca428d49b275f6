from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from core_samples import BASELINE, make_arm, make_facts
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.space import (
    CAPABILITIES,
    Capability,
    DraftFacts,
    EngineTraits,
    SpaceSettings,
    build_arms,
    not_in_force,
    reference_arm,
    speculative_config,
)
from orchestrator.errors import ConfigError

V2 = EngineTraits(build="0.32.0", platform="cpu", model_runner="v2")
V1 = EngineTraits(build="0.32.0", platform="cuda", model_runner="v1")
DRAFT = DraftFacts(block_size=8, architecture="DFlash2DraftModel")
SPACE = SpaceSettings(
    baseline=True,
    draft_sample_method=("greedy", "probabilistic"),
    rejection_sample_method=("standard", "block"),
    num_speculative_tokens=(5, 7),
)


def refuse(
    space: SpaceSettings = SPACE,
    traits: EngineTraits = V2,
    draft: DraftFacts | None = DRAFT,
    *,
    promotable: bool = True,
) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        build_arms(space, traits, draft, promotable=promotable)
    return caught.value


def test_build_arms_full_space_is_ordered_and_complete() -> None:
    arms = build_arms(SPACE, V2, DRAFT, promotable=True)
    assert [arm.label for arm in arms] == [
        "no-speculation",
        "greedy+standard-5",
        "greedy+standard-7",
        "greedy+block-5",
        "greedy+block-7",
        "probabilistic+standard-5",
        "probabilistic+standard-7",
        "probabilistic+block-5",
        "probabilistic+block-7",
    ]


def test_build_arms_baseline_alone_needs_no_draft_and_takes_v1() -> None:
    space = replace(SPACE, num_speculative_tokens=())
    assert build_arms(space, V1, None, promotable=True) == (BASELINE,)


def test_build_arms_without_baseline_leaves_it_out() -> None:
    arms = build_arms(replace(SPACE, baseline=False), V2, DRAFT, promotable=True)
    assert len(arms) == 8
    assert not any(arm.is_baseline for arm in arms)


def test_build_arms_unknown_block_size_accepts_any_depth() -> None:
    draft = replace(DRAFT, block_size=None)
    space = replace(SPACE, num_speculative_tokens=(12,))
    assert len(build_arms(space, V2, draft, promotable=True)) == 5


def test_build_arms_synthetic_without_promotion_is_legal() -> None:
    space = replace(SPACE, rejection_sample_method=("synthetic",), num_speculative_tokens=(4,))
    arms = build_arms(space, V2, DRAFT, promotable=False)
    config = speculative_config(arms[-1], "draft")
    assert config is not None
    assert config["synthetic_acceptance_length"] == 3.0


def test_build_arms_synthetic_in_a_promotable_study_is_refused() -> None:
    error = refuse(replace(SPACE, rejection_sample_method=("synthetic",)))
    assert error.where == "search.rejection_sample_method"
    assert "synthetic" in str(error)


@pytest.mark.parametrize(
    ("change", "where", "words"),
    [
        ({"baseline": False, "num_speculative_tokens": ()}, "search", "empty"),
        (
            {"draft_sample_method": ("grredy",)},
            "search.draft_sample_method",
            "greedy, probabilistic",
        ),
        (
            {"rejection_sample_method": ("verify_method",)},
            "search.rejection_sample_method",
            "standard, block, synthetic",
        ),
        ({"draft_sample_method": ()}, "search.draft_sample_method", "empty"),
        ({"draft_sample_method": ("greedy",) * 2}, "search.draft_sample_method", "twice"),
        ({"num_speculative_tokens": (5, 5)}, "search.num_speculative_tokens", "5 stands"),
        ({"num_speculative_tokens": (0,)}, "search.num_speculative_tokens", "0 is below 1"),
    ],
)
def test_build_arms_bad_setting_names_the_key(
    change: dict[str, Any], where: str, words: str
) -> None:
    error = refuse(replace(SPACE, **change))
    assert error.where == where
    assert words in str(error)


def test_build_arms_depth_beyond_the_trained_block_names_both() -> None:
    error = refuse(replace(SPACE, num_speculative_tokens=(7, 8)))
    assert error.where == "search.num_speculative_tokens"
    assert "8 is beyond" in str(error)
    assert "at most 7" in str(error)


def test_build_arms_block_on_v1_names_key_runner_and_version() -> None:
    error = refuse(replace(SPACE, rejection_sample_method=("block",)), V1)
    assert error.where == "search.rejection_sample_method"
    for words in ("'block'", "v1", "v2", "0.32.0", "token by token"):
        assert words in str(error)


def test_build_arms_dflash2_on_v1_names_runner_and_version() -> None:
    error = refuse(replace(SPACE, rejection_sample_method=("standard",)), V1)
    assert error.where == "engine.model_runner"
    for words in ("DFlash2DraftModel", "v1", "v2", "0.32.0", "DFlash1"):
        assert words in str(error)


@pytest.mark.parametrize("architecture", ["DFlashDraftModel", None])
def test_build_arms_other_draft_says_what_is_supported(architecture: str | None) -> None:
    error = refuse(draft=replace(DRAFT, architecture=architecture))
    assert error.where == "draft.path"
    assert "supported: DFlash2DraftModel" in str(error)


def test_build_arms_missing_draft_is_refused() -> None:
    assert refuse(draft=None).where == "draft.path"


@pytest.mark.parametrize("build", ["0.27.1", "nightly"])
def test_build_arms_old_or_odd_build_is_refused(build: str) -> None:
    error = refuse(traits=replace(V2, build=build))
    assert error.where == "engine.build"
    assert build in str(error)


def test_capability_platform_and_version_are_conditions() -> None:
    cuda_only = Capability(runners=("v2",), platforms=("cuda",))
    assert cuda_only.missing(V2) == "platform cuda"
    later = Capability(runners=("v2",), since=(0, 33, 0))
    assert later.missing(V2) == "vLLM 0.33.0 or later"
    assert Capability(runners=("v1", "v2")).missing(V1) is None


@given(
    depths=st.lists(st.integers(-2, 12), unique=True, max_size=4),
    drafts=st.lists(st.sampled_from(["greedy", "probabilistic", "odd"]), unique=True),
    rejections=st.lists(st.sampled_from(["standard", "block", "synthetic"]), unique=True),
    runner=st.sampled_from(["v1", "v2"]),
    baseline=st.booleans(),
    promotable=st.booleans(),
)
def test_build_arms_yields_only_legal_arms_or_refuses(
    depths: list[int],
    drafts: list[str],
    rejections: list[str],
    runner: Any,
    baseline: bool,
    promotable: bool,
) -> None:
    space = SpaceSettings(
        baseline=baseline,
        draft_sample_method=tuple(drafts),
        rejection_sample_method=tuple(rejections),
        num_speculative_tokens=tuple(depths),
    )
    traits = replace(V2, model_runner=runner)
    try:
        arms = build_arms(space, traits, DRAFT, promotable=promotable)
    except ConfigError:
        return
    assert arms == build_arms(space, traits, DRAFT, promotable=promotable)
    assert len(set(arms)) == len(arms) > 0
    for arm in arms:
        assert 0 <= arm.num_speculative_tokens <= 7
        if not arm.is_baseline:
            assert runner == "v2"
            assert arm.draft_sample_method in CAPABILITIES["draft_sample_method"]
            assert not (promotable and arm.rejection_sample_method == "synthetic")


def test_speculative_config_writes_the_method_out() -> None:
    assert speculative_config(make_arm(), "models/mtp-named-folder") == {
        "method": "dflash",
        "model": "models/mtp-named-folder",
        "num_speculative_tokens": 7,
        "draft_sample_method": "probabilistic",
        "rejection_sample_method": "block",
    }
    assert speculative_config(BASELINE, "draft") is None


def test_not_in_force_matching_engine_is_none() -> None:
    assert not_in_force(make_arm(), make_facts(make_arm())) is None
    local = make_facts(make_arm(), engine_version="0.32.0+cpu")
    assert not_in_force(make_arm(), local) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"engine_version": None}, ["does not say its version"]),
        ({"engine_version": "0.28.0"}, ["engine.build", "0.32.0", "0.28.0"]),
        ({"num_speculative_tokens": 5}, ["num_speculative_tokens", "7", "5 is in force"]),
        ({"draft_sample_method": "greedy"}, ["draft_sample_method", "greedy", "v2", "0.32.0"]),
        ({"rejection_sample_method": None}, ["rejection_sample_method", "does not say"]),
        ({"model_runner": "v1"}, ["rejection_sample_method", "block", "v1", "0.32.0"]),
        ({"draft_architecture": "DFlashDraftModel"}, ["DFlashDraftModel", "vouch", "v2"]),
        ({"draft_architecture": None}, ["does not state", "draft model"]),
    ],
)
def test_not_in_force_other_engine_names_key_and_values(
    change: dict[str, Any], words: list[str]
) -> None:
    problem = not_in_force(make_arm(), replace(make_facts(make_arm()), **change))
    assert problem is not None
    for word in words:
        assert word in problem


def test_not_in_force_build_with_a_name_answers_with_its_version() -> None:
    arm = replace(make_arm(7), engine_build="0.32.0+patched")
    assert not_in_force(arm, make_facts(arm, engine_version="0.32.0+cpu")) is None
    assert not_in_force(arm, make_facts(arm, engine_version="0.28.0")) is not None


def test_not_in_force_dflash2_under_standard_on_v1_is_reported() -> None:
    arm = make_arm(rejection="standard")
    problem = not_in_force(arm, make_facts(arm, model_runner="v1"))
    assert problem is not None
    assert "draft model: DFlash2DraftModel takes effect on model runner v2 only" in problem


def test_not_in_force_unknown_runner_is_reported_for_speculation_only() -> None:
    facts = make_facts(make_arm(), model_runner=None)
    assert "(not stated)" in (not_in_force(make_arm(), facts) or "")
    assert not_in_force(BASELINE, make_facts(BASELINE, model_runner=None)) is None


@pytest.mark.parametrize(
    "change",
    [
        {"num_speculative_tokens": 5},
        {"draft_sample_method": "greedy"},
        {"draft_architecture": "DFlash2DraftModel"},
    ],
)
def test_not_in_force_baseline_that_speculates_is_reported(change: dict[str, Any]) -> None:
    facts = replace(make_facts(BASELINE), **change)
    assert "no speculation was asked for" in (not_in_force(BASELINE, facts) or "")


def test_reference_arm_prefers_the_incumbent_then_the_baseline() -> None:
    arm = make_arm()
    assert reference_arm((BASELINE, arm), arm) == arm
    assert reference_arm((arm, BASELINE), None) == BASELINE
    assert reference_arm((arm,), None) is None
