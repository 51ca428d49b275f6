"""``python -m orchestrator watch``: the watcher on the real adapters, and the traffic's profile."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from orchestrator import compose
from orchestrator.adapters.clock import SystemClock
from orchestrator.adapters.generation_config import generation_defaults
from orchestrator.adapters.watch_file import WatchFile
from orchestrator.cluster import join_ray
from orchestrator.config import StudyConfig, load_config, resolve
from orchestrator.errors import ConfigError
from orchestrator.events import Printer
from orchestrator.ports import Version
from orchestrator.premises_check import Checked, asking, check, is_refused, stale_premises
from orchestrator.prepare import Prepared, prepare
from orchestrator.traffic import ProfileSettings, profile, profile_lines, profile_weights
from orchestrator.watch import Watcher, WatchSettings
from orchestrator.watch_evidence import logged
from orchestrator.watch_loop import LoopSettings, WatchLoop
from orchestrator.watch_ports import Watched


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """What was typed."""

    study: Path
    overrides: tuple[str, ...]
    command: str
    """The study that asks again, as it would be typed."""
    every_s: float
    once: bool
    profile: Path | None
    """Where the weights go; None watches."""

    def __post_init__(self) -> None:
        """Check them before anything is started.

        Raises:
            ConfigError: One makes no sense.
        """
        # Two looks have to lie within the longest interval.
        if not 1 <= self.every_s <= 240:
            raise ConfigError("--every", f"{self.every_s:g} is not 1 to 240 s", "use 60")
        if self.profile is not None and self.profile.suffix not in (".yaml", ".yml", ".json"):
            raise ConfigError(
                "--profile", f"'{self.profile}' is neither YAML nor JSON",
                "name a file that ends in .yaml or .json",
            )  # fmt: skip


def watch(config: StudyConfig, options: WatchOptions) -> int:
    """Watch production until a signal, or write the profile of its traffic; return the status.

    Raises:
        ConfigError: An input is bad, no Ray answers, or another watcher is at it.
    """
    clock = SystemClock()
    printer = Printer(sink=sys.stdout, clock=clock, started_s=clock.monotonic())
    prepared = prepare(config, models_must_exist=True)
    config = prepared.config
    production = compose.production(config, join_ray(config).dashboard_url)
    if options.profile is not None:
        write_profile(prepared, production, options.profile, printer)
        return 0
    with WatchFile(config.tracking.registered_model, printer.say) as file:
        watcher = Watcher(
            WatchSettings(
                model_name=config.tracking.registered_model,
                app_prefix=config.production.name,
                tolerance=config.policy.drift_tolerance,
                default_temperature=default_temperature(config),
            ),
            registry=compose.registry(config),
            production=production,
            findings=compose.findings(config),
            stale=lambda version: _stale(version, options),
            refusal=lambda version: refusal(version, options),
            clock=clock,
            say=printer.say,
        )
        kept = file.read()
        if kept is not None:
            try:
                watcher.restore(kept)
            except ValueError as error:
                printer.say(f"{file.path} {error}; the evidence so far is lost")
        again = (sys.executable, *shlex.split(options.command)[1:])
        settings = LoopSettings(
            every_s=options.every_s,
            once=options.once,
            study_command=again if config.policy.on_drift == "study" else None,
        )
        asyncio.run(WatchLoop(watcher, settings, file.write, printer.say).run())
        printer.lines([f"open: {item.finding_id}: {item.sentence}" for item in watcher.open])
    return 0


def write_profile(prepared: Prepared, production: Watched, path: Path, printer: Printer) -> None:
    """Write the weights of the traffic that the router has recorded.

    Raises:
        ConfigError: There is nothing to weigh, or the file cannot be written.
        TransientError: The router does not answer.
    """
    config = prepared.config
    if not config.load.streams:
        raise ConfigError(
            "load.streams", "is empty, and arrivals have no weights by streams", "give some"
        )
    page = production.requests(0)
    settings = ProfileSettings(
        streams=tuple(config.load.streams),
        temperatures=tuple(config.load.temperatures),
        default_temperature=default_temperature(config),
    )
    found = profile(logged(page.requests), settings)
    lines = profile_lines(found)
    if page.lost:
        lines.insert(0, f"# {page.lost} older requests are no longer known to the router.")
    as_json = json.dumps({"objective": {"weights": profile_weights(found)}}, indent=1)
    text = as_json if path.suffix == ".json" else "\n".join(lines)
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            "--profile", f"{path} cannot be written ({error})", "name another file"
        ) from error
    printer.lines(lines)


def default_temperature(config: StudyConfig) -> float:
    """Return at which temperature production answers a request that states none.

    Raises:
        ConfigError: The target's generation config cannot be read.
    """
    target, engine = resolve(config.target.path), config.engine
    return generation_defaults(target, engine.args, engine_build=engine.build).temperature


def refusal(version: Version, options: WatchOptions) -> str | None:
    """Return why a study would be refused for the version that serves, and what a person can type.

    None where it would not be refused.

    Raises:
        ConfigError: The study's file or its models cannot be read.
    """
    prepared, checked = _beside(version, options)
    if not is_refused(prepared.config, checked):
        return None
    return (
        f"version {version.version} cannot be compared with the study's arms; a person has to "
        f"decide whether another one replaces it uncompared: "
        f"{asking(prepared.config, checked, options.command)}"
    )


def _stale(version: Version, options: WatchOptions) -> tuple[str, ...]:
    return stale_premises(_beside(version, options)[1])


def _beside(version: Version, options: WatchOptions) -> tuple[Prepared, Checked]:
    """Return the version beside the study's file and its models as they are now."""
    prepared = prepare(load_config(options.study, options.overrides), models_must_exist=True)
    return prepared, check(version, prepared)
