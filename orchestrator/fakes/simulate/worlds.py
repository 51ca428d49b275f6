"""Worlds that studies are tried on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from orchestrator.core.types import Arm, Cell
from orchestrator.fakes.simulate.board import BoardPhysics, Spread
from orchestrator.fakes.simulate.world import World

ENGINE_BUILD = "0.32.0"
STREAMS = (1, 2, 4, 8, 16)
TEMPERATURES = (0.7, 1.0)
DEPTHS = (4, 5, 6, 7)
BASELINE = Arm(engine_build=ENGINE_BUILD)

ARTICLE_BOARD = BoardPhysics(
    verify_s_per_token=0.00115,
    draft_s=0.0145,
    rule_s_per_token={("greedy", "block"): 0.00029},
)
"""The board of the article: 82.0 ms a step without speculation. Two coefficients are 3 and 18 %
above those of ``conf/node/gb10_model.yaml``, which moves the rows at eight streams from the edge of
their bands inwards. Greedy drafts are accepted alike under both rejection rules, exactly, so the
article's loss of 11 % from greedy + standard to greedy + block at eight streams can only be time or
noise; ``rule_s_per_token`` makes it time. For probabilistic + block the article has no run beyond
one stream, and no cost is assumed."""


def speculating(draft: str, rejection: str, depth: int) -> Arm:
    """Return an arm of the simulated engine build."""
    return Arm(
        engine_build=ENGINE_BUILD,
        num_speculative_tokens=depth,
        draft_sample_method=draft,
        rejection_sample_method=rejection,
    )


def article_arms(depths: Iterable[int] = DEPTHS) -> tuple[Arm, ...]:
    """Return the article's arms: two draft rules x two rejection rules x depths."""
    depths = tuple(depths)
    return tuple(
        speculating(draft, rejection, depth)
        for draft in ("greedy", "probabilistic")
        for rejection in ("standard", "block")
        for depth in depths
    )


def uniform_weights(
    streams: Iterable[int] = STREAMS, temperatures: Iterable[float] = TEMPERATURES
) -> dict[Cell, float]:
    """Return equal shares of the traffic for all pairs of streams and temperature."""
    temperatures = tuple(temperatures)
    cells = [
        Cell(streams=number, temperature=temperature)
        for number in streams
        for temperature in temperatures
    ]
    return dict.fromkeys(cells, 1.0 / len(cells))


def article_world(boot_cv: float = 0.02) -> World:
    """Return the article's world: 16 arms and the baseline, five stream levels, two temperatures.

    Args:
        boot_cv: Spread of the step time between boots; published for this kind of board are about
            2 % with autotune off and 6 % with it on.
    """
    return World(
        name=f"article, boots spread by {boot_cv:.0%}",
        arms=(*article_arms(), BASELINE),
        incumbent=speculating("greedy", "standard", 5),
        weights=uniform_weights(),
        physics=ARTICLE_BOARD,
        spread=Spread(boot_cv=boot_cv),
    )


def null_world(boot_cv: float = 0.02) -> World:
    """Return a world in which 16 arms are equal: in step time, and in the law of what they accept.

    Whatever their depth they accept like greedy + standard at depth 4, so their blocks waver alike
    too. There is no baseline; the first arm serves.
    """
    arms = article_arms()
    first = arms[0]
    world = replace(article_world(boot_cv), name="null", arms=arms, incumbent=first)
    return with_step_times_of(replace(world, drafts_like=dict.fromkeys(arms, first)), first)


def with_step_times_of(world: World, like: Arm) -> World:
    """Return the world in which every arm's steps take as long as those of one arm, by streams.

    The board knows no depth then: tokens, rules and cliff are all taken out.
    """
    flat = replace(
        world.physics,
        base_s=world.physics.base_s + world.physics.draft_s,
        draft_s=0.0,
        draft_s_per_position=0.0,
        rule_s_per_token={},
        cliff=1.0,
        tokens_of=dict.fromkeys(world.arms, like.num_speculative_tokens),
    )
    return replace(world, physics=flat)


def with_objectives(world: World, targets: Mapping[Arm, float]) -> World:
    """Return the world in which the arms named have given true objectives, in seconds.

    Their step times are scaled in all cells alike; what they accept stays.
    """
    factors = dict(world.step_factors)
    for arm, target in targets.items():
        factors[arm] = _factor(world, arm, target)
    return replace(world, step_factors=factors)


def tie_world(boot_cv: float = 0.02) -> World:
    """Return the article's world in which its best arm and one of smaller depth are exactly equal.

    The tie rule takes the smaller depth.
    """
    world = article_world(boot_cv)
    best = world.best_arm()
    smaller = replace(best, num_speculative_tokens=best.num_speculative_tokens - 1)
    targets = {smaller: world.true_objective(best)}
    return replace(with_objectives(world, targets), name="tie")


def cliff_world(boot_cv: float = 0.02) -> World:
    """Return a world whose depths 4 to 8 run at 24, 25, 26, 30 and 12 tokens / s a stream.

    One pair of rules, one stream, one temperature: no search that goes uphill from one end, and
    none that stops when depth 5 or 6 gains little, is safe there.
    """
    arms = article_arms((4, 5, 6, 7, 8))[-5:]
    world = replace(
        article_world(boot_cv),
        name="cliff",
        arms=arms,
        incumbent=arms[1],
        weights=uniform_weights(streams=(1,), temperatures=(0.7,)),
    )
    speeds = (24.0, 25.0, 26.0, 30.0, 12.0)
    return with_objectives(
        world, {arm: 1.0 / speed for arm, speed in zip(arms, speeds, strict=True)}
    )


def interaction_world(boot_cv: float = 0.02) -> World:
    """Return a world in which each of two keys loses alone, both together win, and depth moves.

    Against greedy + standard, whose best depth is 5, block alone loses 6 % and probabilistic alone
    4 %; together they gain 9 %, and their best depth is 7.
    """
    world = article_world(boot_cv)
    base_s = world.true_objective(speculating("greedy", "standard", 5))
    by_rules = {
        ("greedy", "standard"): (0.97, 1.00, 0.98, 0.95),
        ("greedy", "block"): (0.92, 0.94, 0.93, 0.90),
        ("probabilistic", "standard"): (0.93, 0.96, 0.95, 0.92),
        ("probabilistic", "block"): (1.00, 1.03, 1.06, 1.09),
    }
    targets = {
        speculating(draft, rejection, depth): base_s / speed
        for (draft, rejection), speeds in by_rules.items()
        for depth, speed in zip(DEPTHS, speeds, strict=True)
    }
    return replace(with_objectives(world, targets), name="interaction")


def _factor(world: World, arm: Arm, target: float) -> float:
    """Solve for the step factor; the objective is linear in it."""
    alone = {**world.step_factors, arm: 1.0}
    twice = {**world.step_factors, arm: 2.0}
    once_s = replace(world, step_factors=alone).true_objective(arm)
    slope_s = replace(world, step_factors=twice).true_objective(arm) - once_s
    return 1.0 + (target - once_s) / slope_s
