"""Texts of real engines; ``core.metric_names`` says what they come from."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.core.exposition import delta, parse_counters
from orchestrator.core.formulas import acceptance_length, acceptance_rate_per_position
from orchestrator.core.metric_names import SERIES, VERSIONS, names_in
from orchestrator.core.types import CounterSnapshot
from orchestrator.errors import EngineRestarted, MeasurementError

TEXTS = Path(__file__).parents[1] / "data/exposition"


@cache
def scraped(name: str) -> str:
    return (TEXTS / f"vllm-{name}.txt").read_text(encoding="ascii")


def names_of(text: str) -> set[str]:
    return {
        sample.name for family in text_string_to_metric_families(text) for sample in family.samples
    }


@pytest.mark.parametrize("version", ["0.28.0", "0.32.0", "0.33.0"])
def test_names_are_those_that_the_engine_publishes(version: str) -> None:
    published = names_of(scraped(f"{version}-after"))

    assert {series.name for series in SERIES} & published == set(names_in(version).values())


def test_names_without_speculation_are_those_that_the_engine_publishes() -> None:
    published = names_of(scraped("0.32.0-no-speculation"))
    names = set(names_in("0.32.0", speculates=False).values())

    assert {series.name for series in SERIES} & published == names


@pytest.mark.parametrize("version", VERSIONS)
def test_names_of_every_version_fill_every_field(version: str) -> None:
    assert set(names_in(f"{version}.0")) == {field.name for field in fields(CounterSnapshot)}


def test_names_of_an_unknown_version_are_not_guessed() -> None:
    with pytest.raises(KeyError, match=r"0\.27\.1 are not known"):
        names_in("0.27.1")


@pytest.mark.parametrize(
    ("version", "drafts", "accepted", "positions"),
    [
        ("0.28.0", 52, 80, (37, 20, 14, 5, 2, 2, 0)),
        ("0.32.0", 58, 67, (35, 18, 7, 4, 3, 0, 0)),
    ],
)
def test_delta_of_a_real_engine_is_what_its_clients_received(
    version: str, drafts: int, accepted: int, positions: tuple[int, ...]
) -> None:
    """Four requests of 45 prompt tokens, each answered with 32."""
    before, after = (parse_counters(scraped(f"{version}-{when}")) for when in ("before", "after"))
    window = delta(before, after)

    assert window.generation_tokens == 4 * 32
    assert window.prompt_tokens == window.prefix_cache_queries == 4 * 45
    assert (window.num_drafts, window.num_draft_tokens) == (drafts, 7 * drafts)
    assert (window.num_accepted_tokens, window.num_accepted_tokens_per_pos) == (accepted, positions)
    assert (window.prefix_cache_hits, window.num_preemptions) == (0, 0)
    rates = [rate or 0.0 for rate in acceptance_rate_per_position(window) or ()]
    assert acceptance_length(window) == pytest.approx(1 + sum(rates)), "rates are unconditional"
    assert (after.total.num_requests_running, after.total.num_requests_waiting) == (0, 0)
    assert after.total.kv_cache_usage == 0


def test_counters_of_two_real_engines_stay_apart() -> None:
    before, after = (parse_counters(scraped(f"0.33.0-{when}")) for when in ("before", "after"))

    assert [after[engine].num_accepted_tokens for engine in ("0", "1")] == [21, 7]
    assert after.total.num_accepted_tokens_per_pos == (9, 6, 5, 4, 2, 1, 1)
    assert (after.total.num_requests_running, after.total.num_requests_waiting) == (3, 1)
    assert after.total.kv_cache_usage == pytest.approx((0.25 + 0.5) / 2), "a share"
    assert after.total.prefix_cache_hits == 45
    assert delta(before, after).num_accepted_tokens == 24
    assert delta(before, after).generation_tokens == 32


def test_parse_counters_of_a_real_engine_without_speculation_has_no_drafts() -> None:
    counters = parse_counters(scraped("0.32.0-no-speculation")).total

    assert counters.generation_tokens == 136
    assert (counters.num_drafts, counters.num_accepted_tokens_per_pos) == (None, None)


def cuts(text: str) -> list[str]:
    """Return the text as it is when cut after each line of a series that is read."""
    names = tuple(series.name.removesuffix("_total") for series in SERIES)
    lines = text.splitlines(keepends=True)
    return ["".join(lines[:end]) for end, line in enumerate(lines) if line.startswith(names)]


@pytest.mark.parametrize("version", ["0.28.0", "0.32.0", "0.33.0"])
def test_delta_to_a_text_cut_between_lines_is_refused(version: str) -> None:
    start = parse_counters(scraped(f"{version}-before"))
    parts = cuts(scraped(f"{version}-after"))
    assert len(parts) > 40
    for part in parts:
        with pytest.raises(MeasurementError) as caught:
            delta(start, parse_counters(part))
        assert not isinstance(caught.value, EngineRestarted)


@pytest.mark.parametrize("version", ["0.28.0", "0.32.0"])
def test_parse_counters_cut_between_lines_knows_less_and_nothing_wrong(version: str) -> None:
    text = scraped(f"{version}-after")
    whole = parse_counters(text).total
    for cut in cuts(text):
        part = parse_counters(cut).total
        depth = len(part.num_accepted_tokens_per_pos or ())
        assert part.num_accepted_tokens_per_pos in (
            None,
            (whole.num_accepted_tokens_per_pos or ())[:depth],
        )
        for field in set(names_in(version)) - {"num_accepted_tokens_per_pos"}:
            assert getattr(part, field) in (None, getattr(whole, field))


@given(st.integers(1, len(scraped("0.28.0-after")) - 1))
def test_parse_counters_cut_within_a_line_is_a_measurement_error(end: int) -> None:
    text = scraped("0.28.0-after")[:end]
    if not text.endswith("\n"):
        with pytest.raises(MeasurementError, match="cut off"):
            parse_counters(text)


def test_delta_counters_made_anew_are_a_restart_in_the_same_process() -> None:
    text = scraped("0.33.0-after")
    made = next(
        line for line in text.splitlines() if 'generation_tokens_created{engine="1"' in line
    )
    anew = text.replace(made, made.rpartition(" ")[0] + " 1.795999999e+09")
    with pytest.raises(EngineRestarted, match="counters of engine 1 were made anew"):
        delta(parse_counters(text), parse_counters(anew))
    with pytest.raises(MeasurementError, match="_created twins of engine 1 are others"):
        delta(parse_counters(anew), parse_counters(text))
