"""What the subcommands do: study, plan, promote, status. Every exit goes through a status."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial

from orchestrator import compose
from orchestrator.adapters.clock import SystemClock
from orchestrator.compose import Cluster, Prepared
from orchestrator.config import StudyConfig, config_to_dict
from orchestrator.core.codec import from_plain, to_plain
from orchestrator.core.premises import Premises
from orchestrator.core.race import expected_boots
from orchestrator.core.summary import summarise
from orchestrator.core.types import Arm, Boot, Cell
from orchestrator.core.verdict import Verdict, decide, promotable
from orchestrator.errors import ConfigError, MeasurementError, PromotionError
from orchestrator.events import Pace, Printer
from orchestrator.ports import LoadHooks, LoadRequest, Registry, Tracker, Version
from orchestrator.promote import CHALLENGER, CHAMPION, PREVIOUS, Promoter, PromotionSettings
from orchestrator.report import (
    format_plan,
    format_results_table,
    format_verdict,
    verdict_markdown,
)
from orchestrator.study import StudyPlan, run_race, with_incumbent

ARM_TAG = "specpilot.arm"
STUDY_TAG = "specpilot.study_id"
PROMOTION_S = 90.0
"""Guess of a promotion's duration beyond one boot, for the time left."""


class ExitStatus(IntEnum):
    """What the command's exit status means."""

    DONE = 0
    FAILED = 1
    BAD_INPUT = 2
    NOTHING_PROMOTED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRun:
    """A study under way: what it asks, where it runs and where it writes."""

    prepared: Prepared
    cluster: Cluster
    study_id: str
    run_id: str
    premises: Premises
    incumbent: Arm | None
    tracker: Tracker
    registry: Registry
    printer: Printer

    @property
    def config(self) -> StudyConfig:
        """The study's configuration."""
        return self.prepared.config

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The space, the incumbent included."""
        return with_incumbent(self.prepared.arms, self.incumbent)


def plan(config: StudyConfig) -> ExitStatus:
    """Print what the study would do; starts nothing and needs neither engine nor Ray."""
    prepared = compose.prepare(config, models_must_exist=False)
    lines = format_plan(
        prepared.arms,
        weights=config.weights(),
        board=config.board(),
        incumbent=None,
        settings=compose.race_settings(config),
        seconds_per_boot=seconds_per_boot(config),
    )
    _printer().lines([f"study {config.name}", *lines, *prepared.notes])
    return ExitStatus.DONE


def study(config: StudyConfig) -> ExitStatus:
    """Run the study to its verdict and, if the policy and every gate allow it, promote."""
    printer = _printer()
    prepared = compose.prepare(config, models_must_exist=True)
    registry = compose.registry(config)
    cluster = compose.join_ray(config)
    tracker = compose.tracker(config, num_nodes=cluster.num_trial_nodes)
    if cluster.free_engine_tokens < 1:
        raise ConfigError(
            "node.engine_token", f"no '{config.node.engine_token}' is free",
            "wait for what holds it, or stop that",
        )  # fmt: skip
    compose.start_serve(config)
    swept = compose.sweep_trials()
    if swept:
        printer.say(f"removed applications of dead trials: {', '.join(swept)}")
    run = _open(prepared, cluster, tracker, registry, printer)
    try:
        boots = _race(run)
        return _conclude(run, boots)
    except BaseException as error:
        reason = str(error) or type(error).__name__
        tracker.close_study(
            run.run_id, succeeded=False, tags={"reason": reason[:4000]}, metrics={}, artifacts={}
        )
        raise
    finally:
        compose.sweep_trials()


def promote(config: StudyConfig, version_number: int | None) -> ExitStatus:
    """Promote a registered version, by default the challenger."""
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
    prepared = compose.prepare(config, models_must_exist=True)
    cluster = compose.join_ray(config)
    compose.start_serve(config)
    _promote(prepared, cluster, registry, version, printer)
    return ExitStatus.DONE


def status(config: StudyConfig) -> ExitStatus:
    """Print what production serves, and on which evidence."""
    registry = compose.registry(config)
    name = config.tracking.registered_model
    lines = []
    for alias in (CHAMPION, CHALLENGER, PREVIOUS):
        version = registry.by_alias(name, alias)
        lines.append(f"{alias}: {'none' if version is None else describe(version)}")
    cluster = compose.join_ray(config)
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
        f"{tags.get('specpilot.claim', 'no claim recorded')}"
    )


def seconds_per_boot(config: StudyConfig) -> float:
    """Return the expected duration of one boot with its blocks, from the configuration alone."""
    blocks = len(config.cells()) * config.load.blocks_per_cell
    return config.engine.expected_boot_s + blocks * config.load.block_s * 1.5


def _printer() -> Printer:
    clock = SystemClock()
    return Printer(sink=sys.stdout, clock=clock, started_s=clock.monotonic())


def _open(
    prepared: Prepared, cluster: Cluster, tracker: Tracker, registry: Registry, printer: Printer
) -> StudyRun:
    config = prepared.config
    premises = compose.premises(prepared)
    incumbent = _incumbent(registry, config)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    study_id = f"{prepared.study_id}-{stamp}"
    params = {
        **config_to_dict(config),
        "study_id": study_id,
        "fingerprint": prepared.study_id,
        "premises": premises.to_dict(),
        **compose.job_tags(),
    }
    run = StudyRun(
        prepared=prepared,
        cluster=cluster,
        study_id=study_id,
        run_id=tracker.open_study(study_id, study_id, params),
        premises=premises,
        incumbent=incumbent,
        tracker=tracker,
        registry=registry,
        printer=printer,
    )
    printer.lines(
        [
            f"study {study_id}",
            f"results: {tracker.run_url(run.run_id)}",
            *format_plan(
                run.arms,
                weights=config.weights(),
                board=config.board(),
                incumbent=incumbent,
                settings=compose.race_settings(config),
                seconds_per_boot=seconds_per_boot(config),
            ),
        ]
    )
    return run


def _incumbent(registry: Registry, config: StudyConfig) -> Arm | None:
    champion = registry.by_alias(config.tracking.registered_model, CHAMPION)
    if champion is None or ARM_TAG not in champion.tags:
        return None
    arm = from_plain(Arm, json.loads(champion.tags[ARM_TAG]))
    # A champion of another engine build is no arm of this study: builds are never ranked together.
    return arm if arm.engine_build == config.engine.build else None


def _race(run: StudyRun) -> tuple[Boot, ...]:
    config = run.config
    race = compose.race_settings(config)
    study_plan = StudyPlan(
        study_id=run.study_id,
        arms=run.arms,
        incumbent=run.incumbent,
        weights=config.weights(),
        board=config.board(),
        race=race,
        slot_token=config.node.slot_token,
        num_nodes=run.cluster.num_trial_nodes,
        storage_path=compose.state_dir() / "tune",
    )
    pace = Pace(
        num_expected=expected_boots(len(run.arms), race),
        num_parallel=run.cluster.num_trial_nodes,
        guess_boot_s=seconds_per_boot(config),
        fixed_s=PROMOTION_S + config.engine.expected_boot_s,
    )
    context = compose.TrialContext(
        config=config,
        workload=run.prepared.workload,
        study_run_id=run.run_id,
        tracking_uri=compose.tracking_uri(config),
    )
    return run_race(
        study_plan,
        compose.trial_factory(context),
        run.printer,
        pace,
        partial(_table, run),
    )


def _table(run: StudyRun, boots: Sequence[Boot]) -> list[str]:
    config = run.config
    summaries = summarise(run.arms, boots=boots, weights=config.weights(), board=config.board())
    return format_results_table(summaries, board=config.board())


def _conclude(run: StudyRun, boots: Sequence[Boot]) -> ExitStatus:
    config = run.config
    verdict = decide(
        run.arms,
        boots=boots,
        weights=config.weights(),
        board=config.board(),
        incumbent=run.incumbent,
        settings=compose.gate_settings(config),
        confidence=config.objective.confidence,
        premises=run.premises,
    )
    run.printer.lines([*_table(run, boots), *format_verdict(verdict)])
    version = _register(run, boots, verdict) if promotable(verdict) else None
    run.tracker.close_study(
        run.run_id,
        succeeded=True,
        tags={
            "verdict": verdict.kind,
            "winner": "none" if verdict.winner is None else verdict.winner.label,
            "step_time": config.objective.step_time,
        },
        metrics={},
        artifacts={
            "verdict.md": verdict_markdown(verdict),
            "verdict.json": json.dumps(verdict.to_dict(), indent=1),
            "results.txt": "\n".join(_table(run, boots)),
        },
    )
    if version is None:
        run.printer.say("finished; nothing is promoted")
        return ExitStatus.NOTHING_PROMOTED
    if config.policy.promote == "never":
        run.printer.say(
            f"finished; version {version.version} waits as {CHALLENGER} (policy.promote=never)"
        )
        return ExitStatus.NOTHING_PROMOTED
    try:
        _promote(run.prepared, run.cluster, run.registry, version, run.printer)
    except PromotionError as error:
        run.printer.say(f"not promoted: {error}")
        return ExitStatus.NOTHING_PROMOTED
    run.printer.left_s = None
    run.printer.say(f"finished; {run.tracker.run_url(run.run_id)}")
    return ExitStatus.DONE


def _register(run: StudyRun, boots: Sequence[Boot], verdict: Verdict) -> Version:
    """Register the winner with its evidence and make it the challenger."""
    config, winner = run.config, verdict.winner
    assert winner is not None
    evidence = next(b for b in boots if b.arm == winner and b.run_id is not None)
    assert evidence.run_id is not None
    name = config.tracking.registered_model
    spec = compose.engine_spec(config, winner, f"{config.production.name}-{winner.label}")
    tags = {
        ARM_TAG: json.dumps(to_plain(winner)),
        "specpilot.arm_label": winner.label,
        "specpilot.engine_build": winner.engine_build,
        STUDY_TAG: run.study_id,
        "specpilot.study_run": run.run_id,
        "specpilot.step_time": config.objective.step_time,
        "specpilot.claim": verdict.sentences[0] if verdict.sentences else "",
        "specpilot.premises": json.dumps(run.premises.to_dict()),
        **{f"specpilot.gate.{gate.name}": _gate_text(gate.passed) for gate in verdict.gates},
    }
    version = run.registry.create_version(name, evidence.run_id, spec.to_dict(), tags)
    run.registry.set_alias(name, CHALLENGER, version.version)
    return version


def _gate_text(passed: bool | None) -> str:
    return "not shown" if passed is None else "passed" if passed else "failed"


def _promote(
    prepared: Prepared, cluster: Cluster, registry: Registry, version: Version, printer: Printer
) -> None:
    config = prepared.config
    production = compose.production(config, cluster.dashboard_url)
    promoter = Promoter(
        registry,
        production,
        SystemClock(),
        PromotionSettings(
            name=config.production.name,
            deadline_s=config.production.deadline_s,
            verify_requests=config.production.verify_requests,
            verify_prompts=tuple(prompt.text for prompt in prepared.workload.prompts[:8]),
            verify_max_tokens=min(32, config.load.max_tokens),
        ),
        printer.say,
    )
    done = promoter.promote(version, partial(_measure_production, prepared, production.url))
    if done.verified_throughput is not None:
        registry.set_tag(
            version.model_name,
            version.version,
            "specpilot.production_output_throughput",
            f"{done.verified_throughput:.2f}",
        )
        printer.say(
            f"through the production path: {done.verified_throughput:.1f} output tokens/s at "
            f"{max(config.load.streams)} streams, wall speed of this machine"
        )


def _measure_production(prepared: Prepared, url: str) -> float | None:
    """Return output tokens / s of one block through the production route; None if it failed."""
    config = prepared.config
    cell = Cell(streams=max(config.load.streams), temperature=max(config.load.temperatures))
    request = LoadRequest(
        base_url=url, model=config.engine.served_model_name, cell=cell, seed=config.seed
    )
    hooks = LoadHooks(on_window_start=_nothing, on_window_end=_nothing)
    try:
        result = compose.load_client(config, prepared.workload).run(request, hooks)
    except MeasurementError as error:
        raise PromotionError(f"the production route does not carry load: {error}") from error
    if result.num_failed:
        raise PromotionError(f"{result.num_failed} requests through the production route failed")
    return result.output_tokens / result.duration_s


def _nothing() -> None:
    """Do nothing: production's counters are not read through its route."""
