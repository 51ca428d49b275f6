from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from core_samples import BUILD, make_arm
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.boot_model import (
    BootScore,
    find_outliers,
    fit_boots,
    half_width,
    unreplicated,
)
from orchestrator.core.types import Arm

ARM = make_arm(7)
OTHER = make_arm(5)
THIRD = make_arm(4)
OTHER_BUILD = "0.28.0"
ELSEWHERE = replace(ARM, engine_build=OTHER_BUILD)


def scores_of(arm: Arm, speeds: Sequence[float]) -> list[BootScore]:
    """Return scores in seconds of boots whose speeds are given."""
    return [
        BootScore(arm=arm, boot=f"{arm.key}-{index}", log_score=-math.log(speed))
        for index, speed in enumerate(speeds)
    ]


def test_fit_boots_pools_the_spread_of_replicated_arms() -> None:
    fit = fit_boots(
        [
            *scores_of(ARM, [math.exp(-0.1), math.exp(0.1)]),
            *scores_of(OTHER, [math.exp(-0.2), 1.0, math.exp(0.2)]),
            *scores_of(THIRD, [5.0]),
        ]
    )
    assert fit.means[ARM] == pytest.approx(0.0)
    assert fit.num_boots[OTHER] == 3
    assert fit.spread[BUILD].degrees_of_freedom == 3
    assert fit.spread[BUILD].value == pytest.approx((0.02 + 0.08) / 3)
    (part,) = fit.parts_of({ARM: 1.0, OTHER: -2.0}) or ()
    assert part.value == pytest.approx(0.1 / 3 * (1 / 2 + 4 / 3))
    (ahead,) = fit.parts_of({ARM: 1.0, OTHER: -1.0}, more=2) or ()
    assert ahead.value == pytest.approx(0.1 / 3 * (1 / 4 + 1 / 5))
    assert ahead.degrees_of_freedom == 7


def test_fit_boots_known_score_says_nothing_of_the_spread() -> None:
    scores = [*scores_of(ARM, [1.0, 1.1]), *scores_of(OTHER, [1.0, 3.0])]
    fit = fit_boots(scores, fixed={OTHER})
    assert fit.spread[BUILD].degrees_of_freedom == 1
    assert fit.spread[BUILD].value == pytest.approx(math.log(1.1) ** 2 / 2)


def test_fit_boots_without_a_replicated_arm_has_no_variance() -> None:
    fit = fit_boots([*scores_of(ARM, [1.0]), *scores_of(OTHER, [2.0])])
    assert (fit.spread, fit.parts_of({ARM: 1.0, OTHER: -1.0})) == ({}, None)
    assert unreplicated(fit, (ARM, OTHER)) == (
        "no arm has two scored boots, so the spread between boots is unknown"
    )
    assert fit_boots([]).means == {}


def test_fit_boots_equal_but_for_rounding_has_no_spread() -> None:
    fit = fit_boots(scores_of(ARM, [1.0, 1.0 + 1e-15, 1.0]))
    assert fit.spread[BUILD].value == 0.0


def test_fit_boots_no_build_tells_of_another_s_spread() -> None:
    """A02: results of two builds are never pooled, their spread neither."""
    tight = [*scores_of(ARM, [1.0, 1.01]), *scores_of(OTHER, [1.5, 1.51])]
    wide = scores_of(ELSEWHERE, [2.0, 2.6, 3.1])
    fit = fit_boots([*tight, *wide])

    assert fit.spread[BUILD] == fit_boots(tight).spread[BUILD]
    assert fit.spread[OTHER_BUILD] == fit_boots(wide).spread[OTHER_BUILD]
    assert fit.parts_of({ARM: 1.0, OTHER: -1.0}) == fit_boots(tight).parts_of(
        {ARM: 1.0, OTHER: -1.0}
    )
    first, second = fit.parts_of({ARM: 1.0, ELSEWHERE: -1.0}) or ()
    assert first.value == pytest.approx(fit.spread[BUILD].value / 2)
    assert second.value == pytest.approx(fit.spread[OTHER_BUILD].value / 3)
    assert (first.degrees_of_freedom, second.degrees_of_freedom) == (2, 2)


def test_fit_boots_build_without_a_replicated_arm_borrows_no_spread() -> None:
    fit = fit_boots([*scores_of(ARM, [1.0, 1.01]), *scores_of(ELSEWHERE, [2.0])])

    assert fit.parts_of({ARM: 1.0, ELSEWHERE: -1.0}) is None
    assert unreplicated(fit, (ARM, ELSEWHERE)) == (
        "no arm of vLLM 0.28.0 has two scored boots, so the spread between boots is unknown"
    )


def test_half_width_of_two_builds_covers_as_often_as_it_says() -> None:
    """Two boots of each of two arms, builds that spread by 1 % and by 4 %."""
    rng = np.random.default_rng(5)
    num_studies, covered = 2000, 0
    for _ in range(num_studies):
        fit = fit_boots(
            [
                score
                for arm, cv in ((ARM, 0.01), (OTHER, 0.01), (ELSEWHERE, 0.04))
                for score in scores_of(arm, np.exp(rng.normal(0, cv, 3)).tolist())
            ]
        )
        half = half_width(fit.parts_of({ARM: 1.0, ELSEWHERE: -1.0}) or (), 0.95)
        covered += abs(fit.means[ARM] - fit.means[ELSEWHERE]) <= half
    assert 0.94 <= covered / num_studies <= 0.98


def test_find_outliers_flags_the_published_first_run_against_a_tight_second_arm() -> None:
    # Published: 178.5 once, then 161.8, 167.8, 160.9; and three runs of another arm at the same
    # load within 2.2 tok/s of each other. This is the widest spread that such runs can have.
    runs = scores_of(ARM, [178.5, 161.8, 167.8, 160.9])
    tight = scores_of(OTHER, [119.37, 119.37, 121.57])
    (flagged,) = find_outliers([*runs, *tight])
    assert (flagged.arm, flagged.boot, flagged.num_boots) == (ARM, runs[0].boot, 7)
    assert 1 / flagged.score == pytest.approx(178.5)
    assert 1 / flagged.others == pytest.approx(163.5, abs=0.1)
    assert flagged.p_value == pytest.approx(0.089, abs=0.001)


def test_find_outliers_looks_at_the_boots_of_its_own_build_only() -> None:
    runs = scores_of(ARM, [178.5, 161.8, 167.8, 160.9])
    tight = scores_of(ELSEWHERE, [119.37, 120.31, 121.57])

    assert find_outliers([*runs, *scores_of(OTHER, [119.37, 120.31, 121.57])])[0].arm == ARM
    assert find_outliers([*runs, *tight]) == ()


def test_find_outliers_four_runs_alone_cannot_show_it() -> None:
    assert find_outliers(scores_of(ARM, [178.5, 161.8, 167.8, 160.9])) == ()


def test_find_outliers_of_two_boots_neither_is_the_odd_one() -> None:
    steady = [*scores_of(OTHER, [1.0, 1.001]), *scores_of(THIRD, [2.0, 2.001])]
    assert find_outliers([*scores_of(ARM, [1.0, 3.0]), *steady]) == ()


def test_find_outliers_among_exact_copies_is_certain() -> None:
    (flagged,) = find_outliers(scores_of(ARM, [1.0, 1.0, 1.0, 1.2]))
    assert flagged.p_value == pytest.approx(0.0, abs=1e-9)
    assert find_outliers(scores_of(ARM, [1.0] * 4)) == ()


def test_find_outliers_false_flags_are_as_rare_as_the_level_says() -> None:
    rng = np.random.default_rng(3)
    num_studies = 1500
    flagged = sum(
        bool(
            find_outliers(
                [
                    s
                    for arm in (ARM, OTHER)
                    for s in scores_of(arm, np.exp(rng.normal(0, 0.02, 4)).tolist())
                ]
            )
        )
        for _ in range(num_studies)
    )
    assert 0.07 <= flagged / num_studies <= 0.12


@given(
    speeds=st.lists(st.floats(0.1, 10.0), min_size=3, max_size=6),
    unit=st.floats(1e-2, 1e2),
)
def test_find_outliers_does_not_depend_on_the_unit(speeds: list[float], unit: float) -> None:
    plain = find_outliers(scores_of(ARM, speeds))
    scaled = find_outliers(scores_of(ARM, [speed * unit for speed in speeds]))
    if all(item.p_value < 0.09 for item in plain):
        assert {item.boot for item in plain} <= {item.boot for item in scaled}
