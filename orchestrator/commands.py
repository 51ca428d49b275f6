"""What the commands of a study do. Every exit goes through a status."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator import compose
from orchestrator.adapters.clock import SystemClock
from orchestrator.adapters.study_file import StudyFile
from orchestrator.cluster import (
    end_trials,
    join_guarded_ray,
    join_ray,
    one_study_at_a_time,
    require_free_board,
    start_serve,
    sweep_trials,
)
from orchestrator.conduct import (
    Conduct,
    open_study,
)
from orchestrator.config import StudyConfig
from orchestrator.core.race_state import RaceQuestion
from orchestrator.core.takeover import Kind, PromotionStep
from orchestrator.delivery import Delivery, delivery
from orchestrator.errors import ConfigError, OrchestratorError
from orchestrator.events import Printer
from orchestrator.exit_status import ExitStatus
from orchestrator.forecast import Times, forecast
from orchestrator.incumbent import comparable_champion, incumbent_arm
from orchestrator.journal import StudyState
from orchestrator.ports import Registry, Version
from orchestrator.premises_check import asking, check
from orchestrator.premises_report import format_check, format_short
from orchestrator.prepare import Prepared, premises_by_build, prepare, prepare_return
from orchestrator.promotion_record import (
    CHALLENGER,
    CHAMPION,
    PREVIOUS,
    SINCE_TAG,
    STEP_TAG,
    Found,
)
from orchestrator.promotion_report import format_status
from orchestrator.report import format_forecast, format_plan
from orchestrator.resume import (
    asked,
    new_study_id,
    read_state,
    require_same,
    unfinished,
)
from orchestrator.stopping import CLOSE_S, SWEEP_S, Stop, within


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
    printer.lines([f"study {config.name}", *lines, "simulating such studies, a minute at most:"])
    printer.lines([*format_forecast(forecast(question, race, times)), *prepared.notes])
    return ExitStatus.DONE


def study(config: StudyConfig, *, resume: str | None, command: str, stop: Stop) -> ExitStatus:
    """Run the study to its verdict and, if the policy and every gate allow it, promote.

    Args:
        config: The study.
        resume: Id of a study whose driver ended before the verdict, to go on with it.
        command: What was typed, to which ``--resume`` is added when the study ends too early.
        stop: Whether somebody wants it to end.
    """
    printer = _printer()
    prepared = prepare(config, models_must_exist=True)
    config = prepared.config
    for note in prepared.notes:
        printer.say(note)
    with StudyFile(new_study_id(prepared) if resume is None else resume, printer.say) as file:
        earlier = None if resume is None else read_state(file)
        registry = compose.registry(config)
        if earlier is None:
            _tell_unfinished(prepared, command, printer)
        else:
            require_same(earlier, _asked_now(prepared, registry))
        driver = Driver(printer=printer, command=command, stop=stop)
        return _conduct(prepared, registry, file, earlier, driver)


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """This process, as the driver of a study."""

    printer: Printer
    command: str
    """What was typed, without ``--resume``."""
    stop: Stop


def _conduct(
    prepared: Prepared,
    registry: Registry,
    file: StudyFile,
    earlier: StudyState | None,
    driver: Driver,
) -> ExitStatus:
    config, printer = prepared.config, driver.printer
    with one_study_at_a_time(config):
        _asked_now(prepared, registry)  # what serves may refuse the study: nothing begins then
        start_serve(config)
        _tell_swept(sweep_trials(), printer)
        delivery(prepared, join_ray(config), registry, printer).settle()
        cluster = require_free_board(config)
        tracker = compose.tracker(config, num_nodes=cluster.num_trial_nodes)
        tools = delivery(prepared, cluster, registry, printer)
        conduct = open_study(prepared, cluster, tracker, tools, file, earlier)
        try:
            promoted = conduct.conclude(conduct.race(driver.stop))
        except BaseException as error:  # an interrupt, too, must not leave the run RUNNING
            with driver.stop.ignored():
                give_up(conduct, error, driver.command)
            raise
        _end_trials(printer)
    return ExitStatus.DONE if promoted else ExitStatus.NO_GO


def _end_trials(printer: Printer) -> None:
    """End what is left of the trials; the study has its verdict, and no fault here undoes it."""
    try:
        _tell_swept(end_trials(), printer)
    except Exception as error:  # noqa: BLE001  Ray and Serve have many
        printer.say(_may_be_left(error))


def _may_be_left(error: Exception) -> str:
    return f"something of trials may be left, which `clean` shows: {error}"


def _tell_swept(swept: Sequence[str], printer: Printer) -> None:
    if swept:
        printer.say(f"of dead trials: {', '.join(swept)}")


def _asked_now(prepared: Prepared, registry: Registry) -> dict[str, Any]:
    """Return what the study would ask if it began now, in the form of ``StudyState.asks``.

    Raises:
        ConfigError: What serves in production cannot be compared with any arm of the study.
    """
    config = prepared.config
    by_build = premises_by_build(prepared)
    champion = comparable_champion(registry, config, by_build)
    return asked(prepared, by_build, incumbent_arm(champion))


def _tell_unfinished(prepared: Prepared, command: str, printer: Printer) -> None:
    ids = unfinished(prepared.study_id)
    if ids:
        others = f" ({len(ids) - 1} older ones are there, too)" if len(ids) > 1 else ""
        printer.say(
            f"this begins anew; unfinished is {ids[-1]}{others}: {command} --resume {ids[-1]}"
        )


def give_up(
    conduct: Conduct,
    error: BaseException,
    command: str,
    sweep: Callable[[], object] = lambda: end_trials(wait_s=SWEEP_S - 2, nodes_wait_s=SWEEP_S - 2),
) -> None:
    """Say how to resume, and close what can be closed; the error is the caller's to raise on.

    What fails or hangs here is said, so that it does not take the error's place, nor the minute in
    which a study has to end.
    """
    say, journal = conduct.printer.say, conduct.journal
    if journal.can_resume:
        has_found = journal.state.verdict is not None
        why = (
            "the verdict is kept and the tracker lacks it; to finish" if has_found else "to resume"
        )
        say(f"{why}: {command} --resume {conduct.study_id}")
    try:
        within(SWEEP_S, sweep)
    except Exception as second:  # noqa: BLE001  Ray has many, and the first error is the cause
        say(_may_be_left(second))
    try:
        within(CLOSE_S, lambda: _close_failed(conduct, error))
    except OrchestratorError as second:
        say(f"the study's run stays open: {second}")


def _close_failed(conduct: Conduct, error: BaseException) -> None:
    conduct.journal.flush(CLOSE_S / 2)  # a trial that MLflow refuses leaves time for the study
    if conduct.journal.state.has_verdict:
        return  # a verdict that is stored stays one, whatever became of its delivery
    tags = {"reason": (str(error) or type(error).__name__)[:4000]}
    conduct.tracker.close_study(
        conduct.run_id, succeeded=False, tags=tags, metrics={}, artifacts={}
    )


def _version(
    registry: Registry, name: str, alias: str, number: int | None, *, remedy: str
) -> Version:
    """Return the version of a number, or of an alias where none is given.

    Raises:
        ConfigError: There is none.
    """
    found = registry.by_alias(name, alias) if number is None else registry.by_number(name, number)
    if found is None:
        wanted = f"alias {alias}" if number is None else f"version {number}"
        raise ConfigError("tracking.registered_model", f"'{name}' has no {wanted}", remedy)
    return found


def promote(
    config: StudyConfig,
    version_number: int | None,
    *,
    allow_outage: bool = False,
    dry_run: bool = False,
) -> ExitStatus:
    """Promote a registered version, by default the challenger; bring a lost champion back."""
    printer, registry = _printer(), compose.registry(config)
    name = config.tracking.registered_model
    version = _version(
        registry, name, CHALLENGER, version_number,
        remedy="run a study that finds a winner, or name a registered version",
    )  # fmt: skip
    prepared = prepare(config, models_must_exist=True)
    config = prepared.config
    if dry_run:
        tools = delivery(prepared, join_guarded_ray(config), registry, printer)
        printer.lines(tools.decision(version, kind="promote", allow_outage=allow_outage))
        return ExitStatus.DONE
    with one_study_at_a_time(config):
        tools = delivery(prepared, join_ray(config), registry, printer)
        _promote(tools, version, kind="promote", allow_outage=allow_outage)
    return ExitStatus.DONE


def _promote(tools: Delivery, version: Version, *, kind: Kind, allow_outage: bool) -> None:
    """Promote a version; where that is refused nothing is started, not even Serve."""
    course = tools.course(version, kind=kind, allow_outage=allow_outage)
    course.require_allowed()
    start_serve(tools.prepared.config)
    tools.carry_out(course, allow_outage=allow_outage)


def rollback(
    config: StudyConfig, version_number: int | None, *, allow_outage: bool = False
) -> ExitStatus:
    """Go back to the version that served before, or to a named one that has served.

    What the study file names need not be there: its draft's folder may be why somebody goes back.
    """
    printer, registry = _printer(), compose.registry(config)
    prepared = prepare_return(config)
    with one_study_at_a_time(config):
        tools = delivery(prepared, join_ray(config), registry, printer)
        version = rollback_target(config, registry, tools.cut_off(), version_number)
        if version is None:
            start_serve(config)
            tools.settle()
            printer.say("the promotion that was cut off is undone; what served before serves")
            return ExitStatus.DONE
        _promote(tools, version, kind="rollback", allow_outage=allow_outage)
    return ExitStatus.DONE


def rollback_target(
    config: StudyConfig, registry: Registry, cut_off: Found | None, version_number: int | None
) -> Version | None:
    """Return where a rollback leads; None when undoing a promotion that was cut off is all.

    Raises:
        ConfigError: There is no such version, or it has never served.
    """
    name = config.tracking.registered_model
    champion = registry.by_alias(name, CHAMPION)
    if version_number is None and cut_off is not None:
        is_undone = champion is None or champion.version != cut_off.record.version
        if is_undone:
            return cut_off.version if cut_off.record.kind == "rollback" else None
    version = _version(
        registry, name, PREVIOUS, version_number,
        remedy="name one that has served: --to N; `status` shows what does",
    )  # fmt: skip
    if champion is not None and champion.version == version.version:
        raise ConfigError(
            "--to", f"version {version.version} is the champion", "name another version"
        )
    if SINCE_TAG not in version.tags and version.tags.get(STEP_TAG) != PromotionStep.RETIRED:
        raise ConfigError(
            "--to", f"version {version.version} has never served",
            f"`promote --registered-version {version.version}` tries it first",
        )  # fmt: skip
    return version


def sync(config: StudyConfig) -> ExitStatus:
    """Bring the champion back from the registry alone, as after a lost head node."""
    printer, registry = _printer(), compose.registry(config)
    _version(
        registry, config.tracking.registered_model, CHAMPION, None,
        remedy="promote a version first",
    )  # fmt: skip
    prepared = prepare_return(config)
    with one_study_at_a_time(config):
        start_serve(config)
        delivery(prepared, join_ray(config), registry, printer).sync()
    return ExitStatus.DONE


def premises(config: StudyConfig, *, command: str) -> ExitStatus:
    """Print which premises of what is registered hold, and which conclusions stand.

    Args:
        config: The study.
        command: The study that asks again, as it would be typed.

    Raises:
        ConfigError: Nothing is registered.
    """
    registry, name = compose.registry(config), config.tracking.registered_model
    found = _holders(registry, name)
    prepared = prepare(config, models_must_exist=False)
    checks = {a: check(v, prepared) for a, v in found.items() if v is not None}
    if not checks:
        raise ConfigError(
            "tracking.registered_model", f"'{name}' has no {', '.join(found)}",
            "run a study that finds a winner",
        )  # fmt: skip
    printer = _printer()
    for alias, checked in checks.items():
        printer.lines(format_check(alias, checked))
    # What served before comes back by `rollback`, which asks for no premises.
    counted = [checked for alias, checked in checks.items() if alias != PREVIOUS]
    states = {checked.state for checked in counted}
    if any(checked.state == "stale" or checked.fault is not None for checked in counted):
        printer.lines([f"to ask again: {asking(config, checks.get(CHAMPION), command)}"])
    if "stale" in states:
        return ExitStatus.NO_GO
    return ExitStatus.FAILED if "unknown" in states else ExitStatus.DONE


def status(config: StudyConfig) -> ExitStatus:
    """Print what production serves, since when, on which evidence and whether that stands."""
    registry, printer = compose.registry(config), _printer()
    holders = _holders(registry, config.tracking.registered_model)
    cluster = join_ray(config)
    production = compose.production(config, cluster.dashboard_url)
    printer.lines(format_status(holders, production.state(), production.url))
    try:
        prepared = prepare(config, models_must_exist=False)
        for alias in (CHAMPION, CHALLENGER):
            version = holders[alias]
            if version is not None:
                printer.lines(format_short(alias, check(version, prepared)))
    except ConfigError as error:  # what serves is told all the same
        printer.lines([f"premises: not checked: {error}"])
    return ExitStatus.DONE


def _holders(registry: Registry, name: str) -> dict[str, Version | None]:
    return {alias: registry.by_alias(name, alias) for alias in (CHAMPION, CHALLENGER, PREVIOUS)}


def _printer() -> Printer:
    clock = SystemClock()
    return Printer(sink=sys.stdout, clock=clock, started_s=clock.monotonic())
