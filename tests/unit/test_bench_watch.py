"""The simulated looks of ``make bench-watch``, and how its tables are written."""

from __future__ import annotations

import numpy as np
import pytest

from infra.bench import watch
from infra.bench.watch import MONTH, WORLDS, Production


def test_same_seed_gives_the_same_looks() -> None:
    first, second = (Production(WORLDS[0], 3, [1, 2]) for _ in range(2))

    for minute in range(20):
        for a, b in zip(first.look(minute), second.look(minute), strict=True):
            left, right = (getattr(x, "observed", x) for x in (a, b))
            assert (left == right).all()


def test_looks_have_gaps_and_keep_to_their_level() -> None:
    production = Production(WORLDS[2], 40, [1])
    seen = [production.look(minute)[1] for minute in range(600, 900)]

    drafts = np.array([looks.drafts for looks in seen])
    assert 0.01 < (drafts == 0).mean() < 0.2, "missing looks, and never a level of 0"
    observed = np.array([looks.observed for looks in seen]).sum(axis=0)
    level = np.log(observed / drafts.sum(axis=0))
    # At either end of the interval, by a rhythm of 1 %.
    assert level[1::2].mean() == pytest.approx(0.03, abs=0.02)
    assert level[::2].mean() == pytest.approx(-0.03, abs=0.02)


def test_every_token_has_a_cell() -> None:
    _, _, tokens, requests = Production(WORLDS[0], 5, [1]).look(720)

    assert tokens.sum(axis=1) == pytest.approx(requests * 1200.0)


def test_tables_state_bounds_and_what_was_not_found() -> None:
    assert MONTH == 43_200
    assert watch._rate(0, 400) == "0.0000 (0.0075)"
    assert watch._rate(108, 400).startswith("0.2700 (0.3")
    hours = watch._delays(np.array([1.0, 2.0, 3.0, np.inf]), "h")
    assert hours.split()[0] == "2.0"
    assert hours.endswith("75.0%")
    assert "later" in hours
