from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from core_samples import BASELINE, make_arm, make_block

from orchestrator.core.checks import check_block, draft_doubt
from orchestrator.core.types import Arm, Block

ARM = make_arm()


def with_counters(block: Block, **change: Any) -> Block:
    return replace(block, counters=replace(block.counters, **change))


@pytest.mark.parametrize("arm", [ARM, BASELINE])
def test_check_block_good_block_is_valid(arm: Arm) -> None:
    assert check_block(make_block(arm), arm) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_requests": 0}, "no request"),
        ({"num_failed": 1}, "1 of 30 requests failed"),
        ({"output_tokens": 0}, "no output tokens"),
    ],
)
def test_check_block_failed_requests_invalidate(change: dict[str, Any], words: str) -> None:
    assert words in (check_block(replace(make_block(ARM), **change), ARM) or "")


def test_check_block_failed_share_within_the_limit_is_valid() -> None:
    block = replace(make_block(ARM), num_failed=1)
    assert check_block(block, ARM, max_failed_share=0.05) is None


@pytest.mark.parametrize(
    ("engine", "valid"), [(3000.0, True), (3030.0, True), (3031.0, False), (2960.0, False)]
)
def test_check_block_foreign_traffic_over_one_percent_invalidates(
    engine: float, valid: bool
) -> None:
    reason = check_block(with_counters(make_block(ARM), generation_tokens=engine), ARM)
    assert (reason is None) is valid
    assert valid or "other traffic" in (reason or "")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"generation_tokens": None}, "generation_tokens"),
        ({"num_drafts": None}, "spec_decode"),
        ({"num_accepted_tokens": None}, "spec_decode"),
        ({"num_drafts": 0.0}, "drafted nothing"),
        ({"num_accepted_tokens": 0.0}, "no accepted token"),
        ({"num_accepted_tokens_per_pos": (10.0, 20.0)}, "rises"),
    ],
)
def test_check_block_odd_counters_invalidate(change: dict[str, Any], words: str) -> None:
    assert words in (check_block(with_counters(make_block(ARM), **change), ARM) or "")


@pytest.mark.parametrize("rejection", ["standard", "block"])
def test_check_block_rates_rising_with_position_are_corrupt_under_every_rule(
    rejection: str,
) -> None:
    arm = make_arm(rejection=rejection)
    block = with_counters(make_block(arm), num_accepted_tokens_per_pos=(500.0, 500.0, 600.0))
    assert "corrupt" in (check_block(block, arm) or "")


def test_check_block_level_rates_and_no_positions_are_valid() -> None:
    for per_pos in ((500.0, 500.0), None):
        block = with_counters(make_block(ARM), num_accepted_tokens_per_pos=per_pos)
        assert check_block(block, ARM) is None


def test_check_block_baseline_that_drafts_is_invalid() -> None:
    block = with_counters(make_block(BASELINE), num_drafts=3.0)
    assert "does not speculate" in (check_block(block, BASELINE) or "")
    assert check_block(with_counters(block, num_drafts=0.0), BASELINE) is None


def test_check_block_few_drafts_without_acceptance_may_be_chance() -> None:
    block = with_counters(
        make_block(ARM),
        num_drafts=20.0,
        num_accepted_tokens=0.0,
        num_accepted_tokens_per_pos=(0.0, 0.0),
    )
    assert check_block(block, ARM) is None


def test_draft_doubt_first_position_under_a_tenth_asks_about_the_draft() -> None:
    poor = with_counters(make_block(ARM), num_accepted_tokens_per_pos=(90.0, 0.0))
    assert "draft broken?" in (draft_doubt([poor]) or "")
    assert draft_doubt([make_block(ARM)]) is None
    assert draft_doubt([with_counters(poor, num_drafts=50.0)]) is None
    assert draft_doubt([make_block(BASELINE)]) is None
    assert draft_doubt([]) is None
