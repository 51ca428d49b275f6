"""The rank test of a drift."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.trend import rank_trend

SERIES_CSV = Path(__file__).resolve().parents[3] / "shared/data/trial_series_rank_test.csv"


@pytest.mark.skipif(not SERIES_CSV.exists(), reason="shared/data is not beside the repository")
@pytest.mark.parametrize(("series", "rho", "p_value"), [("A", 0.393, 0.198), ("B", None, 0.357)])
def test_trend_of_published_series_has_their_published_p_values(
    series: str, rho: float | None, p_value: float
) -> None:
    lines = [line for line in SERIES_CSV.read_text().splitlines() if not line.startswith("#")]
    values = [float(row["tok_s"]) for row in csv.DictReader(lines) if row["series"] == series]
    trend = rank_trend(values)

    assert trend is not None
    assert trend.is_exact
    assert trend.p_value == pytest.approx(p_value, abs=5e-4)
    if rho is not None:
        assert trend.rho == pytest.approx(rho, abs=5e-4)


def test_trend_of_an_ordered_series_is_as_unlikely_as_one_order() -> None:
    trend = rank_trend([1, 2, 3, 4, 5])
    assert trend is not None
    assert trend.rho == pytest.approx(1.0)
    assert trend.p_value == pytest.approx(1 / 120)


@pytest.mark.parametrize("values", [[], [1.0, 2.0, 3.0], [2.0] * 6])
def test_trend_of_too_few_or_equal_values_is_none(values: list[float]) -> None:
    assert rank_trend(values) is None


def test_trend_of_a_long_series_is_by_t() -> None:
    trend = rank_trend([*range(20), 0.5])
    assert trend is not None
    assert not trend.is_exact
    assert trend.p_value < 0.01


@given(st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=7))
def test_trend_of_the_reversed_series_is_the_opposite(values: list[float]) -> None:
    there, back = rank_trend(values), rank_trend(values[::-1])
    if there is None or back is None:
        assert there is back
        return
    assert there.rho == pytest.approx(-back.rho, abs=1e-9)
    if there.rho:
        assert there.p_value == pytest.approx(back.p_value)
    assert 0 < there.p_value <= 1
