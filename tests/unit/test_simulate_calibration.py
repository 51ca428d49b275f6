from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core.types import Arm, Cell
from orchestrator.fakes.simulate.calibrate import (
    LONG_WINDOW_S,
    PROBE,
    compare,
    published,
    report,
    run_cv,
)
from orchestrator.fakes.simulate.worlds import article_world, speculating

DEEP = speculating("probabilistic", "block", 7)
PROB = speculating("probabilistic", "standard", 5)


@pytest.mark.parametrize("boot_cv", [0.02, 0.06])
def test_every_published_row_lies_in_the_band_of_one_run(boot_cv: float) -> None:
    rows = compare(article_world(boot_cv), num_runs=300)

    assert [row.published for row in rows] == list(published())
    assert [row for row in rows if not row.is_inside] == []


def test_board_of_another_speed_does_not_fit() -> None:
    world = article_world()
    physics = replace(world.physics, base_s=1.2 * world.physics.base_s)

    rows = compare(replace(world, physics=physics), num_runs=100)

    assert sum(not row.is_inside for row in rows) > 3


@pytest.mark.parametrize("arm", [PROB, DEEP], ids=lambda arm: arm.label)
@pytest.mark.parametrize("streams", [1, 2])
def test_runs_of_the_probe_vary_by_5_to_20_percent_at_few_streams(arm: Arm, streams: int) -> None:
    cell = Cell(streams=streams, temperature=0.7)

    cv = run_cv(article_world(), arm, cell, window_s=PROBE.window_s, num_runs=300)

    assert 0.05 < cv < 0.20


@pytest.mark.parametrize("arm", [PROB, DEEP], ids=lambda arm: arm.label)
@pytest.mark.parametrize("streams", [8, 16])
def test_long_runs_vary_by_less_than_1_percent_from_eight_streams_on(
    arm: Arm, streams: int
) -> None:
    cell = Cell(streams=streams, temperature=0.7)

    cv = run_cv(article_world(), arm, cell, window_s=LONG_WINDOW_S, num_runs=200)

    assert cv < 0.01


def test_report_names_every_row_and_the_count_inside() -> None:
    lines = list(report(num_runs=20))

    assert sum(line.startswith("inside: ") for line in lines) == 2
    assert sum(line.endswith(("  yes", "  NO")) for line in lines) == 2 * len(published())
