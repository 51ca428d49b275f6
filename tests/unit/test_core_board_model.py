"""The coefficients of conf/node/gb10_model.yaml, computed again from the published figures."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import yaml  # type: ignore[import-untyped]  # no stubs among the dependencies

from orchestrator.core.types import BoardModel

ROOT = Path(__file__).parents[2]
ARTICLE_CSV = ROOT.parent / "shared/data/gb10_article_runs.csv"

PLAIN_TOK_S = 12.2
ASSUMED_LENGTH = 2.66
DEPTH = 5
GREEDY5_TOK_S = {1: 28.5, 2: 47.5, 4: 91.4, 8: 137.4, 16: 216.1}


def load_model() -> BoardModel:
    text = (ROOT / "conf/node/gb10_model.yaml").read_text(encoding="utf-8")
    fields = yaml.safe_load(text)["node"]["board_model"]
    fields["streams"], fields["depths"] = tuple(fields["streams"]), tuple(fields["depths"])
    return BoardModel(**fields)


def test_board_model_coefficients_follow_from_the_published_figures() -> None:
    streams = np.array(list(GREEDY5_TOK_S))
    steps_s = streams * ASSUMED_LENGTH / np.array(list(GREEDY5_TOK_S.values()))
    assert steps_s * 1000 == pytest.approx([93.3, 112.0, 116.4, 154.9, 196.9], abs=0.1)
    verify_s, base_and_draft_s = np.polyfit(streams * (1 + DEPTH), steps_s, 1)
    base_s = 1 / PLAIN_TOK_S - verify_s
    model = load_model()
    assert model.verify_s_per_token == pytest.approx(verify_s, abs=5e-7)
    assert model.base_s == pytest.approx(base_s, abs=5e-6)
    assert model.draft_s == pytest.approx(base_and_draft_s - base_s, abs=5e-6)
    assert (model.streams, model.depths) == ((1, 16), (0, DEPTH))


def test_board_model_gives_the_published_step_without_speculation() -> None:
    assert load_model().step_time_s(0, 1) == pytest.approx(0.082, abs=1e-4)


def test_board_model_implies_a_plausible_length_for_the_articles_best_arm() -> None:
    length = 34.8 * load_model().step_time_s(7, 1)
    assert 3.2 < length < 3.7


@pytest.mark.skipif(not ARTICLE_CSV.exists(), reason="shared/data is not beside the repository")
def test_board_model_figures_are_those_of_the_published_table() -> None:
    lines = [line for line in ARTICLE_CSV.read_text().splitlines() if not line.startswith("#")]
    published = {
        int(row["concurrency"]): float(row["tok_s"])
        for row in csv.DictReader(lines)
        if row["config"] == "greedy5" and row["T"] == "0.7"
    }
    assert published == GREEDY5_TOK_S
