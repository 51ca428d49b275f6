"""Compose a study's configuration from small YAML files; the only file that imports OmegaConf.

A study file names the files it builds on under ``include`` (paths below ``conf/`` without suffix);
later files win, then the study's own keys, then ``key=value`` overrides. After ``load_config``
there is no DictConfig anywhere. Nothing is filled in: ``${...}`` is refused. OmegaConf would read
the environment for it, and a configuration is stored where everybody reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from orchestrator.config_engine import BuildConfig, EngineConfig
from orchestrator.config_faults import find_fault
from orchestrator.config_load import CellWeight, LoadConfig
from orchestrator.config_places import NodeConfig, PolicyConfig, ProductionConfig, TrackingConfig
from orchestrator.config_proof import ProofConfig
from orchestrator.config_types import (
    DraftConfig,
    ModelConfig,
    ObjectiveConfig,
    SearchConfig,
    StudyConfig,
)
from orchestrator.core.lines import one_line
from orchestrator.errors import ConfigError

__all__ = [
    "CONF_DIR",
    "PROJECT_DIR",
    "BuildConfig",
    "CellWeight",
    "DraftConfig",
    "EngineConfig",
    "LoadConfig",
    "ModelConfig",
    "NodeConfig",
    "ObjectiveConfig",
    "PolicyConfig",
    "ProductionConfig",
    "ProofConfig",
    "SearchConfig",
    "StudyConfig",
    "TrackingConfig",
    "config_to_dict",
    "load_config",
    "resolve",
]

PROJECT_DIR = Path(__file__).resolve().parent.parent
CONF_DIR = PROJECT_DIR / "conf"
_INCLUDED = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*")
"""A path below ``conf/`` that cannot leave it."""
_MAX_CHARS = 300
"""Of a key, or of what is wrong with it, in an error: values may be long."""


def load_config(path: Path, overrides: Sequence[str] = ()) -> StudyConfig:
    """Compose a study from its file, the files it includes and ``key=value`` overrides.

    Raises:
        ConfigError: A file is missing or not YAML, a key is unknown or missing, a value has the
            wrong type, or a check fails. It is one line, whatever the value is.
    """
    try:
        return _composed(path, overrides)
    except ConfigError as error:
        parts = (error.where, error.problem, error.remedy)
        where, problem, remedy = (one_line(part, _MAX_CHARS) for part in parts)
        raise ConfigError(where or "''", problem, remedy) from error


def _composed(path: Path, overrides: Sequence[str]) -> StudyConfig:
    layers = [*_layers(path, seen=())]
    for item in overrides:
        layer = _override(item)
        _require_sections(item.partition("=")[0], layers)
        layers.append(layer)
    for layer in layers:
        _refuse_filling_in(OmegaConf.to_container(layer, resolve=False), key="")
    try:
        merged = OmegaConf.merge(OmegaConf.structured(StudyConfig), *layers)
        study = OmegaConf.to_object(merged)
    except (OmegaConfBaseException, TypeError, OverflowError) as error:
        raise _located(error, layers, path) from error
    assert isinstance(study, StudyConfig)
    # OmegaConf takes a section or a list for an item of any list.
    fault = find_fault(StudyConfig, OmegaConf.to_container(merged, resolve=True))
    if fault is not None:
        raise fault
    return study


def resolve(path: str) -> Path:
    """Return an absolute path; a relative one starts at the project's folder."""
    given = Path(path).expanduser()
    return given if given.is_absolute() else PROJECT_DIR / given


def config_to_dict(config: StudyConfig) -> dict[str, Any]:
    """Return the composed configuration as plain JSON types, for logging and identity."""
    container = OmegaConf.to_container(OmegaConf.structured(config), resolve=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def _located(error: Exception, layers: Sequence[DictConfig], path: Path) -> ConfigError:
    """Return the error with its dotted key, which OmegaConf does not always name."""
    key = str(getattr(error, "full_key", None) or path)
    text = str(error).strip().splitlines()[0]
    stated = ConfigError(key, text, f"correct it in {path.name} or the files it includes")
    return find_fault(StudyConfig, _overlaid(layers)) or stated


def _overlaid(layers: Sequence[DictConfig]) -> dict[Any, Any]:
    plain: dict[Any, Any] = {}
    for layer in layers:
        plain = _overlay(plain, OmegaConf.to_container(layer, resolve=False))
    return plain


def _overlay(base: Any, layer: Any) -> dict[Any, Any]:
    """Return the base with the layer over it; unlike OmegaConf's merge it refuses nothing."""
    result = dict(base)
    for key, value in layer.items():
        below = result.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        result[key] = _overlay(below, value) if both else value
    return result


def _require_sections(key: str, layers: Sequence[DictConfig]) -> None:
    """Refuse an override below a value, which OmegaConf would put a section in the place of.

    Raises:
        ConfigError: What is above the key is no section.
    """
    value: Any = _overlaid(layers)
    *above, _ = key.split(".")
    for depth, name in enumerate(above, start=1):
        value = value.get(name)
        if value is None:
            return
        if not isinstance(value, Mapping):
            holder = ".".join(above[:depth])
            raise ConfigError(key, f"{holder} is {value!r} and no section", f"give {holder}=VALUE")


def _refuse_filling_in(value: object, key: str) -> None:
    """Refuse a text that OmegaConf would fill in or takes for a gap, or that no file system holds.

    Raises:
        ConfigError: There is one.
    """
    if isinstance(value, Mapping):
        for name, below in value.items():
            _refuse_filling_in(below, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for index, below in enumerate(value):
            _refuse_filling_in(below, f"{key}[{index}]")
    elif isinstance(value, str) and re.search("[\0\ud800-\udfff]", value):
        raise ConfigError(key, "has a character that is no text", "write it without")
    elif isinstance(value, str) and ("${" in value or value == "???"):
        raise ConfigError(
            key, "has a dollar before a brace, or is ???, and nothing is filled in here",
            f"write the value, or give it where the study is started: {key}=VALUE",
        )  # fmt: skip


def _layers(path: Path, seen: tuple[Path, ...]) -> Iterator[DictConfig]:
    resolved = path.resolve()
    if resolved in seen:
        raise ConfigError("include", f"{path} includes itself", "break the circle")
    layer = _read(path)
    for name in _included(layer, path):
        yield from _layers(CONF_DIR / f"{name}.yaml", (*seen, resolved))
    yield layer


def _included(layer: DictConfig, path: Path) -> list[str]:
    """Take the names of the files out of a layer that it builds on."""
    plain = OmegaConf.to_container(layer, resolve=False)
    assert isinstance(plain, dict)
    include = plain.get("include") or []
    if not isinstance(include, list):
        raise ConfigError(
            "include", f"{include!r} in {path.name} is no list", "write it as [engine/cpu]"
        )
    for name in include:
        if not isinstance(name, str) or not _is_below_conf(name):
            problem = f"'{name}' in {path.name} is no file {CONF_DIR / f'{name}.yaml'}"
            raise ConfigError("include", problem, "name a file below conf, as in [engine/cpu]")
    layer.pop("include", None)
    return include


def _is_below_conf(name: str) -> bool:
    try:
        return bool(_INCLUDED.fullmatch(name)) and (CONF_DIR / f"{name}.yaml").is_file()
    except OSError:  # a name that is too long
        return False


def _read(path: Path) -> DictConfig:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), f"cannot be read ({error})", "give a study file") from error
    try:
        layer = OmegaConf.create(text)
    except AssertionError as error:  # OmegaConf's, of a number and the like
        raise _no_mapping(path) from error
    except Exception as error:  # the YAML reader's own errors, which OmegaConf passes on
        reason = " ".join(str(error).replace('in "<unicode string>", ', "").split())
        raise ConfigError(str(path), f"is not YAML ({reason})", "correct the file") from error
    # Of a single word OmegaConf makes a key.
    if not isinstance(layer, DictConfig) or list(layer.keys()) == [text.strip()]:
        raise _no_mapping(path)
    return layer


def _no_mapping(path: Path) -> ConfigError:
    return ConfigError(str(path), "is not a mapping", "write keys and values, as in name: mine")


def _override(item: str) -> DictConfig:
    key, equals, _ = item.partition("=")
    if not equals or not all(key.split(".")):
        raise ConfigError(item, "is not an override", "write it as key=value")
    try:
        return OmegaConf.from_dotlist([item])
    except Exception as error:  # the YAML reader's own errors, which OmegaConf passes on
        reason = " ".join(str(error).replace('in "<unicode string>", ', "").split())
        raise ConfigError(
            key, f"the value of '{item}' is not YAML ({reason})", "quote it"
        ) from error
