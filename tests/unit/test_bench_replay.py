"""Published results of one GB10 before ``decide``: what they show and what they do not."""

from __future__ import annotations

import pytest

from infra.bench.verdict import replay
from orchestrator.results.boots import RunsAre

pytestmark = pytest.mark.skipif(
    not (replay.ARTICLE_CSV.exists() and replay.DEPTHS_CSV.exists()),
    reason="shared/data is not beside the repository",
)

BEST, SHALLOWER = "probabilistic+block-7", "probabilistic+block-5"


@pytest.mark.parametrize("runs_are", ["blocks", "boots"])
def test_article_best_against_next_cannot_be_told(runs_are: RunsAre) -> None:
    answer = replay.ask_article(
        reference=SHALLOWER, cells=["c1_t0.7"], runs_are=runs_are, arms=[BEST, SHALLOWER]
    )

    line = next(item for item in answer.cells if item.arm.label == BEST)
    assert line.runs == (39.7, 33.1, 31.5)
    assert answer.outcome == "cannot_tell"


def test_article_outlier_is_flagged_and_kept() -> None:
    sifted = replay.article()

    (flag,) = [text for text in sifted.doubts if "stands out" in text]
    assert "178.5 stands out against 161.8, 167.8, 160.9" in flag
    assert 178.5 in [item.tok_s for item in sifted.observations]


def test_article_means_do_not_count_beside_their_runs() -> None:
    sifted = replay.article()

    assert sum("is the mean of lines" in text for text in sifted.doubts) == 2
    assert not {34.8, 163.5} & {item.tok_s for item in sifted.observations}


@pytest.mark.parametrize("runs_are", ["blocks", "boots"])
@pytest.mark.parametrize("key", [replay.DRAFT_ALONE, replay.RULE_ALONE])
def test_article_neither_key_alone_is_promotable(key: str, runs_are: RunsAre) -> None:
    cells = dict(replay.ALONE)[key]
    for own in ([cell] for cell in cells):
        answer = replay.ask_article(
            reference=replay.PLAIN, cells=own, runs_are=runs_are, arms=[key, replay.PLAIN]
        )
        # A cell by itself may favour the key; where the article's claim rests it loses.
        assert answer.outcome != "winner" or own == ["c8_t0.7"]
    answer = replay.ask_article(
        reference=replay.PLAIN, cells=cells, runs_are=runs_are, arms=[key, replay.PLAIN]
    )
    assert answer.outcome in ("keep", "cannot_tell")


def test_article_has_no_acceptance_and_that_is_said() -> None:
    answer = replay.ask_article(reference=replay.PLAIN, cells=["c1_t0.7"])

    assert all(line.length is None and line.given_lengths == () for line in answer.cells)
    assert any("acceptance is not known" in text for text in answer.limits)


def test_grid_seven_against_six_cannot_tell_and_against_eight_is_clear() -> None:
    assert not replay.is_clear(replay.grid_pair(7, 6))
    assert replay.is_clear(replay.grid_pair(7, 8))
    assert replay.ask_grid(6).outcome == "cannot_tell"
    answer = replay.ask_grid(8)
    assert answer.outcome == "winner"
    assert answer.winner is not None
    assert answer.winner.num_speculative_tokens == 7


def test_grid_null_factor_is_no_difference() -> None:
    pairs = replay.null_factor()

    assert len(pairs) == 6
    assert not any(contrast.excludes_zero for _, _, contrast in pairs)


def test_report_says_all_of_it() -> None:
    text = "\n".join(replay.report())

    assert "depth 7 against 6: cannot tell" in text
    assert "depth 7 against 8: clear" in text
    assert "max_num_seqs, which cannot matter: no difference" in text
    assert "an order and not a test" in text
