"""Equal counters: a copy where chance does not explain them, and named where it does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from result_rows import Row, as_raw, make_row

from orchestrator.errors import ConfigError
from orchestrator.results.copies import repeats, shared_counters
from orchestrator.results.doubts import sift
from orchestrator.results.observation import Observation, observe


def read(rows: Sequence[Row]) -> list[Observation]:
    found = []
    for number, row in enumerate(rows, 2):
        observation, faults = observe(as_raw(row, f"rows.csv line {number}"))
        assert observation is not None, faults
        found.append(observation)
    return found


def counted(drafts: int, accepted: int, **changes: object) -> Row:
    given: Row = {"drafts": drafts, "accepted": accepted, "tokens": drafts + accepted}
    return make_row(**{**given, "draft_tokens": 7 * drafts, "seconds": 0.09 * drafts, **changes})


def honest(num_boots: int, seed: int) -> list[Row]:
    """Return boots of two arms that are alike, in windows of about 600 drafts."""
    rng = np.random.default_rng(seed)
    rows = []
    for arm in ("block", "standard"):
        for boot in range(num_boots):
            drafts = round(600 * rng.lognormal(0, 0.02))
            accepted = round(drafts * 1.4 * rng.lognormal(0, 0.03))
            rows.append(counted(drafts, accepted, rejection_sample_method=arm, boot=f"{arm}{boot}"))
    return rows


def test_one_row_of_another_arm_in_a_small_file_is_refused() -> None:
    rows = [*honest(3, seed=1), counted(612, 851, boot="x"), counted(612, 851, boot="y")]
    rows[-1]["rejection_sample_method"] = "standard"
    with pytest.raises(ConfigError, match=r"line 8 .* and rows\.csv line 9 .*the same counters to"):
        sift(read(rows))


def test_equal_counters_among_many_rows_are_named_and_count() -> None:
    rows = [*honest(100, seed=1), counted(612, 851, boot="x"), counted(612, 851, boot="y")]
    rows[-1]["rejection_sample_method"] = "standard"
    observations = read(rows)
    said = list(shared_counters(observations))

    assert any("line 202 " in text and "line 203 " in text for text in said)
    assert all("so both count; look at them" in text for text in said)
    assert not any(
        "line 203 " in text and "made twice" in text for text in sift(observations).doubts
    )


def test_pasted_arm_is_refused_among_many_rows_too() -> None:
    rows = honest(100, seed=1)
    pasted = [{**row, "rejection_sample_method": "standard"} for row in rows[:40]]
    with pytest.raises(ConfigError, match=r"\(and \d+ more such pairs\)"):
        list(shared_counters(read([*rows, *pasted])))


def test_honest_files_are_seldom_refused() -> None:
    refused = 0
    for seed in range(100):
        try:
            list(shared_counters(read(honest(24, seed))))
        except ConfigError:
            refused += 1
    assert refused <= 3  # 1 % or less is meant; 4 of 100 would come once in 50 such tests


def test_repeats_name_the_first_row_and_leave_it() -> None:
    rows = [counted(612, 851), counted(612, 851), counted(612, 851, boot="b"), counted(613, 851)]
    found = dict(repeats(read(rows)))

    assert list(found) == [1, 2]
    assert "line 3 repeats rows.csv line 2" in found[1]
    assert "line 4 and rows.csv line 2" in found[2]


def test_counts_by_position_make_chance_less_likely() -> None:
    rows = [
        counted(60, 84, boot="x"),
        counted(60, 84, boot="y", rejection_sample_method="standard"),
    ]
    assert len(list(shared_counters(read(rows)))) == 1

    for row in rows:
        row["accepted_per_pos"] = "40 20 12 6 3 2 1"
    with pytest.raises(ConfigError, match="the same counters"):
        list(shared_counters(read(rows)))


def test_many_copies_are_all_found() -> None:
    observations = read(honest(20, seed=3))
    many = [observations[index % len(observations)] for index in range(20_000)]
    assert len(dict(repeats(many))) == len(many) - len(observations)
