"""What to boot: one arm as a command line and an environment."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

VLLM_LAUNCHER = "vllm.entrypoints.cli.main"
"""Genuine vLLM: `python -m vllm.entrypoints.cli.main` is the `vllm` command."""
CPU_LAUNCHER = "serve_apps.cpu.launch"
"""vLLM on a CPU, with the V2 model runner."""
FAKE_LAUNCHER = "serve_apps.engine.fake"
"""The stand-in without a model."""

BOOT_ID_VARIABLE = "SPECPILOT_BOOT_ID"
TRIAL_VARIABLE = "SPECPILOT_TRIAL"
"""Carried by the processes of a trial's boot and by no others: "<study id>/<application>"."""
SUPERVISOR_VARIABLE = "SPECPILOT_SUPERVISOR"
"""Who started the boot, as ``procfs.identity`` says it: a boot without it is dead."""
BOOTS_DIR_VARIABLE = "SPECPILOT_BOOTS_DIR"
"""Where the record of a trial's boot is; installations on one machine have their own."""
BOOT_ALIAS_PREFIX = "specpilot-boot-"
HOST = "127.0.0.1"

_OWNED = frozenset(
    {"model", "host", "port", "uds", "served-model-name", "speculative-config", "api-key"}
)
_TRUST = "trust-remote-code"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_NUMBER = re.compile(r"-\d*\.?\d+(e[+-]?\d+)?", re.IGNORECASE)
# Ray writes these into its workers. An engine must not run with them: OMP_NUM_THREADS=1 on a
# replica of zero CPUs would slow host-side work down without a trace in the arm.
_NOT_INHERITED = frozenset(
    {
        *("OMP_NUM_THREADS", "PYTHONBREAKPOINT", "VIRTUAL_ENV"),
        *(BOOT_ID_VARIABLE, TRIAL_VARIABLE, SUPERVISOR_VARIABLE, BOOTS_DIR_VARIABLE),
    }
)

_OF_TRIALS = frozenset({"boots_dir", "trial"})

Json = str | int | float | bool | None | list[Any] | dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """One boot of one arm, in plain JSON types (it travels as Serve application arguments).

    Every launcher speaks the command line of vLLM: `python -m <launcher> serve MODEL ...`.
    """

    model: str
    """Folder of the target model."""
    served_model_name: str
    """The name that clients use and that answers carry."""
    log_path: str
    """File of the engine's output, appended to; `{boot_id}` in it is replaced."""
    python: str | None = None
    """Interpreter of the engine build; None is the one that runs the supervisor."""
    launcher: str = VLLM_LAUNCHER
    """Module that starts the engine."""
    speculative_config: dict[str, Any] | None = None
    """vLLM's speculative config, or None for no speculation."""
    args: dict[str, Json] = field(default_factory=dict)
    """Engine arguments by vLLM's names without the dashes; see `command`."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables of the engine's environment, over the inherited ones."""
    cache_dir: str | None = None
    """Folder of compile caches, one below it per engine build; None leaves the engine's own places,
    where two builds may meet."""
    boots_dir: str | None = None
    """Folder of the records of trials' boots, by which others find what a dead one left; None keeps
    none."""
    trial: str | None = None
    """"<study id>/<application>" of a trial's boot; None for production and all others."""
    boot_timeout_s: float = 1800.0
    """From start to the first real completion."""
    boot_silence_s: float = 900.0
    """How long the log of a boot may stand still; kernels compile for minutes without a line."""
    first_completion_timeout_s: float = 600.0
    """How long a healthy engine may take for its first completion (kernels compile in it)."""
    stop_timeout_s: float = 15.0
    """From SIGTERM to SIGKILL."""
    readiness_prompt: str = "The capital of France is"
    readiness_max_tokens: int = 8

    def __post_init__(self) -> None:
        """Refuse what the supervisor decides itself."""
        faults = {f"args.{name}": argument_fault(name, self.args[name]) for name in self.args}
        faults |= {f"env.{name}": variable_fault(name, self.env[name]) for name in self.env}
        for where, fault in faults.items():
            if fault is not None:
                raise ValueError(f"{where}: {fault}")
        for name in ("model", "served_model_name", "log_path", "launcher"):
            if not getattr(self, name):
                raise ValueError(f"{name}: must not be empty")
        for name, place in (("log_path", self.log_path), ("cache_dir", self.cache_dir)):
            if not _is_place(place or "/"):
                raise ValueError(f"{name}: must be an absolute path without .., got {place!r}")
        for name in (
            *("boot_timeout_s", "boot_silence_s", "first_completion_timeout_s", "stop_timeout_s"),
        ):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: must be above 0, got {getattr(self, name)!r}")

    def to_dict(self) -> dict[str, Any]:
        """Return the spec in JSON types; production's says nothing of trials."""
        data = asdict(self)
        return {k: v for k, v in data.items() if v is not None or k not in _OF_TRIALS}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EngineSpec:
        """Return the spec of `to_dict`.

        Raises:
            ValueError: On an unknown key or a missing one.
        """
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(data) - known)
        if unknown:
            raise ValueError(f"engine spec: unknown key {unknown[0]!r} (known: {sorted(known)})")
        try:
            return cls(**data)
        except TypeError as error:
            raise ValueError(f"engine spec: {error}") from error


def argument_fault(name: str, value: object) -> str | None:
    """Return why an arm cannot give an engine this argument; None where it can.

    Args:
        name: As in ``EngineSpec.args``.
        value: In JSON types.
    """
    if not _NAME.fullmatch(name):
        return "is no name of an argument"
    option = name.replace("_", "-").partition(".")[0]
    # vLLM's parser takes the beginning of a name for the name.
    if any(owned.startswith(option) for owned in _OWNED):
        return "is set by specpilot itself"
    items = value if isinstance(value, list) else []
    if option != _TRUST and _TRUST.startswith(option):
        return "is the beginning of trust-remote-code: write it out"
    for text in [value, *items]:
        if isinstance(text, str) and not _can_travel(text):
            return "has a character that no command line can carry"
    if not _is_json(value):
        return (
            "has a number that is infinite or not a number (NaN), or something of YAML's own, as "
            "bytes and keys that are no text, which JSON cannot carry"
        )
    for text in items:
        if isinstance(text, str) and text.startswith("-") and not _NUMBER.fullmatch(text):
            return "has an item that would be read as an argument of its own"
    return None


def _is_json(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_json(below) for key, below in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_json, value))
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | int)


def variable_fault(name: str, value: object) -> str | None:
    """Return why an engine cannot have this variable in its environment; None where it can."""
    if not name or "=" in name or not _can_travel(name):
        return "is no name of a variable"
    if isinstance(value, str) and not _can_travel(value):
        return "has a character that no environment can carry"
    return None


def _is_place(text: str) -> bool:
    path = Path(text)
    return path.is_absolute() and ".." not in path.parts and "\0" not in text


def _can_travel(text: str) -> bool:
    """Return whether a text is the same on the other side of ``execve``, in UTF-8."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def boot_alias(boot_id: str) -> str:
    """Return the second served model name, by which the answering process proves its boot."""
    return f"{BOOT_ALIAS_PREFIX}{boot_id}"


def boot_mark(boot_id: str) -> str:
    """Return "NAME=value" of the environment variable that every process of the boot carries."""
    return f"{BOOT_ID_VARIABLE}={boot_id}"


def trial_mark(trial: str) -> str:
    """Return "NAME=value" that every process of every boot of the trial carries."""
    return f"{TRIAL_VARIABLE}={trial}"


def log_file(spec: EngineSpec, boot_id: str) -> Path:
    """Return the log of this boot."""
    return Path(spec.log_path.replace("{boot_id}", boot_id))


def command(spec: EngineSpec, port: int, boot_id: str) -> list[str]:
    """Return the command line of the engine.

    Arguments: True -> `--name`, False -> `--no-name` (vLLM's BooleanOptionalAction), None -> left
    out, a list -> several values, a dict -> JSON, anything else -> its text. No shell reads it:
    texts arrive byte for byte.

    Args:
        spec: What to boot.
        port: A free port on the loopback interface.
        boot_id: Identity of this boot.
    """
    argv = [spec.python or sys.executable, "-m", spec.launcher, "serve", spec.model]
    argv += ["--host", HOST, "--port", str(port)]
    # The first name is the one that answers carry; the second one proves who answers.
    argv += ["--served-model-name", spec.served_model_name, boot_alias(boot_id)]
    if spec.speculative_config is not None:
        argv += ["--speculative-config", json.dumps(spec.speculative_config, sort_keys=True)]
    for name, value in spec.args.items():
        argv += _argument(name.replace("_", "-"), value)
    return argv


def _argument(name: str, value: Json) -> list[str]:
    if value is None:
        return []
    if value is True:
        return [f"--{name}"]
    if value is False:
        return [f"--no-{name}"]
    if isinstance(value, list):
        return [f"--{name}", *map(str, value)]
    if isinstance(value, dict):
        return [f"--{name}", json.dumps(value, sort_keys=True)]
    text = str(value)
    # What begins with a dash would be read as an argument of its own.
    return [f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text]


def environment(spec: EngineSpec, boot_id: str, base_env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the engine.

    Args:
        spec: What to boot.
        boot_id: Identity of this boot.
        base_env: The supervisor's own environment.
    """
    env = {
        name: value
        for name, value in base_env.items()
        if name not in _NOT_INHERITED and not name.startswith(("RAY_", "__RAY"))
    }
    if spec.python is not None:
        # The build's own tools (ninja and the like) first, and nothing of our packages.
        env.pop("PYTHONPATH", None)
        bin_dir = str(Path(spec.python).parent)
        env["PATH"] = os.pathsep.join(filter(None, (bin_dir, env.get("PATH", ""))))
    if spec.launcher.startswith("serve_apps."):
        _add_source_folder(env)
    env["VLLM_SERVER_DEV_MODE"] = "1"  # opens /server_info; the engine listens on loopback only
    env["PYTHONUNBUFFERED"] = "1"
    # vLLM renames its processes, which would overwrite what /proc/<pid>/environ shows.
    env["SPT_NOENV"] = "1"
    env.update(spec.env)
    for name in (TRIAL_VARIABLE, SUPERVISOR_VARIABLE, BOOTS_DIR_VARIABLE):
        env.pop(name, None)  # an arm must not say whose it is
    env[BOOT_ID_VARIABLE] = boot_id
    if spec.trial is not None:
        env[TRIAL_VARIABLE] = spec.trial
    if spec.boots_dir is not None:
        env[BOOTS_DIR_VARIABLE] = spec.boots_dir
    return env


def _add_source_folder(env: dict[str, str]) -> None:
    """Let another build's interpreter find our launchers, but not our installed packages."""
    source = Path(__file__).resolve().parents[2]
    if source.name not in ("site-packages", "dist-packages"):
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(source), env.get("PYTHONPATH", ""))))
