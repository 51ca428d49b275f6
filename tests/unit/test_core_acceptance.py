from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from core_samples import BASELINE, CELL, make_arm, make_block, make_boot
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.acceptance import (
    Accepted,
    Variance,
    accepted_blocks,
    add_variances,
    heterogeneity,
    log_length_variance,
    log_ratio_variance,
    pool_acceptance,
)
from orchestrator.core.types import Boot, Cell

ARM = make_arm(7)
NARROW = Cell(streams=1, temperature=0.7)
BROAD = Cell(streams=8, temperature=0.7)


def observations(
    rates: Sequence[float], *, drafts: Sequence[float] | float = 1000.0, first: int = 0
) -> list[Accepted]:
    """Return one block a boot; blocks of equal number had the same prompts."""
    each = [drafts] * len(rates) if isinstance(drafts, float) else list(drafts)
    return [
        Accepted(key=first + index, boot=str(index), cell=CELL, drafts=count, accepted=rate * count)
        for index, (rate, count) in enumerate(zip(rates, each, strict=True))
    ]


def boots_of(lengths: Sequence[dict[Cell, Sequence[float]]]) -> list[Boot]:
    """Return one boot for each mapping of cells to the lengths of their blocks."""
    boots = []
    for replicate, cells in enumerate(lengths):
        pairs = [(cell, length) for cell, own in cells.items() for length in own]
        blocks = [
            make_block(ARM, cell=cell, length=length, tokens=3000 * cell.streams, index=index)
            for index, (cell, length) in enumerate(pairs)
        ]
        boots.append(make_boot(ARM, blocks, replicate=replicate))
    return boots


def test_accepted_blocks_leave_out_what_is_invalid_or_drafted_nothing() -> None:
    idle = make_block(ARM, index=2)
    idle = replace(idle, counters=replace(idle.counters, num_drafts=0.0))
    silent = make_block(ARM, index=3)
    silent = replace(silent, counters=replace(silent.counters, num_accepted_tokens=None))
    boot = make_boot(
        ARM, [make_block(ARM, index=1), make_block(ARM, invalid_reason="x"), idle, silent]
    )
    (block,) = accepted_blocks(boot)
    assert block.rate == pytest.approx(2.0)
    # The second block of the cell keeps its number though the first is invalid: its prompts are
    # those of other boots' second blocks.
    assert block.key == (0, CELL, 1)


def test_pool_acceptance_without_speculation_is_none() -> None:
    assert pool_acceptance(BASELINE, [make_boot(BASELINE, [make_block(BASELINE)])], [CELL]) is None


def test_pool_acceptance_alike_streams_and_boots_are_one_group() -> None:
    boots = boots_of(
        [{NARROW: [3.0, 3.3], BROAD: [3.1, 3.0]}, {NARROW: [2.9, 3.2], BROAD: [3.15, 3.2]}]
    )
    pooled = pool_acceptance(ARM, boots, [NARROW, BROAD])
    assert pooled is not None
    assert set(pooled.group_of.values()) == {(0.7, "code")}
    assert not pooled.by_boot
    assert pooled.num_blocks == {(0.7, "code"): 8}
    assert pooled.length(NARROW) == pooled.length(BROAD) == pytest.approx(3.1, abs=0.05)


def test_pool_acceptance_streams_that_differ_are_groups_of_their_own() -> None:
    boots = boots_of(
        [{NARROW: [3.0, 3.02], BROAD: [4.0, 4.01]}, {NARROW: [2.99, 3.01], BROAD: [4.02, 3.99]}]
    )
    pooled = pool_acceptance(ARM, boots, [NARROW, BROAD])
    assert pooled is not None
    assert pooled.group_of == {NARROW: NARROW, BROAD: BROAD}
    assert pooled.length(NARROW) == pytest.approx(3.0, abs=0.02)


def test_pool_acceptance_streams_that_cannot_be_tested_are_not_pooled() -> None:
    pooled = pool_acceptance(ARM, boots_of([{NARROW: [3.0], BROAD: [3.0]}]), [NARROW, BROAD])
    assert pooled is not None
    assert pooled.group_of == {NARROW: NARROW, BROAD: BROAD}


def test_pool_acceptance_temperatures_are_never_pooled() -> None:
    other = replace(NARROW, temperature=1.0)
    boots = boots_of([{NARROW: [3.0, 3.1], other: [3.0, 3.1]}])
    pooled = pool_acceptance(ARM, boots, [NARROW, other])
    assert pooled is not None
    assert len(pooled.groups) == 2


def test_pool_acceptance_boots_that_differ_are_the_observations() -> None:
    boots = boots_of([{NARROW: [3.0, 3.01, 2.99]}, {NARROW: [4.0, 4.01, 3.99]}])
    pooled = pool_acceptance(ARM, boots, [NARROW])
    assert pooled is not None
    assert pooled.by_boot
    (units,) = pooled.groups.values()
    assert [unit.rate for unit in units] == pytest.approx([2.0, 3.0], abs=0.01)
    assert list(pooled.num_blocks.values()) == [6]


def test_heterogeneity_of_alike_groups_is_uniform() -> None:
    rng = np.random.default_rng(1)
    drafts = [1000.0, 1000.0, 8000.0, 8000.0]
    p_values = []
    for _ in range(800):
        rates = [2.0 + rng.normal(0, 5 / count**0.5) for count in drafts]
        blocks = observations(rates, drafts=drafts)
        p_values.append(heterogeneity(blocks, lambda block: block.drafts))
    shares = [np.mean([p < level for p in p_values if p is not None]) for level in (0.05, 0.5)]
    assert shares == pytest.approx([0.05, 0.5], abs=0.05)


def test_heterogeneity_of_exact_groups_is_certain() -> None:
    same = observations([2.0, 2.0, 2.0, 2.0])
    differ = observations([2.0, 3.0, 2.0, 3.0])
    assert heterogeneity(same, lambda block: int(block.boot) % 2) == 1.0
    assert heterogeneity(differ, lambda block: int(block.boot) % 2) == 0.0
    assert heterogeneity(same, lambda block: block.boot) is None
    assert heterogeneity(same, lambda _: 0) is None


def test_log_length_variance_is_that_of_a_mean_where_blocks_weigh_alike() -> None:
    rates = [1.9, 2.0, 2.1, 2.2]
    variance = log_length_variance(observations(rates))
    assert variance is not None
    mean = np.mean(rates)
    assert variance.value == pytest.approx(np.var(rates, ddof=1) / 4 / (1 + mean) ** 2)
    assert variance.degrees_of_freedom == 3
    assert log_length_variance(observations([2.0])) is None


@pytest.mark.parametrize("drafts", [[500.0] * 8, [500.0, 500.0, 1000.0, 1000.0, 8000.0, 8000.0]])
def test_log_length_variance_is_the_spread_of_the_length_over_studies(drafts: list[float]) -> None:
    rng = np.random.default_rng(2)
    values, variances = [], []
    for _ in range(2000):
        rates = [2.0 + rng.normal(0, 5 / count**0.5) for count in drafts]
        blocks = observations(rates, drafts=drafts)
        values.append(np.log1p(np.average(rates, weights=drafts)))
        variance = log_length_variance(blocks)
        assert variance is not None
        variances.append(variance.value)
    assert np.mean(variances) == pytest.approx(np.var(values), rel=0.1)


def test_log_ratio_variance_prompts_in_common_cancel() -> None:
    prompts = [0.0, 0.4, -0.3, 0.1]
    a = [2.0 + p + e for p, e in zip(prompts, (0.01, -0.01, 0.0, 0.01), strict=True)]
    b = [1.8 + p for p in prompts]
    paired = log_ratio_variance(observations(a), observations(b))
    apart = log_ratio_variance(observations(a), observations(b, first=10))
    assert paired is not None
    assert apart is not None
    assert paired.value < apart.value / 50
    assert paired.degrees_of_freedom == 3


def test_log_ratio_variance_without_spread_is_none() -> None:
    assert log_ratio_variance(observations([2.0]), observations([1.8])) is None
    assert log_ratio_variance(observations([2.0]), observations([1.8, 1.9])) is None


def test_log_ratio_variance_of_equal_observations_is_zero() -> None:
    variance = log_ratio_variance(observations([2.0, 2.0]), observations([1.8, 1.8]))
    assert variance == Variance(value=0.0, degrees_of_freedom=1)


def test_add_variances_follows_satterthwaite() -> None:
    parts = [Variance(value=1.0, degrees_of_freedom=3), Variance(value=1.0, degrees_of_freedom=3)]
    assert add_variances(parts) == Variance(value=2.0, degrees_of_freedom=6)
    parts = [Variance(value=1.0, degrees_of_freedom=3), Variance(value=0.0, degrees_of_freedom=0)]
    assert add_variances(parts) == Variance(value=1.0, degrees_of_freedom=3)
    assert add_variances([]) == Variance(value=0.0, degrees_of_freedom=0)


@given(
    rates=st.lists(st.floats(0.5, 6.0), min_size=2, max_size=6),
    factor=st.floats(0.1, 100.0),
)
def test_log_length_variance_depends_on_the_spread_and_not_on_the_counts(
    rates: list[float], factor: float
) -> None:
    once = log_length_variance(observations(rates, drafts=500.0))
    more = log_length_variance(observations(rates, drafts=500.0 * factor))
    assert once is not None
    assert more is not None
    assert more.value == pytest.approx(once.value, rel=1e-6, abs=1e-20)


@given(parts=st.lists(st.tuples(st.floats(1e-9, 1.0), st.integers(1, 30)), min_size=1, max_size=5))
def test_add_variances_has_the_degrees_of_its_worst_part_at_least(
    parts: list[tuple[float, int]],
) -> None:
    total = add_variances([Variance(value=v, degrees_of_freedom=d) for v, d in parts])
    degrees = [d for _, d in parts]
    assert min(degrees) <= total.degrees_of_freedom <= sum(degrees)
