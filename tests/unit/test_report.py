from __future__ import annotations

from dataclasses import replace

import pytest
from core_samples import BASELINE, BOARD, CELL, WIDE_CELL, make_arm, make_boot, make_boots

from orchestrator.core.forecast import Forecast, ForecastRow
from orchestrator.core.premises import Premises
from orchestrator.core.promotion import GateSettings
from orchestrator.core.proof_gates import NO_PROOF, ProofDemands
from orchestrator.core.race_state import RaceSettings
from orchestrator.core.summary import summarise
from orchestrator.core.types import Arm, BoardModel, Boot, BootStatus, Cell
from orchestrator.core.verdict import Verdict, decide
from orchestrator.report import (
    WIDTH,
    format_forecast,
    format_plan,
    format_results_table,
    format_verdict,
    verdict_markdown,
)

BLOCK7 = make_arm(7)
BLOCK5 = make_arm(5)
ARMS = (BASELINE, BLOCK5, BLOCK7)
WEIGHTS = {CELL: 0.8, WIDE_CELL: 0.2}
RACE = RaceSettings(max_boots=64, seed=1)


def study_boots() -> list[Boot]:
    cells = (CELL, WIDE_CELL)
    return [
        *make_boots(BASELINE, [0.081, 0.082, 0.083], cells=cells),
        *make_boots(BLOCK7, [0.0325, 0.0331, 0.0337], cells=cells, kv_cache_tokens=319_232),
        make_boot(BLOCK5, [], status=BootStatus.FAILED, reason="died", without_facts=True),
    ]


def study_verdict(*, incumbent: Arm | None = BASELINE, floor: int | None = None) -> Verdict:
    return decide(
        ARMS,
        boots=study_boots(),
        weights=WEIGHTS,
        board=None,
        incumbent=incumbent,
        settings=GateSettings(min_kv_cache_tokens=floor),
        confidence=0.95,
        premises=Premises(
            engine_build="0.32.0",
            engine_args_digest="a",
            target_digest="b",
            draft_digest=None,
            node_kind="cpu",
            workload_digest="c",
            sampling={"top_p": 1.0},
            step_time="measured",
            board_model=None,
            specpilot_version="0.1.0",
        ),
    )


@pytest.mark.parametrize("board", [None, BOARD])
def test_results_table_shows_what_is_known_within_its_width(board: BoardModel | None) -> None:
    rows = summarise(ARMS, boots=study_boots(), weights=WEIGHTS, board=board)
    lines = format_results_table(rows, board=board)
    text = "\n".join(lines)
    assert all(len(line) <= WIDTH and line.isascii() for line in lines)
    assert ("measured ms/token" in text) is (board is None)
    assert ("MODELLED by gb10_model" in text) is (board is not None)
    assert "accepted T0.7" in text
    assert "c4_t1" in text
    assert "319,232" in text
    failed = next(line for line in lines if line.startswith(BLOCK5.label))
    assert failed.split() == [BLOCK5.label, "failed", "0/1", "-", "-", "-", "-", "-"]
    if board is None:
        ours = next(line for line in lines if line.startswith(BLOCK7.label))
        assert ours.split()[1:6] == ["ok", "3/3", "33.1", "3.01", "3.01"]


def test_results_table_before_the_first_boot_has_rows_and_no_speeds() -> None:
    rows = summarise(ARMS, boots=[], weights=WEIGHTS, board=None)
    lines = format_results_table(rows, board=None)
    assert sum("waiting" in line for line in lines) == 3
    assert not any("output tokens/s" in line for line in lines)


def test_results_table_many_cells_wrap_into_several_tables() -> None:
    cells = [Cell(streams=s, temperature=t) for s in (1, 2, 4, 8, 16) for t in (0.7, 1.0)]
    boots = make_boots(BLOCK7, [0.03], cells=cells)
    rows = summarise(ARMS, boots=boots, weights=dict.fromkeys(cells, 0.1), board=None)
    lines = format_results_table(rows, board=None)
    assert all(len(line) <= WIDTH for line in lines)
    assert sum(line.startswith("arm ") for line in lines) == 3


def test_plan_says_arms_boots_cells_and_time() -> None:
    lines = format_plan(
        ARMS,
        weights=WEIGHTS,
        board=BOARD,
        incumbent=None,
        settings=RACE,
        seconds_per_boot=1200,
        proof=ProofDemands(),
    )
    text = " ".join(" ".join(lines).split())
    assert all(len(line) <= WIDTH for line in lines)
    for words in (
        "3 arms on vLLM 0.32.0: no-speculation, probabilistic+block-5",
        "2 cells with their share of the traffic: c1_t0.7 80%, c4_t1 20%",
        "MODELLED by gb10_model",
        "at most 64 boots: every arm once",
        "gain less than 0.50% on average",
        "2 to 6 fresh boots of the winner, which is compared with the reference no-speculation",
        "usually about 12 boots, 4.0 h on one node (20 min a boot",
        "a boot of no speculation and one of the winner, for each engine build and beyond these, "
        "to show that the output "
        "follows the target's distribution (reported) and that answers are as the control's",
        "the boots of the proof, one after the other, come on top",
    ):
        assert words in text


def test_plan_names_hours_and_nodes_share_the_time() -> None:
    lines = format_plan(
        ARMS,
        weights=WEIGHTS,
        board=None,
        incumbent=None,
        settings=replace(RACE, max_hours=2.5),
        seconds_per_boot=1200,
        num_nodes=2,
        proof=ProofDemands(),
    )
    text = " ".join(" ".join(lines).split())
    for words in (
        "at most 64 boots and 2.5 h: every arm once",
        "usually about 12 boots, 2.0 h on 2 nodes",
    ):
        assert words in text


def test_plan_without_times_or_reference_leaves_them_out() -> None:
    lines = format_plan(
        (BLOCK7,), weights=WEIGHTS, board=None, incumbent=None, settings=RACE, proof=NO_PROOF
    )
    text = " ".join(lines)
    assert "step times: measured" in text
    assert "reference" not in text
    assert "on one node" not in text
    assert "nothing is asked of the output" in text
    short = format_plan(
        ARMS,
        weights=WEIGHTS,
        board=None,
        incumbent=BLOCK5,
        settings=RACE,
        seconds_per_boot=10,
        proof=NO_PROOF,
    )
    assert "usually about 12 boots, 2 min on one node" in " ".join(" ".join(short).split())
    assert "the incumbent probabilistic+block-5" in " ".join(" ".join(short).split())


def test_forecast_is_a_table_with_its_assumption() -> None:
    rows = tuple(
        ForecastRow(num_nodes=number, boots=25.5, hours=8.0 / number, hours_9_of_10=9.04 / number)
        for number in (1, 2)
    )
    lines = format_forecast(
        Forecast(
            rows=rows,
            num_studies=96,
            best=0.5,
            near=0.95,
            loss=0.004,
            tolerance=0.01,
            cut_at_boots=60,
            assumption="drafts as in an article",
        )
    )
    text = " ".join(" ".join(lines).split())
    assert all(len(line) <= WIDTH for line in lines)
    assert lines[2].split() == ["1", "25.5", "8.0", "h", "9.0", "h"]
    for words in (
        "of 96 simulated studies 95% choose the best arm or one within 1.0% of it",
        "50% the best itself",
        "0.4% slower than the best on average; simulated studies end after 60 boots",
        "ASSUMED: drafts as in an article",
    ):
        assert words in text


def test_forecast_of_a_study_that_is_too_large_says_so() -> None:
    assert "too large to be simulated" in " ".join(format_forecast(None))


def test_verdict_lines_hold_kind_figures_and_every_gate() -> None:
    lines = format_verdict(study_verdict())
    assert lines[0] == "verdict: PROMOTE probabilistic+block-7"
    assert all(len(line) <= WIDTH and line.isascii() for line in lines)
    text = "\n".join(lines)
    assert "2.48" in text
    assert "probabilistic+block-7 *" in text
    for gate in ("better", "cells", "kv", "ttft", "in_force", "valid", "lossless", "canaries"):
        assert f"\n{gate} " in text
    assert "lossless      not shown  not tested" in text


def test_verdict_lines_tell_a_winner_that_fails_a_gate() -> None:
    lines = format_verdict(study_verdict(floor=400_000))
    assert lines[0] == "verdict: KEEP: probabilistic+block-7 is faster and does not pass the gates"
    assert any(line.startswith("kv            FAILED") for line in lines)


def test_verdict_lines_mark_a_required_unknown() -> None:
    verdict = study_verdict()
    unknown = replace(verdict.gates[0], passed=None)
    lines = format_verdict(replace(verdict, gates=(unknown,)))
    assert any(line.startswith("better        NOT SHOWN") for line in lines)


def test_verdict_lines_without_winner_or_gates_are_short() -> None:
    kept = format_verdict(study_verdict(incumbent=BLOCK7))
    assert kept[0] == "verdict: KEEP probabilistic+block-7"
    none = format_verdict(study_verdict(incumbent=BLOCK5))
    assert none[0] == "verdict: NO RESULT"


def test_verdict_markdown_has_tables_gates_and_premises() -> None:
    text = verdict_markdown(study_verdict())
    assert text.startswith("# Verdict: PROMOTE probabilistic+block-7\n")
    assert "| arm | ms/token | times as fast |" in text
    assert "## Gates" in text
    assert "- engine_build: 0.32.0" in text
    bare = verdict_markdown(replace(study_verdict(incumbent=BLOCK7), premises=None))
    assert "## Gates" not in bare
    assert "## Premises" not in bare
