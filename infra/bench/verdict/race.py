"""How often the race and its verdict are right, and with how many boots, beside other rules.

The same seeds go through all rules: a boot's luck follows from the seed, the arm and the number of
the boot, and its prompts from the seed and that number.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from infra.bench.verdict.coverage import wilson
from infra.bench.verdict.rules import (
    Bench,
    Rule,
    coordinate_descent,
    full_grid,
    median_mad,
    separated,
    three_runs,
    tpe,
)
from orchestrator.core.comparison import measured
from orchestrator.core.types import Arm
from orchestrator.core.verdict import promotable
from orchestrator.fakes.simulate.study import (
    DEFAULT_SETTINGS,
    SimulatedRace,
    simulate_race,
    simulate_study,
)
from orchestrator.fakes.simulate.world import World
from orchestrator.fakes.simulate.worlds import (
    article_world,
    cliff_world,
    interaction_world,
    null_world,
    tie_world,
)

ARTICLE = "article, boots spread by 2 %"
WORLDS: Mapping[str, World] = {
    ARTICLE: article_world(0.02),
    "all arms equal, boots spread by 2 %": null_world(0.02),
    "article, boots spread by 6 %": article_world(0.06),
    "all arms equal, boots spread by 6 %": null_world(0.06),
}
NULLS = frozenset(name for name in WORLDS if name.startswith("all arms equal"))
MORE: Mapping[str, World] = {
    "cliff": cliff_world(),
    "interaction": interaction_world(),
    "tie": tie_world(),
}
"""Worlds that the other rules are not tried in."""
NUM_NODES = 8
NODES = (1, 2, 4, 8)
NEAR = 0.01
RACE = "specpilot, the race's choice"
VERDICT = "specpilot, the verdict's winner"
OPTUNA = "optuna==5.0.0"
_OPTUNA_VENV = Path(__file__).resolve().parents[3] / ".bench" / "optuna"


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What one rule named in one study."""

    rule: str
    arm: Arm | None
    """None: it cannot tell."""
    boots: int
    hours: float = 0.0
    stop: str = ""
    promoted: bool | None = None
    """None for a rule that has no gate: it promotes whatever it names."""


def report(*, num_studies: int, num_processes: int) -> Iterator[str]:
    """Yield the tables."""
    optuna = _ensure_optuna()
    yield f"{num_studies} studies each, seeds 0 to {num_studies - 1}; intervals are Wilson's, 95 %"
    yield "" if optuna else f"{OPTUNA} cannot be installed here; its row is missing"
    with ProcessPoolExecutor(num_processes) as pool:
        for name, world in {**WORLDS, **MORE}.items():
            others = name in WORLDS
            study = partial(_study, world, others=others, with_optuna=optuna and others)
            found = list(pool.map(study, range(num_studies), chunksize=5))
            lines = _null_lines if name in NULLS else _lines
            yield from lines(name, world, found)
        yield from _time_lines(pool, num_studies)


def _study(world: World, seed: int, *, others: bool, with_optuna: bool) -> list[Named]:
    """Return what every rule named in the study of one seed."""
    study = simulate_study(world, nodes=NUM_NODES, seed=seed)
    race = study.race
    stop = "" if race.choice is None else race.choice.stop
    ours = partial(Named, boots=race.num_boots, hours=race.hours, stop=stop)
    named = [
        ours(rule=RACE, arm=race.chosen, promoted=_is_shown(world, race)),
        ours(rule=VERDICT, arm=study.winner, promoted=promotable(study.verdict)),
    ]
    if not others:
        return named
    scores: dict[tuple[Arm, int, int], tuple[float, ...]] = {}
    for name, rule in _rules(with_optuna).items():
        bench = Bench(world=world, seed=seed, scores=scores)
        arm = rule(bench, race.num_boots)
        named.append(Named(rule=name, arm=arm, boots=bench.boots))
    return named


def _is_shown(world: World, race: SimulatedRace) -> bool:
    """Whether fresh boots alone show the choice faster than the incumbent."""
    choice, incumbent = race.choice, world.incumbent
    if choice is None or incumbent is None or choice.arm == incumbent:
        return False
    boots = [
        boot
        for boot in race.boots
        if boot.arm != choice.arm or boot.trial_id not in choice.chosen_by
    ]
    compared = measured(boots, cells=world.cells, board=None).compare(world.weights)
    high = compared.contrast(choice.arm, incumbent, confidence=0.95).high
    return high is not None and high < 0


def _rules(with_optuna: bool) -> dict[str, Rule]:
    rules: dict[str, Rule] = {
        "full grid of three boots": full_grid,
        "three runs in one boot": three_runs,
        "vllm-optimizer (ranges and t)": separated,
        "median, MAD, smaller depth": median_mad,
        "coordinate descent": coordinate_descent,
    }
    return {**rules, "Optuna TPE": tpe(_optuna())} if with_optuna else rules


def _by_rule(found: Sequence[Sequence[Named]]) -> dict[str, list[Named]]:
    return {items[0].rule: list(items) for items in zip(*found, strict=True)}


def _lines(name: str, world: World, found: Sequence[Sequence[Named]]) -> Iterator[str]:
    regret = {arm: world.regret(arm) for arm in world.arms}
    grid = 3 * len(world.arms)
    yield f"\n{name}: {len(world.arms)} arms, full grid {grid} boots, {NUM_NODES} boards"
    yield (
        f"{'rule':<34}{'best or within 1 %':<26}{'best':>7}{'loss':>8}{'cannot tell':>13}"
        f"{'boots':>8}{'of grid':>9}"
    )
    for rule, items in _by_rule(found).items():
        losses = [regret[item.arm] for item in items if item.arm is not None]
        near = sum(loss <= NEAR for loss in losses) / len(items)
        best = sum(loss <= 0 for loss in losses) / len(items)
        loss = f"{sum(losses) / len(losses):.2%}" if losses else "-"
        untold = sum(item.arm is None for item in items) / len(items)
        boots = sum(item.boots for item in items) / len(items)
        yield (
            f"{rule:<34}{_share(near, len(items)):<26}{best:>7.1%}{loss:>8}{untold:>13.1%}"
            f"{boots:>8.1f}{boots / grid:>9.0%}"
        )
    yield _stops(found)


def _null_lines(name: str, world: World, found: Sequence[Sequence[Named]]) -> Iterator[str]:
    yield f"\n{name}: {len(world.arms)} arms, {NUM_NODES} boards"
    yield f"{'rule':<34}{'changes production':<26}{'boots':>8}"
    for rule, items in _by_rule(found).items():
        changed = [
            item.arm not in (None, world.incumbent) if item.promoted is None else item.promoted
            for item in items
        ]
        boots = sum(item.boots for item in items) / len(items)
        yield f"{rule:<34}{_share(sum(changed) / len(items), len(items)):<26}{boots:>8.1f}"
    yield _stops(found)


def _stops(found: Sequence[Sequence[Named]]) -> str:
    ours = [items[0] for items in found]
    shares = {
        stop: sum(item.stop == stop for item in ours) / len(ours)
        for stop in ("winner", "tie", "budget")
    }
    words = ", ".join(f"{stop} {share:.0%}" for stop, share in shares.items())
    choice, verdict = (
        sum(bool(items[place].promoted) for items in found) / len(found) for place in (0, 1)
    )
    return (
        f"the race's stops: {words}; fresh boots show its choice faster than what serves in "
        f"{choice:.1%}; the verdict promotes in {verdict:.1%}"
    )


def _time_lines(pool: ProcessPoolExecutor, num_studies: int) -> Iterator[str]:
    world = WORLDS[ARTICLE]
    yield "\ntime to decide, article, boots spread by 2 % (the race alone)"
    yield f"{'boards':>6}{'boots':>8}{'hours':>8}{'9 of 10 within':>16}   best or within 1 %"
    for nodes in NODES:
        race = partial(_race, world, nodes)
        races = list(pool.map(race, range(num_studies), chunksize=5))
        hours = sorted(item[1] for item in races)
        near = sum(item[2] for item in races) / len(races)
        boots = sum(item[0] for item in races) / len(races)
        yield (
            f"{nodes:>6}{boots:>8.1f}{sum(hours) / len(hours):>8.2f}"
            f"{hours[int(0.9 * len(hours))]:>16.2f}   {_share(near, len(races))}"
        )


def _race(world: World, nodes: int, seed: int) -> tuple[int, float, bool]:
    race = simulate_race(world, DEFAULT_SETTINGS.race, nodes=nodes, seed=seed)
    is_near = race.chosen is not None and world.regret(race.chosen) <= NEAR
    return race.num_boots, race.hours, is_near


def _share(share: float, count: int) -> str:
    low, high = wilson(share, count)
    return f"{share:.1%} ({low:.1%} to {high:.1%})"


def _ensure_optuna() -> bool:
    """Make Optuna's environment once; return whether it is there."""
    if not _optuna_path().is_dir():
        try:
            venv.create(_OPTUNA_VENV, with_pip=True)
            pip = [str(_OPTUNA_VENV / "bin" / "python"), "-m", "pip", "install", "-q", OPTUNA]
            subprocess.run(pip, check=True)
        except subprocess.CalledProcessError:
            return False
    return _optuna_path().is_dir()


def _optuna_path() -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return _OPTUNA_VENV / "lib" / version / "site-packages" / "optuna"


@cache
def _optuna() -> Any:
    """Return Optuna, which only this bench needs; our own numpy stays the one that is found."""
    sys.path.append(str(_optuna_path().parent))
    # It lives in an environment of its own, below .bench.
    import optuna  # type: ignore[import-not-found]  # noqa: PLC0415

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
