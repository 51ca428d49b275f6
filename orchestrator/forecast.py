"""What a study will probably take and find, from simulated studies: before anything is booted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from orchestrator.core.build_race import build_races
from orchestrator.core.builds import by_build
from orchestrator.core.forecast import Forecast, ForecastRow
from orchestrator.core.race_state import RaceQuestion, RaceSettings
from orchestrator.core.types import Arm, BoardModel, Cell
from orchestrator.fakes.simulate.board import Spread, lognormal, rng_of
from orchestrator.fakes.simulate.study import SimulatedRace, simulate_race
from orchestrator.fakes.simulate.window import LoadShape
from orchestrator.fakes.simulate.world import World
from orchestrator.fakes.simulate.worlds import ARTICLE_BOARD

NODES = (1, 2, 4, 8)
BOOT_CV = 0.02
"""Spread of the step time between boots, published for one GB10 with autotune off."""
ARM_CV = 0.03
"""How far an arm's step time may lie from what the board's formula says. Assumed."""
COLDEST = 0.1
"""Lowest temperature of the simulated draft; greedy sampling counts as this."""
MOST_BLOCKS, MOST_STUDIES, FEWEST_STUDIES = 96 * 170, 96, 24
"""96 studies of 17 arms and 10 cells take about 12 s; larger spaces get fewer."""
BUDGET_MS = 45_000.0
"""Of a core for all studies, if each makes all the boots that it may; most end far earlier."""
BOOTS_PER_ARM, FEW_BOOTS = 3, 60
"""Most boots of a simulated study: a race that wants more is told as one that takes longer."""
PREFILL_S, FAST_STEP_S, USUAL_TOKEN_S = 0.15, 0.01, 0.05
"""Of an answer: until its first token, a token of the fastest arm, and of an arm that is usual."""
RAMP_TURNS = 12
"""Answers of a stream that are drawn beyond those of the window."""
MOST_TURNS, MOST_REPEATS = 64, 4
"""Answers of a stream in a simulated window, about, and windows of a cell: beyond these a longer
block only takes longer, since boots spread more than it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How long a boot and its blocks take."""

    boot_s: float
    block_s: float
    blocks_per_cell: int
    max_tokens: int


def forecast(question: RaceQuestion, settings: RaceSettings, times: Times) -> Forecast | None:
    """Simulate studies on 1, 2, 4 and 8 boards; the same every time, and within about a minute.

    The races of several engine builds are simulated one by one, and their boots and hours add up. A
    study is as right as the worst of its choices.

    Args:
        question: Arms, cells and the source of step times.
        settings: The race.
        times: Of a boot and its blocks.

    Returns:
        None where not even one study on each number of boards can be simulated in that time.
    """
    most_boots = max(FEW_BOOTS, BOOTS_PER_ARM * len(question.arms))
    may_be_cut = most_boots < settings.max_boots
    settings = replace(settings, max_boots=min(most_boots, settings.max_boots))
    per_row = _studies(question, settings, times) // len(NODES)
    if per_row < 1:
        return None
    builds = build_races(question, settings)
    rows: list[ForecastRow] = []
    longest = 0
    regrets: list[float] = []
    for row, num_nodes in enumerate(NODES):
        studies = []
        for seed in range(row * per_row, (row + 1) * per_row):
            worst, races = 0.0, []
            for number, build in enumerate(builds):
                own = seed + number * MOST_STUDIES
                world = _world(build.question, times, own)
                races.append(
                    simulate_race(
                        world, build.settings, nodes=num_nodes, seed=own, board=question.board
                    )
                )
                worst = max(worst, _regret(world, question.board, races[-1].chosen))
            studies.append(races)
            longest = max(longest, sum(race.num_boots for race in races))
            regrets.append(worst)
        rows.append(_row(num_nodes, studies))
    return Forecast(
        rows=tuple(rows),
        cut_at_boots=most_boots if may_be_cut and longest >= most_boots else None,
        num_studies=len(regrets),
        best=sum(regret <= 0 for regret in regrets) / len(regrets),
        near=sum(regret <= settings.tolerance for regret in regrets) / len(regrets),
        loss=_mean([regret for regret in regrets if math.isfinite(regret)]),
        tolerance=settings.tolerance,
        assumption=_assumption(question),
    )


def _studies(question: RaceQuestion, settings: RaceSettings, times: Times) -> int:
    """Return how many studies are simulated, by what each takes at most.

    The coefficients are ms of one core of 2023, rounded up.
    """
    num_arms, cells = len(question.arms), tuple(question.weights)
    shape = _shape(times)
    turns = MOST_TURNS if shape.window_s < times.block_s else shape.window_s / _least_s(times)
    sizes = (1 + cell.streams * (turns + RAMP_TURNS) / 2000 for cell in cells)
    boot_ms = 1 + 0.7 * shape.blocks_per_cell * sum(sizes)
    decision_ms = 0.15 * num_arms + 0.01 * settings.max_boots
    truth_ms = 0.02 * num_arms * len(cells)
    tables_ms = 25.0 * num_arms * len({cell.temperature for cell in cells})
    study_ms = settings.max_boots * (boot_ms + decision_ms) + truth_ms
    fits = int(max(0.0, BUDGET_MS - tables_ms) / study_ms)
    usual = max(FEWEST_STUDIES, MOST_BLOCKS // (num_arms * len(cells)))
    return min(MOST_STUDIES, usual, fits)


def _least_s(times: Times) -> float:
    """Return what an answer takes at least, about."""
    return PREFILL_S + (times.max_tokens - 1) * FAST_STEP_S


def _shape(times: Times) -> LoadShape:
    """Return the load as it is simulated."""
    return LoadShape(
        window_s=min(times.block_s, MOST_TURNS * _least_s(times)),
        max_tokens=times.max_tokens,
        blocks_per_cell=min(times.blocks_per_cell, MOST_REPEATS),
    )


def _unseen_s(times: Times, num_cells: int) -> float:
    """Return what a boot's blocks take beside what is simulated of them."""
    shape = _shape(times)
    longer_s = shape.blocks_per_cell * (times.block_s - shape.window_s)
    # A block begins and ends with about an answer of each stream.
    more = times.blocks_per_cell - shape.blocks_per_cell
    more_s = more * (times.block_s + 2 * (PREFILL_S + times.max_tokens * USUAL_TOKEN_S))
    return num_cells * (longer_s + more_s)


def _row(num_nodes: int, studies: list[list[SimulatedRace]]) -> ForecastRow:
    hours = sorted(sum(race.hours for race in races) for races in studies)
    return ForecastRow(
        num_nodes=num_nodes,
        boots=sum(race.num_boots for races in studies for race in races) / len(studies),
        hours=sum(hours) / len(hours),
        hours_9_of_10=hours[math.ceil(0.9 * len(hours)) - 1],
    )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _world(question: RaceQuestion, times: Times, seed: int) -> World:
    """Return the world of one study: the article's board and draft, each arm off by its own."""
    rng = rng_of(seed, "forecast")
    unseen_s = _unseen_s(times, len(question.weights))
    spread = Spread(boot_cv=BOOT_CV)
    steady = times.boot_s / (times.boot_s + unseen_s)
    return World(
        name="forecast",
        arms=question.arms,
        incumbent=question.incumbent,
        weights=_warm(question.weights),
        physics=ARTICLE_BOARD,
        spread=replace(
            spread,
            boot_time_s=times.boot_s + unseen_s,
            boot_time_cv=spread.boot_time_cv * steady,
        ),
        load=_shape(times),
        step_factors={arm: lognormal(rng, ARM_CV) for arm in question.arms},
    )


def _warm(weights: Mapping[Cell, float]) -> dict[Cell, float]:
    """Return the shares with the temperatures that the simulated draft knows."""
    shares: dict[Cell, float] = {}
    for cell, share in weights.items():
        warm = replace(cell, temperature=max(cell.temperature, COLDEST))
        shares[warm] = shares.get(warm, 0.0) + share
    return shares


def _regret(world: World, board: BoardModel | None, arm: Arm | None) -> float:
    """Return by how much an arm is slower than the best, as a share; infinite for no arm."""
    if arm is None:
        return math.inf
    truth = {item: _objective(world, board, item) for item in world.arms}
    return truth[arm] / min(truth.values()) - 1.0


def _objective(world: World, board: BoardModel | None, arm: Arm) -> float:
    if board is None:
        return world.true_objective(arm)
    depth = arm.num_speculative_tokens
    return sum(
        share * board.step_time_s(depth, cell.streams) / world.true_length(arm, cell.temperature)
        for cell, share in world.weights.items()
    )


def _assumption(question: RaceQuestion) -> str:
    draft = "drafts accepted as a published article on one GB10 has them"
    if len(by_build(question.arms)) > 1:
        draft = f"every build alike, {draft}"
    if question.board is not None:
        return f"{draft}; step times by {question.board.name}, which every boot has alike"
    return (
        f"{draft}, its step times (each arm's off by {ARM_CV:.0%}), boots spread by {BOOT_CV:.0%}, "
        "no failures"
    )
