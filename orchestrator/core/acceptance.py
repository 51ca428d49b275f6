"""Acceptance lengths of one arm and of two, from blocks: pooled where a test lets them be pooled.

Acceptance depends on the draft rule, the depth, the temperature and the text. It should depend
neither on how many streams run nor on the boot, and then all blocks of a temperature measure one
quantity. Whether they do is tested before they are pooled.

A block's accepted tokens a draft, ``accepted / drafts``, vary about the arm's by ``phi / drafts``:
twice the drafts are twice the prompts. ``phi`` is estimated from the blocks' spread and holds the
variance between prompts, so that no draft is treated as independent of its neighbour. All
statistics below are those of weighted samples with the drafts as weights (Cochran, Sampling
Techniques, 3rd ed., section 6.3: the variance of a ratio estimate from its clusters).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.core.distributions import f_tail
from orchestrator.core.types import Arm, Boot, Cell

HETEROGENEITY_LEVEL = 0.01
"""p-value below which groups of blocks are not pooled. Small, because it is asked for every arm."""
_SAME = 1e-12
"""Acceptance rates this near to each other are equal but for rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What one valid block accepted, or all blocks of one boot together."""

    key: Hashable
    """What observations of two arms with the same prompts and seeds have in common."""
    boot: str
    cell: Cell
    drafts: float
    accepted: float

    @property
    def rate(self) -> float:
        """Accepted tokens a draft."""
        return self.accepted / self.drafts


@dataclass(frozen=True, slots=True, kw_only=True)
class Variance:
    """A variance and how well it is known."""

    value: float
    degrees_of_freedom: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmAcceptance:
    """How one arm's acceptance is pooled."""

    groups: Mapping[Hashable, tuple[Accepted, ...]]
    """Observations by temperature and workload, or by cell where streams differ."""
    num_blocks: Mapping[Hashable, int]
    group_of: Mapping[Cell, Hashable]
    by_boot: bool
    """Whether boots differ, so that they and not blocks are the observations."""

    def length(self, cell: Cell) -> float:
        """Return the acceptance length that the cell is scored with."""
        return 1 + _rate(self.groups[self.group_of[cell]])


def pool_acceptance(arm: Arm, boots: Iterable[Boot], cells: Sequence[Cell]) -> ArmAcceptance | None:
    """Return the arm's acceptance, pooled over streams and boots where they do not differ.

    Args:
        arm: Boots of others are left out.
        boots: Each with all its blocks.
        cells: Blocks of others are left out.

    Returns:
        The acceptance; None for an arm without speculation, whose length is 1.
    """
    if arm.is_baseline:
        return None
    blocks = [found for boot in boots if boot.arm == arm for found in accepted_blocks(boot)]
    groups: dict[Hashable, list[Accepted]] = {}
    group_of: dict[Cell, Hashable] = {}
    for text in dict.fromkeys(_text(cell) for cell in cells):
        own = [block for block in blocks if block.cell in cells and _text(block.cell) == text]
        p_value = heterogeneity(own, lambda block: block.cell)
        one_cell = len({block.cell for block in own}) == 1
        is_pooled = one_cell or (p_value is not None and p_value >= HETEROGENEITY_LEVEL)
        for block in own:
            group_of[block.cell] = text if is_pooled else block.cell
            groups.setdefault(group_of[block.cell], []).append(block)
    p_values = [heterogeneity(own, lambda block: block.boot) for own in groups.values()]
    by_boot = any(p is not None and p < HETEROGENEITY_LEVEL for p in p_values)
    return ArmAcceptance(
        groups={g: tuple(_by_boot(own) if by_boot else own) for g, own in groups.items()},
        num_blocks={group: len(own) for group, own in groups.items()},
        group_of=group_of,
        by_boot=by_boot,
    )


def accepted_blocks(boot: Boot) -> list[Accepted]:
    """Return what the boot's valid blocks accepted, without those that drafted nothing."""
    repeats: dict[Cell, int] = {}
    found: list[Accepted] = []
    for block in sorted(boot.blocks, key=lambda item: item.index):
        repeat = repeats.get(block.cell, 0)
        repeats[block.cell] = repeat + 1
        drafts, accepted = block.counters.num_drafts, block.counters.num_accepted_tokens
        if block.is_valid and drafts and accepted is not None:
            found.append(
                Accepted(
                    key=(boot.replicate, block.cell, repeat),
                    boot=boot.trial_id,
                    cell=block.cell,
                    drafts=drafts,
                    accepted=accepted,
                )
            )
    return found


def heterogeneity(
    blocks: Sequence[Accepted], group: Callable[[Accepted], Hashable]
) -> float | None:
    """Return the p-value of "all groups of blocks have one acceptance".

    Weighted one-way analysis of variance: F = (between / (groups - 1)) / (within / (blocks -
    groups)), weights = drafts.

    Returns:
        0 to 1; None when there is one group, or no group has two blocks.
    """
    groups: dict[Hashable, list[Accepted]] = {}
    for block in blocks:
        groups.setdefault(group(block), []).append(block)
    spare = len(blocks) - len(groups)
    if len(groups) < 2 or spare < 1:
        return None
    rates, mean = {key: _rate(own) for key, own in groups.items()}, _rate(blocks)
    between = sum(_drafts(own) * (rates[key] - mean) ** 2 for key, own in groups.items())
    within = sum(b.drafts * (b.rate - rates[key]) ** 2 for key, own in groups.items() for b in own)
    if within <= _SAME**2 * _drafts(blocks):
        return 1.0 if between <= _SAME**2 * _drafts(blocks) else 0.0
    f = (between / (len(groups) - 1)) / (within / spare)
    return f_tail(f, len(groups) - 1, spare)


def log_length_variance(observations: Sequence[Accepted]) -> Variance | None:
    """Return the variance of log(1 + accepted / drafts) of the observations taken together.

    Returns:
        phi / drafts / length^2; None for one observation, which shows no spread.
    """
    if len(observations) < 2:
        return None
    rate, drafts = _rate(observations), _drafts(observations)
    squares = sum(item.drafts * (item.rate - rate) ** 2 for item in observations)
    phi = _or_zero(squares, drafts) / (len(observations) - 1)
    return Variance(value=phi / drafts / (1 + rate) ** 2, degrees_of_freedom=len(observations) - 1)


def log_ratio_variance(a: Sequence[Accepted], b: Sequence[Accepted]) -> Variance | None:
    """Return the variance of log(length of a / length of b), paired by prompt and seed.

    Matching observations had the same prompts in the same order, so a hard prompt lowers both.
    When every one of either side has a partner, the variance is that of their differences; else
    the variances of both sides add up.

    Returns:
        None when the observations show no spread.
    """
    partners = {item.key: item for item in b}
    pairs = [(item, partners[item.key]) for item in a if item.key in partners]
    if len(pairs) == len(a) == len(b):
        return _paired(pairs) if len(pairs) > 1 else None
    sides = [log_length_variance(side) for side in (a, b)]
    known = [side for side in sides if side is not None]
    return add_variances(known) if len(known) == len(sides) else None


def add_variances(parts: Sequence[Variance]) -> Variance:
    """Return the variance of a sum of independent terms.

    Degrees of freedom by Welch and Satterthwaite (Satterthwaite, Biometrics 2, 1946, 110), rounded
    down: (sum v)^2 / sum(v^2 / df).
    """
    counted = [part for part in parts if part.value > 0]
    total = sum(part.value for part in counted)
    if total <= 0:
        return Variance(value=0.0, degrees_of_freedom=0)
    # Shares first: squares of small variances would leave the range of a float.
    spread = sum((part.value / total) ** 2 / part.degrees_of_freedom for part in counted)
    return Variance(value=total, degrees_of_freedom=math.floor(1 / spread + 1e-9))


def _paired(pairs: Sequence[tuple[Accepted, Accepted]]) -> Variance:
    lengths = (1 + _rate([p[0] for p in pairs]), 1 + _rate([p[1] for p in pairs]))
    differences = np.array([x.rate / lengths[0] - y.rate / lengths[1] for x, y in pairs])
    weights = np.array([x.drafts * y.drafts / (x.drafts + y.drafts) for x, y in pairs])
    total = float(np.sum(weights))
    mean = float(np.average(differences, weights=weights))
    squares = _or_zero(float(np.sum(weights * (differences - mean) ** 2)), total)
    return Variance(value=squares / (len(pairs) - 1) / total, degrees_of_freedom=len(pairs) - 1)


def _by_boot(blocks: Sequence[Accepted]) -> list[Accepted]:
    """Return one observation a boot: its blocks' counts added."""
    boots: dict[str, list[Accepted]] = {}
    for block in blocks:
        boots.setdefault(block.boot, []).append(block)
    return [
        Accepted(
            key=frozenset(block.key for block in own),
            boot=boot,
            cell=own[0].cell,
            drafts=_drafts(own),
            accepted=sum(block.accepted for block in own),
        )
        for boot, own in boots.items()
    ]


def _text(cell: Cell) -> Hashable:
    return (cell.temperature, cell.workload)


def _or_zero(squares: float, weight: float) -> float:
    """Return the sum of squares, or 0 where it is rounding only."""
    return 0.0 if squares <= weight * _SAME**2 else squares


def _drafts(blocks: Iterable[Accepted]) -> float:
    return sum(block.drafts for block in blocks)


def _rate(blocks: Sequence[Accepted]) -> float:
    return sum(block.accepted for block in blocks) / _drafts(blocks)
