from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest
from core_samples import BASELINE, BOARD, CELL, make_arm, make_block, make_boot, make_boots

from orchestrator.core.promotion import GateSettings
from orchestrator.core.types import Arm, BoardModel, Boot
from orchestrator.core.verdict import Verdict, decide

BLOCK7 = make_arm(7)
BLOCK5 = make_arm(5)
GREEDY5 = make_arm(5, draft="greedy", rejection="standard")
ARMS = (BASELINE, GREEDY5, BLOCK5, BLOCK7)


def verdict_of(
    boots: list[Boot],
    *,
    incumbent: Arm = GREEDY5,
    board: BoardModel | None = None,
    chosen_by: Collection[str] | None = None,
) -> Verdict:
    return decide(
        ARMS,
        boots=boots,
        weights={CELL: 1.0},
        board=board,
        incumbent=incumbent,
        settings=GateSettings(),
        confidence=0.95,
        chosen_by=chosen_by,
    )


def wavering(arm: Arm, *, num_boots: int, first: int = 0, more: float = 0.0) -> list[Boot]:
    """Return boots of nearly equal step time whose blocks accept very differently."""
    lengths = [(3.0, 3.4, 2.7, 3.1), (3.1, 2.8, 3.5, 3.0)]
    return [
        make_boot(
            arm,
            [
                make_block(
                    arm,
                    length=length + more,
                    seconds_per_token=(0.1 + index / 5000) / (length + more),
                    index=number,
                )
                for number, length in enumerate(lengths[index])
            ],
            replicate=first + index,
        )
        for index in range(num_boots)
    ]


def test_decide_modelled_needs_no_second_boot_for_an_interval_and_fresh_ones_to_promote() -> None:
    boots = [*wavering(GREEDY5, num_boots=1), *wavering(BLOCK5, num_boots=1, more=1.0)]
    verdict = verdict_of(boots, board=BOARD)
    contrast = verdict.ranking[0].contrast
    assert contrast is not None
    assert contrast.excludes_zero is True
    assert (contrast.num_boots, contrast.boot_share) == ((1, 1), 0.0)
    assert verdict.kind == "keep"
    (better, *_) = verdict.gates
    assert (better.name, better.passed, better.blocks) == ("better", None, True)
    assert "0 and 1 fresh boots, 2 are needed" in better.reason
    assert any("from blocks they need no second boot" in s for s in verdict.sentences)


@pytest.mark.parametrize(
    ("board", "words"),
    [
        (None, "longer blocks or more of them would narrow it most"),
        (BOARD, "The interval holds acceptance alone"),
    ],
)
def test_decide_undecided_for_want_of_acceptance_asks_for_longer_blocks(
    board: BoardModel | None, words: str
) -> None:
    boots = [
        *wavering(GREEDY5, num_boots=2),
        *wavering(BLOCK5, num_boots=2, first=7, more=0.01),
    ]
    verdict = verdict_of(boots, board=board)
    assert verdict.kind == "no_difference"
    assert any(words in sentence for sentence in verdict.sentences)


def test_decide_undecided_for_want_of_boots_asks_for_more() -> None:
    boots = [
        *make_boots(GREEDY5, [0.034, 0.036, 0.035]),
        *make_boots(BLOCK7, [0.033, 0.037, 0.034]),
    ]
    assert any("more boots would narrow it most" in s for s in verdict_of(boots).sentences)


def test_decide_undecided_by_whole_boots_says_nothing_of_what_would_narrow_it() -> None:
    boots = [*make_boots(GREEDY5, [0.034, 0.036, 0.035]), *make_boots(BLOCK7, [0.0345])]
    verdict = verdict_of(boots)
    assert not any("narrow" in sentence for sentence in verdict.sentences)


def test_decide_counts_as_fresh_what_did_not_choose() -> None:
    boots = [
        *make_boots(GREEDY5, [0.05, 0.0502, 0.0501]),
        *make_boots(BLOCK7, [0.0331, 0.0332, 0.0333, 0.0334]),
    ]
    by_default, all_fresh = verdict_of(boots), verdict_of(boots, chosen_by=[])
    assert "3 and 3 boots" in by_default.gates[0].reason
    assert "4 and 3 boots" in all_fresh.gates[0].reason
    chosen = [boot.trial_id for boot in boots[:6]]
    late = verdict_of(boots, chosen_by=chosen)
    assert "1 and 3 fresh boots, 2 are needed" in late.gates[0].reason
    assert (late.kind, late.winner) == ("keep", BLOCK7)


def test_decide_counts_copies_as_one_boot_and_says_so() -> None:
    boots = make_boots(BLOCK7, [0.0325, 0.0331, 0.0337])
    copies = [replace(boots[0], replicate=number, trial_id=f"copy-{number}") for number in (3, 4)]
    verdict = verdict_of([*make_boots(GREEDY5, [0.05, 0.051]), *boots, *copies])
    contrast = verdict.ranking[0].contrast
    assert contrast is not None
    assert contrast.num_boots == (3, 2)
    assert (
        f"2 of the boots of {BLOCK7.label} repeat others' counters: they do not count."
        in verdict.sentences
    )


def test_decide_flags_an_odd_boot_with_its_numbers_and_keeps_it() -> None:
    odd = make_boots(BLOCK7, [0.0331, 0.0330, 0.0332, 0.0390], length=3.1)
    boots = [
        *make_boots(BASELINE, [0.081, 0.0815, 0.082]),
        *odd,
        *make_boots(GREEDY5, [0.05, 0.0502, 0.0501]),
    ]
    verdict = verdict_of(boots)
    (flagged,) = verdict.outliers
    assert (flagged.arm, flagged.boot) == (BLOCK7, odd[3].trial_id)
    assert any(
        s.startswith(f"Boot {flagged.boot} of {BLOCK7.label} is odd: 39.")
        for s in verdict.sentences
    )
    first = verdict.ranking[0]
    assert first.summary.arm == BLOCK7
    assert first.contrast is not None
    assert first.contrast.num_boots == (4, 3)
    plain = verdict.to_dict()["outliers"]
    assert isinstance(plain, list)
    assert plain[0]["boot"] == flagged.boot
    assert plain[0]["p_value"] < 0.1
    assert plain[0]["num_boots"] == 10
