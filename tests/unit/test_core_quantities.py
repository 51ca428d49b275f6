"""The quantities of a cell, as reports and trackers name them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_samples import BASELINE, WIDE_CELL, make_arm, make_block

from orchestrator.core.quantities import quantities


def test_quantities_of_two_blocks_are_those_of_one_window() -> None:
    first = make_block(make_arm(), cell=WIDE_CELL, tokens=3000, length=3.0, ttft_s=(0.2, 0.4))
    second = make_block(make_arm(), cell=WIDE_CELL, tokens=1000, length=2.0, ttft_s=(0.3,))

    both = quantities([first, second], speculates=True)

    assert both["acceptance_length"] == pytest.approx(4000 / (1000 + 500))
    assert both["output_throughput"] == pytest.approx(4 / 0.03)
    assert both["step_time_s"] == pytest.approx(0.03 * 4000 / 1500)
    assert both["ttft_p50_s"] == pytest.approx(0.3)
    assert both["tpot_p50_s"] is None


def test_quantities_without_speculation_have_a_step_a_token_and_no_acceptance() -> None:
    values = quantities([make_block(BASELINE, cell=WIDE_CELL)], speculates=False)

    assert (values["acceptance_length"], values["acceptance_rate"]) == (None, None)
    assert values["step_time_s"] == pytest.approx(0.03)


def test_quantities_of_a_window_that_never_opened_are_none() -> None:
    block = replace(make_block(BASELINE, ttft_s=()), duration_s=0.0)

    assert set(quantities([block], speculates=False).values()) == {None}
