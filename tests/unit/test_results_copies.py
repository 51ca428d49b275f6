"""Equal counters: a copy where chance does not explain them, and named where it does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from result_rows import Row, as_raw, make_row, plain_row

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
    rows = [counted(612, 851), counted(612, 851), counted(612, 851, boot="b"), counted(640, 871)]
    found = repeats(read(rows))

    assert found.copies == {1, 2}
    assert "line 3 repeats rows.csv line 2" in found.said[0]
    assert "line 4 and rows.csv line 2" in found.said[1]


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
    assert len(repeats(many).copies) == len(many) - len(observations)


def timed(speeds: Sequence[float], *, arm: str, boots: Sequence[str] | None = None) -> list[Row]:
    """Return rows of tokens / s alone."""
    none = dict.fromkeys(("boot", "tokens", "seconds", "drafts", "draft_tokens", "accepted"), "")
    names = [""] * len(speeds) if boots is None else boots
    return [
        make_row(**{**none, "boot": name}, rejection_sample_method=arm, tok_s=speed)
        for name, speed in zip(names, speeds, strict=True)
    ]


def two_arms(block: Sequence[float], standard: Sequence[float]) -> list[Row]:
    return [*timed(block, arm="block"), *timed(standard, arm="standard")]


@pytest.mark.parametrize(
    "rows",
    [two_arms([39.7, 39.1], [33.2, 33.6]), two_arms([39.712], [33.204])],
    ids=["one decimal", "three decimals"],
)
def test_block_of_speeds_that_is_there_three_times_counts_once(rows: list[Row]) -> None:
    found = sift(read([*rows, *rows, *rows]))

    assert [item.where for item in found.observations] == [
        f"rows.csv line {number}" for number in range(2, 2 + len(rows))
    ]
    copies = [text for text in found.doubts if "are equal in all that was measured" in text]
    more = 2 * len(rows) - 3
    assert len(copies) == 4
    assert copies[3].startswith(f"{more} more rows are equal" if more > 1 else "rows.csv line 7")
    assert f"line {2 + len(rows)} and rows.csv line 2 (" in copies[0]


def test_boots_of_other_names_with_equal_speeds_are_copies_in_any_order() -> None:
    names = ["a0", "b0", "c0", "a1", "b1", "c1"]
    rows = [
        *timed([39.712] * 3 + [39.154] * 3, arm="block", boots=names),
        *timed([33.204, 33.611] * 3, arm="standard", boots=sorted(names)),
    ]
    order = np.random.default_rng(3).permutation(len(rows))
    kept = sift(read([rows[index] for index in order])).observations

    assert sorted(item.tok_s for item in kept if item.tok_s) == [33.204, 33.611, 39.154, 39.712]


def test_coarse_speeds_of_boots_that_are_copied_one_by_one_count_once() -> None:
    names = [f"{copy}{number}" for number in range(2) for copy in "abc"]
    rows = [
        *timed([39.7] * 3 + [39.1] * 3, arm="block", boots=names),
        *timed([33.2] * 3 + [33.6] * 3, arm="standard", boots=names),
    ]
    kept = sift(read(rows)).observations
    assert sorted(item.tok_s for item in kept if item.tok_s) == [33.2, 33.6, 39.1, 39.7]


def test_rows_without_speculation_that_are_copied_count_once() -> None:
    rows = [plain_row(boot=f"{copy}{n}", seconds=246.31 + n) for copy in "abc" for n in range(2)]
    assert [item.boot for item in sift(read(rows)).observations] == ["a0", "a1"]


def test_equal_speeds_by_chance_all_count() -> None:
    rows = two_arms([39.7, 39.1, 39.7, 39.9], [39.7, 33.1, 33.5, 33.5])
    assert len(sift(read(rows)).observations) == len(rows)
    busy = [{**row, "streams": 8} for row in rows[:1]]
    assert len(sift(read([*rows, *busy])).observations) == len(rows) + 1


def test_honest_speeds_are_seldom_taken_for_copies() -> None:
    lost = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        drawn = [np.round(speed * rng.lognormal(0, 0.01, 6), 1).tolist() for speed in (39, 33)]
        lost += bool(repeats(read(two_arms(*drawn))).copies)
    assert lost <= 5  # 1 % or less is meant; 6 of 200 would come once in 60 such tests


def test_many_copies_of_speeds_are_all_found() -> None:
    observations = read(timed([30 + 0.013 * n for n in range(40)], arm="block"))
    many = [observations[index % 40] for index in range(4000)]
    assert len(repeats(many).copies) == len(many) - 40


@pytest.mark.parametrize("digits", [0, 1, 2, 3])
@pytest.mark.parametrize("spread", [0.0005, 0.002, 0.05])
@pytest.mark.parametrize("num", [3, 8, 200])
def test_rows_that_were_measured_apart_are_no_copies(digits: int, spread: float, num: int) -> None:
    rng = np.random.default_rng([digits, num, round(1e4 * spread)])
    drawn = [np.round(speed * rng.lognormal(0, spread, num), digits) for speed in (178.5, 39.2)]
    assert not repeats(read(two_arms(*(speeds.tolist() for speeds in drawn)))).copies


@pytest.mark.parametrize("num", [3, 30])
def test_counters_of_a_fixed_number_of_tokens_are_no_copies(num: int) -> None:
    """Accepted tokens follow from the drafts, so pairs are far likelier than of two counts."""
    rng = np.random.default_rng(5)
    drafts = np.round(600 * rng.lognormal(0, 0.01, num)).astype(int).tolist()
    rows = [counted(n, 2048 - n, boot=str(boot)) for boot, n in enumerate([*drafts, drafts[0]])]
    assert not repeats(read(rows)).copies


def test_seconds_that_all_rows_have_in_common_change_nothing() -> None:
    rows = timed([39.7, 39.1, 39.7, 39.9, 39.3, 39.1], arm="block")
    copied = [*timed([39.712, 39.154, 39.712, 39.154], arm="block")]
    for given, num in ((rows, 0), (copied, 2)):
        for seconds in ("", 60, 60.067):
            found = repeats(read([{**row, "seconds": seconds} for row in given]))
            assert len(found.copies) == num


def test_many_rows_make_few_sentences_and_independent_ones_all_count() -> None:
    rng = np.random.default_rng(2)
    observations = read(timed(np.round(39 * rng.lognormal(0, 0.02, 3000), 1).tolist(), arm="block"))
    found = sift(observations)

    assert len(found.observations) == len(observations)
    assert "rows are equal to an earlier one of the same arm and cell" in found.doubts[0]
    assert sum(map(len, found.doubts)) < 2000
    twice = sift([*observations, *observations])
    assert len(twice.observations) == len(observations)
    assert sum(map(len, twice.doubts)) < 3000


def test_equal_counters_of_two_rules_at_temperature_0_are_named_and_count() -> None:
    rows = [
        counted(612 + n, 851 - n, boot=str(n), temperature=0, rejection_sample_method=rule)
        for n in range(3)
        for rule in ("block", "standard")
    ]
    found = sift(read(rows))
    assert len(found.observations) == 6
    assert "at temperature 0 rules of one depth accept the same tokens" in found.doubts[0]
    with pytest.raises(ConfigError, match="the same counters"):
        sift(read([{**row, "temperature": 0.7} for row in rows]))
