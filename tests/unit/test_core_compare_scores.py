"""Scores that came without blocks: published runs, compared by the spread of whole boots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from core_samples import BASELINE, make_arm

from orchestrator.core.boot_model import BootScore, fit_boots
from orchestrator.core.comparison import compare_scores
from orchestrator.core.estimate import Contrast
from orchestrator.core.types import Arm

ARM = make_arm(7)
OTHER = make_arm(5)


def from_runs(
    runs: Mapping[Arm, Sequence[float]], a: Arm, b: Arm, *, confidence: float = 0.95
) -> Contrast:
    """Compare runs that came as tokens / s, without blocks."""
    scores = [
        BootScore(arm=arm, boot=str(index), log_score=-math.log(speed))
        for arm, speeds in runs.items()
        for index, speed in enumerate(speeds)
    ]
    return compare_scores(fit_boots(scores), a=a, b=b, confidence=confidence)


def test_contrast_known_score_by_whole_boots_counts_the_other_side_alone() -> None:
    logs = [0.0, 0.1, 0.05]
    scores = [BootScore(arm=ARM, boot=str(i), log_score=v) for i, v in enumerate(logs)]
    scores += [BootScore(arm=BASELINE, boot=str(i), log_score=1.0) for i in range(3)]
    known = frozenset({BASELINE})
    fit = fit_boots(scores, fixed=known)
    contrast = compare_scores(fit, a=ARM, b=BASELINE, confidence=0.95, fixed=known)
    half = 4.302653 * float(np.std(logs, ddof=1)) / math.sqrt(3)
    assert contrast.degrees_of_freedom == 2
    assert contrast.low is not None
    assert contrast.high is not None
    assert contrast.high - contrast.low == pytest.approx(2 * half, rel=1e-5)
    assert contrast.num_blocks is None


def test_compare_scores_published_three_runs_against_a_mean_cannot_tell() -> None:
    contrast = from_runs({ARM: [39.7, 33.1, 31.5], OTHER: [29.3]}, ARM, OTHER)
    assert contrast.excludes_zero is False
    assert contrast.speedup == pytest.approx(1.18, abs=0.01)
    assert (contrast.degrees_of_freedom, contrast.num_boots) == (2, (3, 1))
    assert "1.18 times as fast (95 % interval 0.6" in contrast.in_words


MEANS = {
    5: (27.33, 27.25, 26.93, 27.68),
    6: (29.60, 28.63, 28.62, 29.39),
    7: (31.29, 29.72, 30.38, 32.55),
    8: (23.48, 22.98, 21.81, 23.16),
    9: (24.29, 24.50, 22.44, 22.39),
}
MEDIANS = {
    5: (26.95, 23.20, 23.87, 28.47),
    6: (32.04, 25.58, 26.00, 25.69),
    7: (26.36, 26.20, 26.13, 32.38),
    8: (22.27, 20.58, 20.23, 21.84),
    9: (23.20, 24.05, 19.39, 18.93),
}
"""Tokens / s by depth on a GB10 at one stream, published: mean and median over 54 requests of four
runs with max_num_seqs 16, 32, 4 and 8, which cannot matter at one stream."""
ANY_OF_TEN = 1 - 0.05 / 10
"""Confidence of one of the ten pairs of five depths, when the pair is chosen after looking."""
ANY_OF_THIRTY = 1 - 0.05 / 30
"""The same of six pairs of runs at each of five depths."""


@pytest.mark.parametrize(("runs", "confidence"), [(MEDIANS, 0.95), (MEANS, ANY_OF_TEN)])
def test_compare_scores_published_depths_seven_and_six_cannot_be_told_apart_seven_and_eight_can(
    runs: Mapping[int, Sequence[float]], confidence: float
) -> None:
    speeds = {make_arm(depth): own for depth, own in runs.items()}
    near = from_runs(speeds, make_arm(7), make_arm(6), confidence=confidence)
    far = from_runs(speeds, make_arm(7), make_arm(8), confidence=confidence)
    assert (near.excludes_zero, far.excludes_zero) == (False, True)
    assert near.num_boots == (4, 4)


@pytest.mark.parametrize(("runs", "confidence"), [(MEDIANS, 0.95), (MEANS, ANY_OF_THIRTY)])
@pytest.mark.parametrize("depth", [5, 6, 7, 8, 9])
def test_compare_scores_published_runs_of_one_depth_show_no_difference(
    runs: Mapping[int, Sequence[float]], confidence: float, depth: int
) -> None:
    # Each run of this depth is an arm of its own; the spread is that of the other depths.
    others = {make_arm(key): own for key, own in runs.items() if key != depth}
    names = [
        replace(make_arm(depth), draft_sample_method=f"seqs{number}") for number in (16, 32, 4, 8)
    ]
    single = {name: (speed,) for name, speed in zip(names, runs[depth], strict=True)}
    for first, second in combinations(names, 2):
        contrast = from_runs({**others, **single}, first, second, confidence=confidence)
        assert contrast.excludes_zero is False
