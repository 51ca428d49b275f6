from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from core_samples import BASELINE, BOARD, make_arm, make_boots
from hypothesis import given
from hypothesis import strategies as st
from watch_scene import PROMISES, cell_promise

from orchestrator.core.cell_promises import CellPromises, make_cell_promises
from orchestrator.core.codec import from_plain, to_plain
from orchestrator.core.types import Arm, Cell

ARM = make_arm()
CELLS = (Cell(streams=1, temperature=0.7), Cell(streams=4, temperature=1.0))


def made(arm: Arm, *, modelled: bool = False) -> CellPromises:
    boots = make_boots(arm, [0.030, 0.031, 0.029], cells=CELLS)
    return make_cell_promises(
        arm,
        boots,
        weights={CELLS[0]: 0.25, CELLS[1]: 0.75},
        board=BOARD if modelled else None,
        confidence=0.99,
        step_tolerance=0.02,
    )


def test_promises_of_a_study_are_of_all_its_cells() -> None:
    found = made(ARM)

    assert [item.cell for item in found.cells] == list(CELLS)
    assert found.weights == {(1, 0.7): 0.25, (4, 1.0): 0.75}
    for item in found.cells:
        assert item.step_time is not None
        assert item.step_time.factor > 1.02, "one boot's interval, and the way through Serve"
    assert from_plain(CellPromises, json.loads(json.dumps(to_plain(found)))) == found


def test_modelled_times_and_no_speculation_promise_less() -> None:
    assert {item.step_time for item in made(ARM, modelled=True).cells} == {None}
    assert made(ARM, modelled=True).step_time_at([2.0]) is None
    assert made(ARM, modelled=True).most_streams is None
    assert {item.length for item in made(BASELINE).cells} == {None}
    assert made(BASELINE).length_of({(1, 0.7): 1.0}) is None


def test_interval_that_leaves_everything_open_promises_nothing() -> None:
    boots = make_boots(ARM, [0.001, 1e6], cells=CELLS)
    found = make_cell_promises(
        ARM, boots, weights=dict.fromkeys(CELLS, 0.5), board=None, confidence=0.99,
        step_tolerance=0.02,
    )  # fmt: skip

    assert {item.step_time for item in found.cells} == {None}
    assert {item.length for item in found.cells} != {None}


def test_length_of_a_mix_counts_steps() -> None:
    promises = replace(PROMISES, cells=(cell_promise(1, length=2.0), cell_promise(4, length=4.0)))

    found = promises.length_of({(1, 1.0): 0.5, (4, 1.0): 0.5})

    assert found is not None
    assert found.mean == pytest.approx(1 / (0.5 / 2 + 0.5 / 4))
    assert found.factor == pytest.approx(1.02)
    assert promises.length_of({(1, 1.0): 0.8, (2, 1.0): 0.2}) is None, "a fifth is not promised"


@given(st.floats(1, 16), st.floats(0.01, 0.1), st.floats(1, 3))
def test_step_time_lies_between_its_cells(streams: float, step_s: float, growth: float) -> None:
    cells = (cell_promise(2, step_s=step_s), cell_promise(8, step_s=step_s * growth))
    found = replace(PROMISES, cells=cells).step_time_at([streams])

    assert found is not None
    assert step_s * (1 - 1e-9) <= found[0].mean <= step_s * growth * (1 + 1e-9)
    if streams <= 2:
        assert found[0].mean == pytest.approx(step_s)


def test_arrivals_that_follow_a_clock_have_no_weight() -> None:
    opened = replace(cell_promise(8), cell=Cell(streams=8, temperature=1.0, request_rate=2.0))
    promises = replace(PROMISES, cells=(cell_promise(4), opened))

    assert promises.weights == {(4, 1.0): 1.0}
    assert promises.most_streams == 4
    assert replace(PROMISES, cells=(opened,)).weights == {}
    assert not math.isnan(sum(promises.weights.values()))
