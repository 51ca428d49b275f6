"""Read and check all inputs of a study before anything is started."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from orchestrator.adapters import model_folder
from orchestrator.adapters.generation_config import generation_defaults, needs_target
from orchestrator.adapters.state import content_digests
from orchestrator.config import (
    EngineConfig,
    LoadConfig,
    StudyConfig,
    config_to_dict,
    resolve,
)
from orchestrator.core.build_space import build_all_arms
from orchestrator.core.exposure import reached_note
from orchestrator.core.identity import digest, study_id
from orchestrator.core.premises import Premises, World
from orchestrator.core.proof import budget_note
from orchestrator.core.remote_code import remote_code, remote_code_note
from orchestrator.core.sampling import SamplingDefaults, Shaping, require_speculative
from orchestrator.core.space import DraftFacts, EngineTraits, SpaceSettings
from orchestrator.core.types import Arm
from orchestrator.errors import ConfigError
from orchestrator.load.workload import Workload
from orchestrator.prepare_prompts import load_prompts, proof_prompts, too_long
from orchestrator.version import VERSION

SAMPLED = ("temperatures", *(item.name for item in fields(Shaping)))
"""Keys of the load that say how to sample."""

_NEUTRAL_LOAD = LoadConfig(workload="")

DELIVERY_KEYS = (
    *("approval", "allow_outage", "canary_share", "canary_s", "canary_requests"),
    *("promise_confidence", "promise_tolerance", "on_drift", "drift_tolerance"),
)
"""Of the policy: what happens when the question is answered."""
WATCHDOGS = (("engine", "boot_silence_s"), ("load", "block_silence_s"), ("node", "memory_look_s"))
"""By section: how soon something is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A study whose inputs were read and found legal; nothing was started."""

    config: StudyConfig
    arms: tuple[Arm, ...]
    workload: Workload
    proof_workload: Workload
    """Prompts of the text test of losslessness."""
    study_id: str
    notes: tuple[str, ...]
    """What could not be checked on this machine, and what deserves a look."""
    is_sampling_known: bool = True
    """Whether the load says how it samples; a client's default needs the target's folder."""


def prepare(config: StudyConfig, *, models_must_exist: bool) -> Prepared:
    """Read and check all inputs of a study.

    Args:
        config: The study.
        models_must_exist: Whether model folders have to be readable here; a plan does without.

    Raises:
        ConfigError: An input is missing, broken or illegal.
    """
    notes: list[str] = []
    target = resolve(config.target.path)
    if models_must_exist or target.is_dir():
        model_folder.require_target(target, "target.path")
    else:
        notes.append(f"target.path: '{target}' is not on this machine; not checked")
    by_default = config.load.sampling == "client_default"
    is_known = not by_default or target.is_dir() or not needs_target(config.engine.args)
    if by_default:
        config = _with_client_default(config, target, notes, is_known=is_known)
    draft = _draft_facts(config, models_must_exist=models_must_exist, notes=notes)
    arms, left_out = build_all_arms(
        SpaceSettings(
            baseline=config.search.baseline,
            draft_sample_method=config.search.draft_sample_method,
            rejection_sample_method=config.search.rejection_sample_method,
            num_speculative_tokens=config.search.num_speculative_tokens,
        ),
        [_traits(config.engine.of(build)) for build in config.engine.build_names],
        draft,
        promotable=config.policy.promote != "never",
    )
    notes += left_out
    notes += _interpreters(config, must_exist=models_must_exist)
    notes += _proof_budget(config)
    notes += _warnings(config, is_plan=not models_must_exist)
    workload = load_prompts(config)
    notes += too_long(config, target, workload)
    return Prepared(
        config=config,
        arms=arms,
        workload=workload,
        proof_workload=proof_prompts(config),
        study_id=study_id(config.name, identity(config)),
        notes=tuple(notes),
        is_sampling_known=is_known,
    )


def prepare_return(config: StudyConfig) -> Prepared:
    """Read what it takes to bring back a version that has served, and no more.

    The registry has its configuration. What the study file names for its trials, models and
    interpreters too, may be gone: that may be why somebody goes back.

    Raises:
        ConfigError: The prompts that it is verified with cannot be read.
    """
    workload = load_prompts(config)
    return Prepared(
        config=config,
        arms=(),
        workload=workload,
        proof_workload=workload,  # nothing is proved
        study_id=study_id(config.name, identity(config)),
        notes=(),
    )


def _traits(engine: EngineConfig) -> EngineTraits:
    return EngineTraits(
        build=engine.build, platform=engine.platform, model_runner=engine.model_runner
    )


def _interpreters(config: StudyConfig, *, must_exist: bool) -> list[str]:
    """Return a note for each build whose interpreter is not here.

    Raises:
        ConfigError: One is not here and has to be.
    """
    engine = config.engine
    named = {"engine.python": engine.python}
    named |= {f"engine.builds[{n}].python": item.python for n, item in enumerate(engine.builds)}
    notes: list[str] = []
    for where, python in named.items():
        if python is None or resolve(python).is_file():
            continue
        problem = f"'{python}' is no interpreter here"
        if must_exist:
            raise ConfigError(where, problem, "build the engine or correct the path")
        notes.append(f"{where}: {problem}; not checked")
    return notes


def _proof_budget(config: StudyConfig) -> list[str]:
    proof = config.proof
    note = budget_note(displacement=proof.displacement, max_tokens=proof.max_tokens)
    return [] if note is None or proof.lossless == "skipped" else [note]


def _warnings(config: StudyConfig, *, is_plan: bool) -> list[str]:
    production = config.production
    reached = reached_note(production.http_host, production.api_keys) if is_plan else None
    builds = [config.engine.of(build) for build in config.engine.build_names]
    trusted = {remote_code_note(remote_code(build.args)) for build in builds}
    return [note for note in (reached, *trusted) if note is not None]


def _with_client_default(
    config: StudyConfig, target: Path, notes: list[str], *, is_known: bool
) -> StudyConfig:
    """Return the study with the sampling of a client that states nothing."""
    stated = [n for n in SAMPLED if getattr(config.load, n) != getattr(_NEUTRAL_LOAD, n)]
    if stated:
        raise ConfigError(
            f"load.{stated[0]}", "is stated although load.sampling is client_default",
            f"remove one of them; an override undoes it as {_undone(stated[0])}",
        )  # fmt: skip
    if not is_known:
        return _unresolved(config, notes)
    found = _client_default(config, target)
    if config.search.num_speculative_tokens:
        require_speculative(found)
    if found.min_p > 0:
        raise ConfigError(
            "min_p", f"{found.min_p:g} (from {found.sources['min_p']}) is a client's default, and "
            "requests of a study state 0",
            "set min_p to 0 in engine.args.override_generation_config, or load.sampling=explicit",
        )  # fmt: skip
    notes.append(_told(found))
    try:
        return replace(config, load=_resolved(config.load, found))
    except ConfigError as error:
        if not error.where.startswith("load."):
            raise
        name = error.where.removeprefix("load.").replace("temperatures", "temperature")
        source = found.sources.get(name, "generation_config.json")
        raise ConfigError(
            source, f"{name} {error.problem}, and load.sampling is client_default",
            "correct it there, or set load.sampling=explicit",
        ) from error  # fmt: skip


def _client_default(config: StudyConfig, target: Path) -> SamplingDefaults:
    """Return what every build samples with for a client that states nothing.

    Raises:
        ConfigError: Builds differ in it: then no request is such a client's to all of them.
    """
    args, builds = config.engine.args, config.engine.build_names
    found = [generation_defaults(target, args, engine_build=build) for build in builds]
    for build, other in zip(builds[1:], found[1:], strict=True):
        if other.values() != found[0].values():
            raise ConfigError(
                "load.sampling", "a client that states nothing does not get the same from vLLM "
                f"{build} as from {builds[0]}: {other.values()} and {found[0].values()}",
                "set load.sampling=explicit and state them",
            )  # fmt: skip
    return found[0]


def _told(found: SamplingDefaults) -> str:
    stated = [f"{name} {value}" for name, value in found.values().items() if value is not None]
    origins = sorted(set(found.sources.values()) - {"vllm"})
    origin = ", ".join(origins) or "vLLM's neutral values: no generation config states any"
    return f"client default: {', '.join(stated)} (from {origin})"


def _unresolved(config: StudyConfig, notes: list[str]) -> StudyConfig:
    """Return a study for a plan, where what it samples with cannot be known."""
    weighed = tuple(sorted({item.temperature for item in config.objective.weights}))
    temperatures = weighed or _NEUTRAL_LOAD.temperatures
    notes.append(
        "client default: the target is not on this machine; not resolved. Cells are shown at "
        f"temperature {', '.join(f'{value:g}' for value in temperatures)}"
    )
    load = replace(config.load, temperatures=temperatures, sampling="explicit")
    return replace(config, load=load)


def _resolved(load: LoadConfig, found: SamplingDefaults) -> LoadConfig:
    return replace(
        load,
        temperatures=(found.temperature,),
        **asdict(Shaping.of(found)),
        # Resolved: what follows is stated like any other sampling.
        sampling="explicit",
    )


def _undone(name: str) -> str:
    value = getattr(_NEUTRAL_LOAD, name)
    return f"load.{name}={list(value) if isinstance(value, tuple) else value}"


def _draft_facts(
    config: StudyConfig, *, models_must_exist: bool, notes: list[str]
) -> DraftFacts | None:
    if config.draft is None:
        return None
    path = resolve(config.draft.path)
    if models_must_exist or path.is_dir():
        facts = model_folder.draft_facts(path, "draft.path")
        stated = config.draft.block_size
        if stated is not None and facts.block_size not in (None, stated):
            raise ConfigError(
                "draft.block_size", f"{stated} is stated, but '{path}' says {facts.block_size}",
                "remove it or correct it",
            )  # fmt: skip
        return facts
    notes.append(f"draft.path: '{path}' is not on this machine; block size and kind as stated")
    return DraftFacts(block_size=config.draft.block_size, architecture=config.draft.architecture)


def identity(config: StudyConfig) -> dict[str, Any]:
    """Return what makes a study the same study.

    No paths, hosts or places to store results, not how its winner is brought in, and not how long a
    watchdog waits: what it ends has no number.
    """
    plain = config_to_dict(config)
    for section, key in WATCHDOGS:
        plain[section].pop(key)
    for section in ("tracking", "production"):
        plain.pop(section)
    for key in DELIVERY_KEYS:
        plain["policy"].pop(key)
    plain["target"] = plain["draft"] = None
    plain["engine"].pop("python")
    others = [{**build, "python": None} for build in plain["engine"].pop("builds")]
    if others:
        plain["engine"]["builds"] = others
    plain["proof"]["tasks"] = [Path(task).stem for task in config.proof.tasks]
    for section in ("load", "proof"):
        plain[section]["workload"] = Path(plain[section]["workload"]).name
    return plain


def premises(prepared: Prepared, build: str | None = None) -> Premises:
    """Return the conditions that the study's numbers of one build will depend on.

    Args:
        prepared: The study.
        build: One of its engine builds; None is ``engine.build``.

    Raises:
        ConfigError: One of them cannot be told on this machine.
    """
    found = world(prepared, build or prepared.config.engine.build)
    for name, reason in found.unknown.items():
        raise ConfigError(f"premise {name}", reason, "run it where the models are")
    return Premises.from_dict(found.values)


def premises_by_build(prepared: Prepared) -> dict[str, Premises]:
    """Return the premises of each engine build of the study, ``engine.build`` first."""
    return {build: premises(prepared, build) for build in prepared.config.engine.build_names}


def world(prepared: Prepared, build: str) -> World:
    """Return the study's premises as far as this machine shows them.

    Args:
        prepared: The study.
        build: An engine build; for one that the study does not have, ``engine.build`` is taken.

    Raises:
        ConfigError: A file of a model cannot be read, or changes meanwhile.
    """
    config = prepared.config
    own = config.engine.of(build if build in config.engine.build_names else config.engine.build)
    board = config.board()
    engine: dict[str, object] = {"args": own.args, "env": own.env}
    values: dict[str, object] = {
        "engine_build": own.build,
        "engine_args_digest": digest(engine),
        "remote_code": remote_code(own.args),
        "node_kind": config.node.kind,
        "workload_digest": prepared.workload.digest,
        "sampling": {
            name: float(getattr(config.load, name)) for name in SAMPLED if name != "temperatures"
        },
        "step_time": config.objective.step_time,
        "board_model": None if board is None else board.name,
        "specpilot_version": VERSION,
    }
    unknown: dict[str, str] = {}
    if not prepared.is_sampling_known:
        del values["sampling"]
        unknown["sampling"] = "a client's default stands in the target's folder, which is not here"
    known = content_digests()
    for name, model in (("target_digest", config.target), ("draft_digest", config.draft)):
        path = None if model is None else resolve(model.path)
        if path is None:
            values[name] = None
        elif path.is_dir():
            values[name] = model_folder.folder_digest(path, known)
        else:
            unknown[name] = f"'{path}' is not on this machine"
    return World(values=values, unknown=unknown)
