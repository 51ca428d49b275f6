"""How others choose a configuration, on the same simulated boards and with the same objective.

Every rule sees seconds per output token of runs and of boots, and names an arm or None where it
says that it cannot tell. Where a rule's publication leaves a number open, the constant says so.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scipy import stats

from orchestrator.core.estimate import boot_objective
from orchestrator.core.types import Arm, Boot
from orchestrator.fakes.simulate.world import World

NUM_RUNS = 3
"""Runs in one boot."""
NUM_FINALISTS = 3
"""Of vllm-optimizer's rule; its default is not stated. The incumbent comes on top."""
MAX_MADS = 3.0
"""Distance from the median beyond which a run is rejected; assumed."""
TIE = 0.02
"""Relative difference within which the smaller depth is taken; assumed."""


@dataclass(slots=True)
class Bench:
    """One study's boards for rules that boot one arm after the other, on one node."""

    world: World
    seed: int
    boots: int = 0
    """Boots that the rule has used."""
    scores: dict[tuple[Arm, int, int], tuple[float, ...]] = field(default_factory=dict)

    def boot(self, arm: Arm, replicate: int) -> float:
        """Boot an arm, run the load once, and return its objective in seconds."""
        return self._runs(arm, replicate, 1)[0]

    def runs(self, arm: Arm, replicate: int) -> tuple[float, ...]:
        """Boot an arm and return the objective of each of three runs."""
        return self._runs(arm, replicate, NUM_RUNS)

    def _runs(self, arm: Arm, replicate: int, num_runs: int) -> tuple[float, ...]:
        self.boots += 1
        key = (arm, replicate, num_runs)
        if key not in self.scores:
            load = replace(self.world.load, blocks_per_cell=num_runs)
            boot = (
                replace(self.world, load=load)
                .boot(arm, replicate=replicate, node_id="node-0", start_s=0.0, seed=self.seed)
                .boot
            )
            self.scores[key] = tuple(_run(self.world, boot, index) for index in range(num_runs))
        return self.scores[key]


def _run(world: World, boot: Boot, index: int) -> float:
    """Return the objective of one run: the index-th block of every cell."""
    blocks = [[block for block in boot.blocks if block.cell == cell][index] for cell in world.cells]
    score = boot_objective(replace(boot, blocks=tuple(blocks)), world.weights, None)
    assert score is not None, "the bench's worlds have no failures"
    return score


Rule = Callable[[Bench, int], Arm | None]
"""From the boards and a budget of boots to the arm named."""


def three_runs(bench: Bench, _budget: int) -> Arm | None:
    """Three runs in one boot of every arm; the best mean."""
    return min(bench.world.arms, key=lambda arm: statistics.fmean(bench.runs(arm, 0)))


def full_grid(bench: Bench, _budget: int) -> Arm | None:
    """Three boots of every arm; the best mean."""
    means = {
        arm: statistics.fmean(bench.boot(arm, number) for number in range(3))
        for arm in bench.world.arms
    }
    return min(means, key=lambda arm: means[arm])


def separated(bench: Bench, _budget: int) -> Arm | None:
    """vllm-optimizer: finalists in a fresh boot of three runs; ranges and t intervals separate."""
    first = {arm: statistics.fmean(bench.runs(arm, 0)) for arm in bench.world.arms}
    finalists = sorted(first, key=lambda arm: first[arm])[:NUM_FINALISTS]
    incumbent = bench.world.incumbent
    if incumbent is not None and incumbent not in finalists:
        finalists.append(incumbent)
    runs = {arm: bench.runs(arm, 1) for arm in finalists}
    best = min(runs, key=lambda arm: statistics.fmean(runs[arm]))
    others = [values for arm, values in runs.items() if arm != best]
    return best if all(_are_apart(runs[best], values) for values in others) else None


def _are_apart(fast: Sequence[float], slow: Sequence[float]) -> bool:
    return max(fast) < min(slow) and _t_interval(fast)[1] < _t_interval(slow)[0]


def _t_interval(values: Sequence[float]) -> tuple[float, float]:
    quantile = float(stats.t.ppf(0.975, len(values) - 1))
    half = quantile * statistics.stdev(values) / len(values) ** 0.5
    return statistics.fmean(values) - half, statistics.fmean(values) + half


def median_mad(bench: Bench, _budget: int) -> Arm | None:
    """tune_speculative_k: median of runs without outliers; a tie goes to the smaller depth."""
    scores = {arm: _robust(bench.runs(arm, 0)) for arm in bench.world.arms}
    best = min(scores.values())
    tied = [arm for arm in scores if scores[arm] <= best * (1 + TIE)]
    return min(tied, key=lambda arm: (arm.num_speculative_tokens, scores[arm]))


def _robust(values: Sequence[float]) -> float:
    middle = statistics.median(values)
    mad = statistics.median(abs(value - middle) for value in values)
    kept = [value for value in values if abs(value - middle) <= MAX_MADS * 1.4826 * mad]
    return statistics.median(kept)


def coordinate_descent(bench: Bench, budget: int) -> Arm | None:
    """One boot an arm, one key after the other from the incumbent, until no key gains."""
    arms = [arm for arm in bench.world.arms if not arm.is_baseline]
    best = bench.world.incumbent or arms[0]
    seen = {best: bench.boot(best, 0)}
    keys = ("num_speculative_tokens", "draft_sample_method", "rejection_sample_method")
    unchanged = 0
    for key in itertools.cycle(keys):
        if unchanged == len(keys):
            return best
        line = [arm for arm in arms if _differs_in(arm, best) <= {key}]
        for arm in line:
            if arm not in seen and bench.boots < budget:
                seen[arm] = bench.boot(arm, 0)
        step = min((arm for arm in line if arm in seen), key=lambda arm: seen[arm])
        unchanged = unchanged + 1 if step == best else 0
        best = step
    raise AssertionError("the keys are cycled without end")


def _differs_in(a: Arm, b: Arm) -> set[str]:
    keys = ("num_speculative_tokens", "draft_sample_method", "rejection_sample_method")
    return {key for key in keys if getattr(a, key) != getattr(b, key)}


def tpe(optuna: Any) -> Rule:
    """Return Optuna's TPE with its defaults and one boot a trial; the best value seen wins."""

    def rule(bench: Bench, budget: int) -> Arm | None:
        arms = {_values(arm): arm for arm in bench.world.arms if not arm.is_baseline}
        depths, drafts, rejections = (sorted(set(column)) for column in zip(*arms, strict=True))
        booted = dict.fromkeys(bench.world.arms, 0)

        def objective(trial: Any) -> float:
            arm = arms[
                trial.suggest_int("depth", min(depths), max(depths)),
                trial.suggest_categorical("draft", drafts),
                trial.suggest_categorical("rejection", rejections),
            ]
            booted[arm] += 1
            return bench.boot(arm, booted[arm] - 1)

        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=bench.seed))
        study.optimize(objective, n_trials=budget)
        best = study.best_params
        return arms[best["depth"], best["draft"], best["rejection"]]

    return rule


def _values(arm: Arm) -> tuple[int, str, str]:
    return (
        arm.num_speculative_tokens,
        str(arm.draft_sample_method),
        str(arm.rejection_sample_method),
    )
