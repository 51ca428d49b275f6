"""What the audit's runs make of records: when an arm was rejected, and whether it had to be."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from infra.audit import __main__ as command
from infra.audit.arms import EVERY, Arm, Outcome, all_rows, observations, rejected_after
from infra.audit.engine import Build, Rule
from orchestrator.core.lossless.judge import judge
from serve_apps.audit.records import KINDS, ROW


def rows(count: int, *, share: float) -> NDArray[np.void]:
    """Return rejections, each with its rank (as expected) and whether it hit the candidates."""
    rng = np.random.default_rng(5)
    made = np.zeros(2 * count, ROW)
    made["step"] = np.arange(2 * count) // 2
    made["m"] = 0.5
    made["kind"][0::2] = KINDS.index("recovered_rank_1")
    made["kind"][1::2] = KINDS.index("recovered_in_candidates")
    made["x"][0::2] = np.arange(count) % 2
    made["x"][1::2] = rng.random(count) < share
    return made


def outcome(version: str, rule: Rule | None, found: NDArray[np.void]) -> Outcome:
    return Outcome(
        arm=Arm(build=Build(version=version, python=Path(sys.executable)), rule=rule, seed=1),
        result=judge(observations(found), num_tokens=len(found)),
        num_rejections=len(found) // 2,
        rejected_after=rejected_after(found),
        seconds=60.0,
    )


def test_biased_arm_is_rejected_at_a_look_before_its_end() -> None:
    found = rows(3000, share=0.35)
    after = rejected_after(found)
    assert after is not None
    assert after % EVERY == 0
    assert after < 3000
    # Not yet at the look before.
    assert rejected_after(found[: 2 * (after - EVERY)]) is None


def test_honest_arm_and_no_rows_are_not_rejected() -> None:
    assert rejected_after(rows(3000, share=0.5)) is None
    assert rejected_after(rows(0, share=0.5)) is None


def test_folder_without_records_has_no_rows(tmp_path: Path) -> None:
    assert len(all_rows(tmp_path)) == 0
    assert not observations(all_rows(tmp_path))


STANDARD: Rule = ("probabilistic", "standard")


@pytest.mark.parametrize(
    ("version", "rule", "share", "expected"),
    [
        ("0.28.0", STANDARD, 0.3, True),
        ("0.28.0", STANDARD, 0.5, False),
        ("0.32.0", STANDARD, 0.5, True),
        ("0.32.0", STANDARD, 0.3, False),
        ("0.32.0", None, 0.3, False),
        ("0.32.0", ("probabilistic", "block"), 0.3, True),
        ("0.32.0", ("probabilistic", "block"), 0.5, True),
    ],
)
def test_known_arms_must_be_judged_as_known_and_open_ones_may_be_either(
    version: str, rule: Rule | None, share: float, expected: bool
) -> None:
    assert command.is_as_known(outcome(version, rule, rows(2000, share=share))) is expected


def test_row_names_the_arm_and_after_how_many_rejections() -> None:
    found = rows(2000, share=0.3)
    text = command.row(outcome("0.28.0", STANDARD, found))
    assert "0.28.0  probabilistic + standard" in text
    assert f" {rejected_after(found)} " in text
    assert "rejected" in text
    assert "recovered_in_candidates: fewer" in text


@pytest.mark.parametrize(
    ("only", "rule"), [("0.28.0", None), ("0.28.0,greedy,block", ("greedy", "block"))]
)
def test_one_arm_may_be_asked_for(only: str, rule: Rule | None) -> None:
    options = argparse.Namespace(short=False, only=only, seeds=2, first_seed=7)
    chosen = list(command.arms(options))
    assert [(arm.build.version, arm.rule, arm.seed) for arm in chosen] == [
        ("0.28.0", rule, 7),
        ("0.28.0", rule, 8),
    ]


def test_short_form_is_one_seed_of_the_biased_and_of_a_lossless_arm() -> None:
    options = argparse.Namespace(short=True, only=None, seeds=5, first_seed=1)
    assert [(arm.build.version, arm.rule) for arm in command.arms(options)] == [
        ("0.28.0", STANDARD),
        ("0.32.0", STANDARD),
    ]
