"""What an engine samples with where a request says nothing, resolved as vLLM resolves it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from orchestrator.core.sampling import NEUTRAL, SamplingDefaults
from orchestrator.errors import ConfigError

_FILE = "generation_config.json"
_OVERRIDE = "override_generation_config"
_PENALTIES = ("presence_penalty", "frequency_penalty")
# 0.28 to 0.30 take neither of them from a generation config; read in the wheels.
_PENALTIES_SINCE = (0, 31)
_WHOLE = ("top_k", "max_tokens")
_LARGEST = 2**31 - 1


def generation_defaults(
    path: Path, engine_args: Mapping[str, object], *, engine_build: str | None = None
) -> SamplingDefaults:
    """Return the sampling of a request that states none, by vLLM 0.28 to 0.32.

    vLLM's neutral values; over them the model's ``generation_config.json``, or that of the folder
    that ``generation_config`` names, or none if it is ``vllm``; over them
    ``override_generation_config``. A null there hides the file's value. ``config.json`` is not
    asked: with transformers 5 its sampling parameters are no longer a generation config.

    Args:
        path: Folder of the target.
        engine_args: By vLLM's names.
        engine_build: Version of the engine, as in ``engine.build``; None is the newest.

    Raises:
        ConfigError: A file or an argument cannot be read, or holds something else than a number.
    """
    args = {name.replace("-", "_"): value for name, value in engine_args.items()}
    source = _source(args)
    file = path / _FILE if source == "auto" else Path(str(source)).expanduser() / _FILE
    found: dict[str, object] = dict(NEUTRAL)
    sources = dict.fromkeys(NEUTRAL, "vllm")
    layers = [] if source == "vllm" else [(_FILE, str(file), _from_file(file, str(source)))]
    layers.append((_OVERRIDE, f"engine.args.{_OVERRIDE}", _override(args)))
    for name, where, layer in layers:
        for key, value in _known(layer, engine_build).items():
            found[key] = NEUTRAL[key] if value is None else _number(key, value, where)
            sources[key] = "vllm" if value is None else name
    return SamplingDefaults(**found, sources=sources)  # type: ignore[arg-type]  # checked above


def needs_target(engine_args: Mapping[str, object]) -> bool:
    """Return whether the target's folder has to be here for ``generation_defaults``."""
    return _source({name.replace("-", "_"): value for name, value in engine_args.items()}) == "auto"


def _source(args: Mapping[str, object]) -> object:
    return args.get("generation_config") or "auto"


def _known(layer: Mapping[str, object], engine_build: str | None) -> dict[str, object]:
    """Return what vLLM reads of a generation config, by its own names."""
    named = {("max_tokens" if k == "max_new_tokens" else k): v for k, v in layer.items()}
    left_out = {"max_tokens"} if "max_new_tokens" not in layer else set()
    if engine_build is not None and _version(engine_build) < _PENALTIES_SINCE:
        left_out |= set(_PENALTIES)
    return {key: value for key, value in named.items() if key in NEUTRAL and key not in left_out}


def _version(build: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", build)[:2])


def _from_file(file: Path, source: str) -> Mapping[str, object]:
    if not file.is_file():
        if source == "auto" or file.parent.is_dir():
            return {}
        raise ConfigError(
            "engine.args.generation_config", f"'{source}' is no folder here",
            "give auto, vllm, or a folder that holds generation_config.json",
        )  # fmt: skip
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(str(file), f"cannot be read ({error})", "repair the file") from error
    # vLLM goes on without a broken file; what a study samples with should not hang on that.
    return {key: value for key, value in _object(text, str(file)).items() if value is not None}


def _override(args: Mapping[str, object]) -> dict[str, object]:
    """Return the override, stated as a mapping, as its JSON, or key by key with a dot."""
    value = args.get(_OVERRIDE)
    where = f"engine.args.{_OVERRIDE}"
    told = dict(value) if isinstance(value, Mapping) else _object(str(value or "{}"), where)
    for name, item in args.items():
        if name.startswith(f"{_OVERRIDE}."):
            key = name.removeprefix(f"{_OVERRIDE}.")
            text = item if isinstance(item, str) else json.dumps(item)
            told[key] = _object(f'{{"value": {text}}}', where)["value"]
    return told


def _object(text: str, where: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(where, f"is no JSON ({error})", "repair it") from error
    if not isinstance(value, dict):
        raise ConfigError(where, "is no mapping", "give sampling parameters by name")
    return value


def _number(key: str, value: object, where: str) -> float | int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(where, f"{key} is {value!r}, which is no number", "give a number")
    if not -_LARGEST <= value <= _LARGEST:
        raise ConfigError(where, f"{key} is {value}, which is out of range", "give a number")
    if key == "top_k" and value == -1:
        return 0  # vLLM takes both for no limit
    if key in _WHOLE and value != int(value):
        raise ConfigError(where, f"{key} is {value!r}, which is not whole", "give a whole number")
    return int(value) if key in _WHOLE else float(value)
