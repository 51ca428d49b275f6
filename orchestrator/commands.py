"""What the subcommands do: study, plan, promote, status. Every exit goes through a status."""

from __future__ import annotations

import sys
from enum import IntEnum

from orchestrator import compose
from orchestrator.adapters.clock import SystemClock
from orchestrator.cluster import (
    join_ray,
    one_study_at_a_time,
    require_free_board,
    start_serve,
    sweep_trials,
)
from orchestrator.conduct import STUDY_TAG, open_study
from orchestrator.config import StudyConfig
from orchestrator.core.race_state import RaceQuestion
from orchestrator.delivery import delivery
from orchestrator.errors import ConfigError
from orchestrator.events import Printer
from orchestrator.forecast import Times, forecast
from orchestrator.ports import Version
from orchestrator.prepare import prepare
from orchestrator.promote import CHALLENGER, CHAMPION, PREVIOUS
from orchestrator.report import format_forecast, format_plan


class ExitStatus(IntEnum):
    """What the command's exit status means."""

    DONE = 0
    FAILED = 1
    BAD_INPUT = 2
    NOTHING_PROMOTED = 3


def plan(config: StudyConfig) -> ExitStatus:
    """Print what the study would do; starts nothing and needs neither engine nor Ray."""
    prepared = prepare(config, models_must_exist=False)
    config = prepared.config
    question = RaceQuestion(
        arms=prepared.arms, incumbent=None, weights=config.weights(), board=config.board()
    )
    race, load = compose.race_settings(config), config.load
    lines = format_plan(
        question.arms,
        weights=question.weights,
        board=question.board,
        incumbent=None,
        settings=race,
        proof=compose.proof_demands(config),
    )
    times = Times(
        boot_s=config.engine.expected_boot_s,
        block_s=load.block_s,
        blocks_per_cell=load.blocks_per_cell,
        max_tokens=load.max_tokens,
    )
    printer = _printer()
    printer.lines([f"study {config.name}", *lines, "simulating such studies, some 10 s:"])
    printer.lines([*format_forecast(forecast(question, race, times)), *prepared.notes])
    return ExitStatus.DONE


def study(config: StudyConfig) -> ExitStatus:
    """Run the study to its verdict and, if the policy and every gate allow it, promote."""
    printer = _printer()
    prepared = prepare(config, models_must_exist=True)
    config = prepared.config
    for note in prepared.notes:
        printer.say(note)
    registry = compose.registry(config)
    with one_study_at_a_time(config):
        start_serve(config)
        swept = sweep_trials()
        if swept:
            printer.say(f"removed applications of dead trials: {', '.join(swept)}")
        delivery(prepared, join_ray(config), registry, printer).settle()
        cluster = require_free_board(config)
        tracker = compose.tracker(config, num_nodes=cluster.num_trial_nodes)
        tools = delivery(prepared, cluster, registry, printer)
        conduct = open_study(prepared, cluster, tracker, registry, tools)
        try:
            promoted = conduct.conclude(conduct.race())
        except BaseException as error:  # an interrupt, too, must not leave the run RUNNING
            reason = str(error) or type(error).__name__
            tags = {"reason": reason[:4000]}
            tracker.close_study(
                conduct.run_id, succeeded=False, tags=tags, metrics={}, artifacts={}
            )
            raise
        finally:
            sweep_trials()
    return ExitStatus.DONE if promoted else ExitStatus.NOTHING_PROMOTED


def promote(config: StudyConfig, version_number: int | None) -> ExitStatus:
    """Promote a registered version, by default the challenger; bring a lost champion back."""
    printer = _printer()
    registry = compose.registry(config)
    name = config.tracking.registered_model
    if version_number is None:
        version = registry.by_alias(name, CHALLENGER)
        wanted = f"alias {CHALLENGER}"
    else:
        version = registry.by_number(name, version_number)
        wanted = f"version {version_number}"
    if version is None:
        raise ConfigError(
            "tracking.registered_model", f"'{name}' has no {wanted}",
            "run a study that finds a winner, or name a registered version",
        )  # fmt: skip
    prepared = prepare(config, models_must_exist=True)
    config = prepared.config
    with one_study_at_a_time(config):
        start_serve(config)
        tools = delivery(prepared, join_ray(config), registry, printer)
        tools.settle()
        champion = registry.by_alias(name, CHAMPION)
        if champion is not None and champion.version == version.version:
            if tools.serves(version):
                printer.say(f"version {version.version} is the champion and serves already")
            else:
                tools.reapply(version)
            return ExitStatus.DONE
        require_free_board(config)
        tools.promote(version)
    return ExitStatus.DONE


def status(config: StudyConfig) -> ExitStatus:
    """Print what production serves, and on which evidence."""
    registry = compose.registry(config)
    name = config.tracking.registered_model
    lines = []
    for alias in (CHAMPION, CHALLENGER, PREVIOUS):
        version = registry.by_alias(name, alias)
        lines.append(f"{alias}: {'none' if version is None else describe(version)}")
    cluster = join_ray(config)
    production = compose.production(config, cluster.dashboard_url)
    state = production.state()
    if state.router_status is None:
        lines.append("production: nothing is declared")
    else:
        lines.append(f"production: {production.url} is {state.router_status}")
        for app, engine_status in state.engines.items():
            share = state.weights.get(app, 0.0)
            lines.append(f"  {app}: {engine_status}, weight {share:g}")
    _printer().lines(lines)
    return ExitStatus.DONE


def describe(version: Version) -> str:
    """Return one line about a registered version."""
    tags = version.tags
    return (
        f"version {version.version} of {version.model_name}: "
        f"{tags.get('specpilot.arm_label', '?')} on vLLM "
        f"{tags.get('specpilot.engine_build', '?')}, study {tags.get(STUDY_TAG, '?')}, "
        f"step times {tags.get('specpilot.step_time', '?')}: "
        f"{tags.get('specpilot.claim', 'no claim recorded')}"
    )


def _printer() -> Printer:
    clock = SystemClock()
    return Printer(sink=sys.stdout, clock=clock, started_s=clock.monotonic())
