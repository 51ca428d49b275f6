from __future__ import annotations

import pytest

from infra.bench.verdict.coverage import (
    ARMS,
    NUM_BOOTS,
    PAIRS,
    SINGLE_CELLS,
    Case,
    bias_lines,
    coverage,
    coverage_lines,
    summary_lines,
    wilson,
)
from infra.bench.verdict.nodes import NUM_BOOTS as NODE_BOOTS
from infra.bench.verdict.nodes import NUM_NODES, OFFSETS, node_lines


def test_wilson_holds_the_published_example() -> None:
    # Newcombe, Stat. Med. 17, 1998, 857, table I: 81 of 263, method 3.
    assert wilson(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson(1.0, 20)[1] == pytest.approx(1.0)


def test_coverage_has_a_row_for_every_question_and_repeats_itself() -> None:
    case = Case(boot_cv=0.02, blocks_per_cell=1)
    rows = coverage(case, num_simulations=2, num_processes=1)
    assert len(rows) == len(NUM_BOOTS) * len(PAIRS) * (1 + len(SINGLE_CELLS))
    assert all(row.width > 0 and 0 <= row.covered <= 1 for row in rows)
    assert rows == coverage(case, num_simulations=2, num_processes=1)
    lines = [*coverage_lines(case, rows), *bias_lines(rows), *summary_lines({case: rows})]
    assert sum(line.lstrip().startswith(("2  ", "6  ")) for line in lines) == 8
    assert len(ARMS) == 4


def test_node_lines_have_a_row_for_every_design() -> None:
    lines = list(node_lines(3))
    assert len(lines) == 2 + len(NUM_NODES) * len(OFFSETS) * len(NODE_BOOTS)
