from __future__ import annotations

from typing import Any

import pytest
from core_samples import BASELINE, BOARD, WIDE_CELL, make_arm

from orchestrator.core.requests import RequestRecord, TokenSource


def make_record(**change: Any) -> RequestRecord:
    values: dict[str, Any] = {
        "request_id": "r",
        "prompt_id": "p",
        "prompt_tokens": 5,
        "output_tokens": 40,
        "token_source": TokenSource.USAGE,
        "finish_reason": "length",
        "started_s": 0.0,
        "ttft_s": 0.1,
        "e2e_s": 0.49,
        "chunk_times_s": (),
    }
    return RequestRecord(**{**values, **change})


def test_tpot_spreads_the_time_after_the_first_token_over_the_other_tokens() -> None:
    assert make_record().tpot_s == pytest.approx(0.01)


@pytest.mark.parametrize(
    "change", [{"e2e_s": None}, {"ttft_s": None}, {"output_tokens": None}, {"output_tokens": 1}]
)
def test_tpot_without_the_figures_is_none(change: dict[str, Any]) -> None:
    assert make_record(**change).tpot_s is None


def test_names_tell_arms_and_cells_apart() -> None:
    assert (BASELINE.key, make_arm().key) == (
        "0.32.0/no-speculation",
        "0.32.0/probabilistic+block-7",
    )
    assert WIDE_CELL.key == "c4_t1"


def test_board_model_prices_tokens_and_the_draft() -> None:
    assert BOARD.step_time_s(0, 1) == pytest.approx(0.081)
    assert BOARD.step_time_s(7, 4) == pytest.approx(0.08 + 0.032 + 0.012)
